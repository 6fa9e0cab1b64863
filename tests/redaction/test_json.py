"""JSON without secrets, at any depth; and documents that are too large: what comes out is one, and fits."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from tests.recording.canaries import KESTREL, NAMES, ORDINARY, ORDINARY_NAMES
from tests.support.examples import is_thorough

from indelible.recording.exchange import keep_body
from indelible.redaction.redact import (
    KEPT_BYTES,
    MAX_WHOLE_BYTES,
    TOO_DEEP,
    redact_document,
    redact_json,
    shorten_document,
)
from indelible.redaction.secrets import REDACTED, KnownSecrets

USAGE = {
    "input_tokens": 12,
    "output_tokens": 34,
    "output_tokens_details": {"reasoning_tokens": 5},
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 7}],
    "max_tokens": 4096,
    "token_count": 9,
    "total_token": 3,
    "logprob_token": 0.5,
}


def check_kept(text: str) -> None:
    assert redact_document(text) == text


def test_what_is_under_a_sensitive_key_goes_at_any_depth() -> None:
    for name in NAMES:
        for value in ("kestrel", ["kestrel"], {"a": {"b": "kestrel"}}):
            document = {"a": [{"b": {name: value, "kept": 1}}], "c": [[{name: value}]]}
            hidden = {"a": [{"b": {name: REDACTED, "kept": 1}}], "c": [[{name: REDACTED}]]}
            assert redact_json(document) == hidden
            assert json.loads(redact_document(json.dumps(document)) or "") == hidden
            inside = json.loads(redact_document(json.dumps([json.dumps(document)])) or "")
            assert inside == [json.dumps(hidden)]


@pytest.mark.parametrize("escaped", ["\\u%04x", "\\u%04X"])
def test_letters_may_be_written_as_escapes(escaped: str) -> None:
    def spell(text: str) -> str:
        return "".join(escaped % ord(letter) for letter in text)

    known = KnownSecrets(["kestrel0/KESTREL"])
    assert redact_document(f'{{"{spell("password")}": "kestrel"}}') == '{"password": "[redacted]"}'
    assert redact_document(f'{{"p{spell("a")}ssword": "kestrel"}}') == '{"password": "[redacted]"}'
    assert redact_document(f'["not {spell("kestrel0/KESTREL")}"]', known) == '["not [redacted]"]'
    assert redact_document(f'["kestrel0\\/{spell("K")}ESTREL"]', known) == '["[redacted]"]'
    assert redact_document(json.dumps([f'["kestrel0\\/{spell("K")}ESTREL"]']), known) == json.dumps(['["[redacted]"]'])


def test_a_known_secret_is_hidden_in_values_and_in_keys() -> None:
    known = KnownSecrets(["kestrel0kestrel"])
    assert redact_json({"a kestrel0kestrel": ["is kestrel0kestrel", 1]}, known) == {
        f"a {REDACTED}": [f"is {REDACTED}", 1]
    }


def test_a_key_that_comes_twice_does_not_hide_its_first_value_from_redaction() -> None:
    assert redact_document('{"password": "kestrel", "password": null}') == '{"password": null}'
    assert redact_document('{"password": null, "password": "kestrel"}') == '{"password": "[redacted]"}'
    assert redact_document('{"a": {"token": "kestrel"}, "a": 1}') == '{"a": 1}'


def test_a_number_can_be_a_password_but_not_a_token() -> None:
    assert redact_json({"password": 12345678, "pin_secret": 1.5, **USAGE}) == {
        "password": REDACTED,
        "pin_secret": REDACTED,
        **USAGE,
    }


def test_a_number_is_a_token_if_its_name_leaves_no_doubt() -> None:
    for name in ("access_token", "refreshToken", "API-TOKEN", "session token"):
        assert redact_json({name: 31337, f"{name}s": 12}) == {name: REDACTED, f"{name}s": 12}


def test_what_says_nothing_stays_under_a_sensitive_key() -> None:
    nothing: dict[str, Any] = {"token": None, "password": "", "secret": False, "api_key": [], "cookies": {}}
    nothing["jwt"] = REDACTED
    assert redact_json(nothing) == nothing


def test_usage_counters_stay_letter_by_letter() -> None:
    for body in (json.dumps(USAGE), json.dumps(USAGE, indent=1), json.dumps({"usage": USAGE}, separators=(",", ":"))):
        check_kept(body)


def test_ordinary_names_and_texts_stay_letter_by_letter() -> None:
    for name in ORDINARY_NAMES:
        check_kept(json.dumps({name: ["some text", {"a": "another 42"}]}))
    for text in ORDINARY:
        check_kept(json.dumps({"text": text, "list": [text]}))
        check_kept(json.dumps({"text": text}, ensure_ascii=False, indent=4))
        check_kept(json.dumps({"arguments": json.dumps({"text": text})}))


@pytest.mark.parametrize("text", ["{", '{"a": 1', "words", "{}{}", "", "nope: 1", '{"password": "kestrel"', "[1,]"])
def test_what_is_no_json_is_known(text: str) -> None:
    assert redact_document(text) is None


@pytest.mark.parametrize("depth", [99, 101, 500, 5_000, 100_000])
def test_deep_documents_are_safe(depth: int) -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        body = opening * depth + '{"password": "kestrel"}' + closing * depth
        for written in (body, json.dumps([body])):
            assert KESTREL not in (redact_document(written) or "")
            assert KESTREL not in (shorten_document(written.encode(), KEPT_BYTES, is_whole=True) or "")


def test_a_document_that_is_too_deep_to_be_read_becomes_one_that_says_so() -> None:
    assert json.loads(redact_document("[" * 100_000 + '"secret"' + "]" * 100_000) or "") == TOO_DEEP


# --- documents that are too large ---

IMAGE = b64encode(bytes(range(256)) * 4000).decode()


def keep(body: bytes, known: KnownSecrets | None = None) -> str:
    """The text of a request's body in a record."""
    headers = {"content-type": "application/json"}
    text = keep_body(body).redact(headers, known or KnownSecrets())
    assert len(text.encode()) <= KEPT_BYTES
    assert KESTREL not in text.lower()
    return text


