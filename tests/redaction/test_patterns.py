"""What counts as a secret by its name or by its looks: no canary is left, and ordinary texts stay as they are."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.recording.canaries import CANARY, LOOKS, NAMES, ORDINARY, ORDINARY_NAMES

from indelible.redaction.secrets import (
    NAME_PARTS,
    REDACTED,
    is_secret_header,
    is_secret_name,
    is_secret_parameter,
    redact_keys,
)

# --- names -------------------------------------------------------------------------------


def test_a_sensitive_name_is_known_in_every_style() -> None:
    for name in NAMES:
        assert is_secret_name(name)
        assert is_secret_parameter(name)
        assert is_secret_parameter(quote(name, safe=""))
        assert is_secret_parameter("".join(f"%25{ord(letter):02X}" for letter in name))


def test_every_sensitive_name_holds_one_of_the_parts_that_are_searched_first() -> None:
    for name in NAMES:
        assert any(part in name.lower() for part in NAME_PARTS)


def test_counters_ids_and_other_names_are_not_sensitive() -> None:
    for name in ORDINARY_NAMES:
        assert not is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["key", "sig", "signature", "code", "auth", "session", "sid", "x-goog-signature", "pw"]
)
def test_a_query_has_more_sensitive_names_than_a_document(name: str) -> None:
    assert is_secret_parameter(name)
    assert not is_secret_name(name)


@pytest.mark.parametrize("name", ["q", "page", "max_tokens", "country_code", "keyword", "lang", "author", "v", ""])
def test_ordinary_parameters_are_not_sensitive(name: str) -> None:
    assert not is_secret_parameter(name)


@pytest.mark.parametrize(
    "name",
    [
        *("authorization", "Proxy-Authorization", "COOKIE", "Set-Cookie", "x-api-key", "X-Goog-Api-Key", "api-key"),
        *("Openai-Api-Key", "x-auth-token", "X-Amz-Security-Token", "x_secret", "X-Hub-Signature-256", "session-id"),
        *("x-ratelimit-api-key", "x-ratelimit-secret", "X-CSRFToken", "anthropic-api-key", "x-password", "credentials"),
        *("x-jwt", "x-pwd", "x-passwd", "x-pass-wd", "x-bearer", "x-csrf", "X-XSRF-Value", "x-ratelimit-token"),
    ],
)
def test_a_sensitive_header_is_known_in_every_case(name: str) -> None:
    assert is_secret_header(name)
    assert is_secret_header(name.lower())
    assert is_secret_header(name.upper())


@pytest.mark.parametrize(
    "name",
    [
        *("content-type", "retry-after", "x-request-id", "Date", "server", "openai-processing-ms", "keep-alive", ""),
        *("x-ratelimit-remaining-tokens", "X-RateLimit-Limit-Tokens", "anthropic-ratelimit-input-tokens-reset"),
        *("x-rate-limit-tokens-remaining", "anthropic-version", "x-envoy-upstream-service-time"),
        *("anthropic-ratelimit-tokens-limit", "x-ratelimit-account-tokens", "x-ratelimit-token-limit"),
        *("x-author", "Authority", "co-authors"),
    ],
)
def test_rate_limits_and_other_headers_are_not_sensitive(name: str) -> None:
    assert not is_secret_header(name)


# --- texts -------------------------------------------------------------------------------

AROUND = [("", ""), ("see ", " here"), ('"', '"'), ("'", "',"), ("(", ")."), ("密钥", "。"), ("**", "**"), ("=", "\n")]


def test_what_looks_like_a_secret_is_hidden_wherever_it_stands() -> None:
    for secret in LOOKS:
        for before, after in AROUND:
            hidden = redact_keys(before + secret + after)
            assert CANARY not in hidden.lower(), before + secret + after
            assert REDACTED in hidden
            assert hidden.startswith(before)
            assert redact_keys(hidden) == hidden


def test_an_escape_sequence_before_a_secret_is_no_part_of_its_first_word() -> None:
    for secret in LOOKS:
        for before in ("\\n", "\\t", "\\r\\n", "\\u0022", "%20", "%3D", "\\\\n"):
            assert CANARY not in redact_keys(before + secret).lower(), before


def test_secrets_that_stand_beside_each_other_are_all_hidden() -> None:
    for secret in LOOKS:
        for other in LOOKS:
            for between in (" ", ",", "\n", '"'):
                assert CANARY not in redact_keys(secret + between + other).lower(), secret + between + other


def test_json_stays_json_when_keys_are_hidden_in_it() -> None:
    for secret in (*LOOKS, *ORDINARY):
        document = {"a": secret, "b": [secret, {"password": None, "token": 1, "secret": [1]}], "password": REDACTED}
        for written in (
            json.dumps(document),
            json.dumps(document, ensure_ascii=False),
            json.dumps([json.dumps(document)]),
        ):
            shown = redact_keys(written)
            json.loads(shown)
            assert CANARY not in shown.lower(), written
            assert redact_keys(shown) == shown


def test_ordinary_texts_stay_as_they_are() -> None:
    for text in ORDINARY:
        assert redact_keys(text) == text


def test_what_was_hidden_leaves_the_rest_readable() -> None:
    assert redact_keys("Incorrect API key provided: sk-canarycanary. See https://host/account/keys.") == (
        "Incorrect API key provided: [redacted]. See https://host/account/keys."
    )
    assert redact_keys("curl -H 'Authorization: Bearer canarycanary0' -d '{}'") == (
        "curl -H 'Authorization: Bearer [redacted]' -d '{}'"
    )
    assert redact_keys("Server=h;Password=canary;Port=1") == "Server=h;Password=[redacted];Port=1"
    assert redact_keys("at sk-canarycanary", "[removed]") == "at [removed]"


def test_a_letter_that_is_longer_in_lower_case_does_not_shift_what_is_hidden() -> None:
    assert redact_keys("İİİİ sk-canarycanary İ") == "İİİİ [redacted] İ"


@given(
    st.text(st.characters())
    | st.lists(st.sampled_from((*LOOKS, *ORDINARY, "\\", '"', "=", " ")), max_size=6).map("".join)
)
@example("0sk-canarycanary")
def test_any_text_can_be_shown(text: str) -> None:
    """The text itself may hold the same letters within a word, where they are no key."""
    assert not redact_keys(f"{text} sk-canarycanary").endswith("sk-canarycanary")


# --- cost --------------------------------------------------------------------------------

LENGTH = 80_000
HOSTILE = {
    "schemes": "bearer ",
    "blanks": "token" + " " * 50,
    "assignments": "password=",
    "names": "secret:",
    "addresses": "://",
    "user info": "://a:b",
    "users": "://u:b@",
    "queries": "?key=",
    "tokens": "eyJ",
    "escaped tokens": "\\neyJ",
    "tokens behind dashes": "-eyJ",
    "parts": "eyJaaaaaaaaaa.",
    "keys": "sk-",
    "keys behind dashes": "-sk-aaaaaaaa.",
    "npm": "npm_",
    "key words": "api key ",
    "begins": "-----BEGIN PRIVATE KEY-----",
    "half begins": "-----BEGIN PRIVATE ",
    "ends": "-----BEGIN PRIVATE KEY-----\n-----END ",
    "quotes": 'password="',
    "back-slashes": "\\",
    "escaped quotes": 'secret\\": \\"',
    "letters": "a",
    "dashes": "-",
    "percent": "%25",
    "prose": "The key of a secret is a token, see https://example.com/a?b=c. ",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_redacted_once_and_for_all(name: str) -> None:
    """bench/growth.py measures that its cost grows with its length and no faster, and that other threads may run."""
    redacted = redact_keys("secret " + HOSTILE[name] * (LENGTH // 4 // len(HOSTILE[name])))
    assert redact_keys(redacted) == redacted
