"""The secrets that the process knows: hidden however they are written, and ordinary words left alone."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indelible.redaction.secrets import REDACTED, KnownSecrets

KESTREL_KEY = "kestrel+of/no-known=look"
ESCAPED = KESTREL_KEY.replace("+", "\\u002B").replace("/", "\\u002F").replace("=", "\\u003D")
FORMS = [
    KESTREL_KEY,
    KESTREL_KEY.replace("/", "\\/"),
    KESTREL_KEY.replace("/", "\\\\/"),
    ESCAPED,
    ESCAPED.lower(),
    ESCAPED.replace("\\", "\\\\"),
    quote(KESTREL_KEY),
    quote(KESTREL_KEY, safe=""),
    quote(KESTREL_KEY, safe="").lower(),
    quote(quote(KESTREL_KEY, safe=""), safe=""),
    quote(KESTREL_KEY, safe="/+=:"),
]


@pytest.mark.parametrize("written", FORMS)
def test_a_known_secret_is_hidden_however_it_is_written(written: str) -> None:
    known = KnownSecrets([KESTREL_KEY, "", "short"])
    for around in ("{}", "a {} b", "100% \\u00e9 {}, {}" + " words" * 500 + " {} %20", "%20" * 99 + "{}{}"):
        assert known.hide(around.replace("{}", written)) == around.replace("{}", REDACTED)


def test_a_secret_with_quotes_and_foreign_letters_is_hidden_in_json() -> None:
    key = 'kestrel "ключ" \\ 1'
    once = json.dumps({"a": key})
    for written in (once, json.dumps({"a": key}, ensure_ascii=False), json.dumps([once])):
        assert "kestrel" not in KnownSecrets([key]).hide(written)


def test_the_margin_is_the_length_of_the_longest_form() -> None:
    known = KnownSecrets([KESTREL_KEY, "kestrel1"])
    assert known.margin >= max(map(len, FORMS))
    assert KnownSecrets().margin == 0
    assert KnownSecrets().hide("anything") == "anything"


def test_the_headers_of_a_request_carry_secrets_that_a_provider_may_repeat() -> None:
    headers = {
        "Authorization": "Bearer kestrel-Kestrel",
        "Cookie": 'sid=kestrel0kestrel; theme=dark; other="kestrel1kestrel"',
        "set-cookie": "id=kestrel2kestrel; Path=/somewhere/else; Domain=h.example; Expires=Wed, 21 Oct 2015 07:28:00",
        "x-author": "Somebody",
        "x-session-mode": "interactive",
        "x-session": "kestrel3kestrel",
        "x-api-key": "kestrel-kestrel-kestrel",
        "api-key": "short",
        "accept": "application/json",
    }
    known = KnownSecrets(["kestrel9kestrel"]).sent_with(headers)
    assert known.secrets == (
        *("kestrel9kestrel", "kestrel-Kestrel", "kestrel0kestrel", "kestrel1kestrel", "kestrel2kestrel"),
        *("kestrel3kestrel", "kestrel-kestrel-kestrel"),
    )


@pytest.mark.parametrize(
    "word", ["messages", "anything", "Anything", "NOTHING-AT-ALL", "lm-studio", "12345678", "1" * 40, "a1b2c3d"]
)
def test_an_ordinary_word_that_is_sent_for_a_key_is_hidden_nowhere_else(word: str) -> None:
    known = KnownSecrets([word]).sent_with(
        {"authorization": f"Bearer {word}", "x-api-key": word, "cookie": f"a={word}"}
    )
    assert known.secrets == ()


known_secrets = st.text(st.sampled_from('kestrelKEY0189+/=-_"\\ é😀'), min_size=8, max_size=40).filter(
    lambda secret: bool(KnownSecrets([secret]).secrets)
)


@given(known_secrets, st.text(max_size=20), st.text(max_size=20))
def test_no_known_secret_is_left_in_any_text(secret: str, before: str, after: str) -> None:
    known = KnownSecrets([secret])
    assert secret not in known.hide(before + secret + after)


@given(known_secrets, st.booleans(), st.booleans())
def test_no_known_secret_is_left_in_any_json(secret: str, is_ascii: bool, is_nested: bool) -> None:
    written = json.dumps({"a": secret}, ensure_ascii=is_ascii)
    written = json.dumps([written], ensure_ascii=is_ascii) if is_nested else written
    hidden = KnownSecrets([secret]).hide(written)
    assert hidden != written
    assert json.dumps(secret, ensure_ascii=is_ascii)[1:-1] not in hidden


@given(st.text(st.sampled_from("abcdef .,\n{}:"), max_size=200))
def test_a_text_without_a_known_secret_is_left_as_it_is(text: str) -> None:
    assert KnownSecrets([KESTREL_KEY]).hide(text) == text