def keep_document(document: Any, known: KnownSecrets | None = None) -> Any:
    body = json.dumps(document).encode()
    assert len(body) > KEPT_BYTES
    return json.loads(keep(body, known))


def test_of_an_image_both_ends_are_kept_and_the_rest_stays_as_it_was() -> None:
    text = "some words\n" * 5000
    for start in ("", "data:image/png;base64,"):
        message = {"role": "user", "content": [{"type": "text", "text": text}, {"url": start + IMAGE}]}
        kept = keep_document({"model": "m", "messages": [message]})
        assert kept["model"] == "m"
        (same, image) = kept["messages"][0]["content"]
        assert same == {"type": "text", "text": text}
        assert image["url"].startswith(start + IMAGE[:64])
        assert "characters are missing here …]" in image["url"]


def test_a_long_text_keeps_how_it_begins_and_how_it_ends() -> None:
    kept = keep_document(["first words, " + "more words " * 100_000 + "last words"])[0]
    assert kept.startswith("first words")
    assert kept.endswith("last words")
    assert "characters are missing here" in kept


def test_a_long_list_and_a_large_object_keep_how_they_begin_and_how_they_end() -> None:
    messages = [{"role": "user", "content": f"message {number} " + "words " * 100} for number in range(3000)]
    kept = keep_document({"messages": messages})["messages"]
    assert kept[0] == messages[0]
    assert kept[-1] == messages[-1]
    (note,) = [item for item in kept if isinstance(item, str)]
    assert note == f"[… {3000 - len(kept) + 1:,} items are missing here …]"
    large = keep_document({f"key {number}": number for number in range(40_000)})
    assert (large["key 0"], large["key 39999"]) == (0, 39999)
    assert large["…"] == f"[… {40_000 - len(large) + 1:,} items are missing here …]"


def test_letters_that_take_several_bytes_or_escapes_fit_too() -> None:
    for letter in ("密", "\n", "\x01", '"', "\ud800", "🌧"):
        keep_document({"a": [letter * 1000 + " "] * 400, "b": letter * 100_000, letter * 300_000: 1})


def test_a_tree_of_short_lists_fits() -> None:
    tree: Any = "leaf leaf leaf"
    for _ in range(14):
        tree = [tree, tree]
    keep_document({"tree": tree, "a": 1})


def test_what_is_under_a_sensitive_key_is_gone_before_anything_is_cut() -> None:
    kept = keep_document({"password": "kestrel" * 90_000, "a": [{"api_key": ["kestrel"] * 90_000}]})
    assert kept == {"password": REDACTED, "a": [{"api_key": REDACTED}]}


def test_no_half_of_a_known_secret_is_left_where_a_text_is_cut() -> None:
    """Cut before it, behind it, near its ends and in its middle; `make nightly` cuts at each of its letters."""
    known = KnownSecrets(["kestrel0KESTREL"])
    for limit in (65536, 16384, 4096):
        for shift in range(20) if is_thorough() else (0, 1, 2, 8, 14, 15, 16):
            text = (
                "," * (limit // 2 - shift)
                + "kestrel0KESTREL"
                + ", " * limit
                + "kestrel0KESTREL"
                + "," * (limit // 2 - shift)
            )
            keep_document([text] * (2 * KEPT_BYTES // limit), known)


def test_of_a_document_that_is_far_too_large_the_beginning_is_kept() -> None:
    for document in (
        {"model": "m", "password": "kestrel", "a": ["words " * 100] * (MAX_WHOLE_BYTES // 500)},
        {"model": "m", "a": "kestrel" * (MAX_WHOLE_BYTES // 6)},
    ):
        kept = keep_document(document)
        assert kept["model"] == "m"


def test_what_is_no_json_is_replaced_however_large_it_is() -> None:
    for body in (b'{"password": "kestrel' + b" kestrel" * 100_000, b"{" + b"kestrel" * 90_000):
        assert keep(body) == f"[not a JSON document that could be read, {len(body):,} bytes]"


def test_of_a_request_no_more_is_held_than_its_document_needs() -> None:
    for body, held_bytes in ((b"{}", 2), (b"[" + b" " * 2**20, 2**20 + 1), (b"a" * 2**20, KEPT_BYTES)):
        kept = keep_body(body)
        assert len(kept.head) + len(kept.tail) == held_bytes
    document = b"[" + b" " * 2**20
    assert keep_body(document).head is document
