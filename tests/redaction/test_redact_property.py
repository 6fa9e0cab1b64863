"""Redaction of anything: nothing raises, no canary is left, and what is not looked at would not have been changed.

The streams here are made of whole events, broken ones, letters that secrets begin with, and noise. How a stream without
any shortcut is redacted is written down below (`redact_stream_slowly`), so that the shortcuts are held to it.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any, Final

from hypothesis import example, given
from hypothesis import strategies as st
from tests.recording.canaries import CANARY, LOOKS, NAMES, ORDINARY, ORDINARY_NAMES

from indelible.redaction.names import is_secret_name
from indelible.redaction.patterns import BEGINNINGS, redact_text, redact_url
from indelible.redaction.redact import redact_body, redact_headers, redact_json

TYPES: Final = (
    *("text/event-stream", "application/json", "application/x-ndjson", "application/json-seq", "text/plain", ""),
    *("application/x-www-form-urlencoded", "text/html; charset=latin-1", "image/png", "application/octet-stream"),
)
SIGNS: Final = (
    "=",
    ":",
    ": ",
    " = ",
    '"',
    "'",
    "\\",
    "/",
    "?",
    "&",
    "#",
    ";",
    "@",
    "%",
    "+",
    " ",
    "\n",
    "\r\n",
    ",",
    ".",
)
MORE: Final = (
    *("{", "}", "[", "]", "(", ")", "data:", "data: ", "event: x", "[DONE]", "\\n", "\\u0073", "%73", "://", "é", "密"),
)

fragments = st.sampled_from(
    (
        *(string for strings in BEGINNINGS.by_anchor.values() for string in strings),
        *NAMES,
        *ORDINARY_NAMES,
        *LOOKS,
        *SIGNS,
        *MORE,
        "canary",
        "x1",
        "aB",
        "0",
        "İ",
    )
)
fragment_texts = st.lists(fragments | st.text(max_size=3), max_size=12).map("".join)
texts = fragment_texts | st.sampled_from((*LOOKS, *ORDINARY)) | st.text(max_size=30)
keys = st.sampled_from((*NAMES, *ORDINARY_NAMES)) | texts
scalars = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | texts
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
line_ends = st.sampled_from(["\n", "\r\n", "\r"])


# --- nothing raises ----------------------------------------------------------------------


@given(st.binary(max_size=200) | texts.map(lambda text: text.encode("utf-8", "surrogatepass")), st.sampled_from(TYPES))
def test_any_bytes_can_be_redacted_once_and_for_all(body: bytes, content_type: str) -> None:
    kept = redact_body(body, content_type)
    kept.encode()
    if "[binary" not in kept:
        assert redact_body(kept.encode(), content_type) == kept


@given(st.binary(max_size=100), st.binary(max_size=100), st.integers(0, 2**40), st.sampled_from(TYPES), texts)
def test_any_body_with_a_gap_can_be_redacted(
    head: bytes, tail: bytes, missing: int, content_type: str, text: str
) -> None:
    redact_body(head, content_type, tail, missing).encode()
    redact_body(text.encode("utf-8", "replace") + head, content_type, tail, missing).encode()
    redact_body(head, text, tail, missing)


@given(
    st.recursive(scalars | st.binary(), lambda inner: st.lists(inner) | st.dictionaries(keys | st.integers(), inner))
)
def test_any_value_can_be_redacted_once_and_for_all(value: Any) -> None:
    redacted = redact_json(value)
    assert repr(redact_json(redacted)) == repr(redacted)


@given(st.text(st.characters()) | texts)
def test_any_text_can_be_redacted_once_and_for_all(text: str) -> None:
    for redact in (redact_text, redact_url):
        redacted = redact(text)
        assert redact(redacted) == redacted


@given(st.dictionaries(texts, texts, max_size=4))
def test_any_headers_can_be_redacted_once_and_for_all(headers: dict[str, str]) -> None:
    redacted = redact_headers(headers)
    assert redact_headers(redacted) == redacted


# --- no canary is left -------------------------------------------------------------------


@st.composite
def documents_with_a_canary(draw: st.DrawFn) -> Any:
    """A document with one secret somewhere in it: by its look, or under a sensitive key."""
    by_name = st.sampled_from(NAMES).map(
        lambda name: {name: draw(st.sampled_from(["canary", ["canary"], {"a": "canary"}]))}
    )
    document: Any = draw(st.sampled_from(LOOKS) | by_name | st.sampled_from(LOOKS).map(lambda look: {look: 1}))
    for _ in range(draw(st.integers(0, 5))):
        match draw(st.integers(0, 3)):
            case 0:
                document = {draw(st.sampled_from(ORDINARY_NAMES)): document, "other": draw(st.sampled_from(ORDINARY))}
            case 1:
                document = [draw(st.sampled_from(ORDINARY)), document]
            case 2:
                document = json.dumps(document, ensure_ascii=draw(st.booleans()))
            case _:
                document = [document, draw(scalars.filter(lambda value: CANARY not in str(value).lower()))]
    return document


def escape_some_letters(written: str, chance: random.Random) -> str:
    """The same JSON, in which some letters of its texts are escapes."""

    def escape(text: re.Match[str]) -> str:
        return re.sub(r"\\u....|\\.|[\x20-\x7e](?<![\"\\])", escape_letter, text[0])

    def escape_letter(letter: re.Match[str]) -> str:
        return f"\\u{ord(letter[0]):04x}" if len(letter[0]) == 1 and chance.random() < 0.2 else letter[0]

    return re.sub(r"\"(?:\\.|[^\"\\])*\"", escape, written)


@given(documents_with_a_canary(), st.booleans(), st.booleans(), line_ends, st.randoms(use_true_random=False))
def test_no_canary_is_left_of_any_document(
    document: Any, is_ascii: bool, is_escaped: bool, end: str, chance: random.Random
) -> None:
    written = json.dumps(document, ensure_ascii=is_ascii)
    written = escape_some_letters(written, chance) if is_escaped else written.replace("/", "\\/")
    assert json.loads(written) == document or document != document  # noqa: PLR0124 - NaN is not itself
    indented = json.dumps(document, indent=2).split("\n")
    assert CANARY not in json.dumps(redact_json(document)).lower()
    for body, content_type in (
        (written, "application/json"),
        (written + end, "application/x-ndjson"),
        (f"data:{written}{end}{end}", "text/event-stream"),
        (f"event: x{end}data: {written}{end}id: 1{end}{end}data: [DONE]{end}{end}", "text/event-stream"),
        ("".join(f"data: {line}{end}" for line in indented) + end, "text/event-stream"),
    ):
        assert CANARY not in redact_body(body.encode("utf-8", "replace"), content_type).lower(), body


@given(st.lists(documents_with_a_canary().map(json.dumps), min_size=1, max_size=4), st.data())
def test_no_canary_is_left_beside_a_gap(written: list[str], data: st.DataObject) -> None:
    for content_type in ("text/event-stream", "application/x-ndjson"):
        start, end = ("data: ", "\n\n") if "event" in content_type else ("", "\n")
        body = "".join(start + document + end for document in written).encode()
        first = data.draw(st.integers(1, len(body)))
        last = data.draw(st.integers(first, len(body)))
        kept = redact_body(body[:first], content_type, body[last:], last - first + 1)
        assert CANARY not in kept.lower()


# --- what is not looked at would not have been changed -----------------------------------


@given(texts)
@example("ſecret=abcdefgh")
@example("to\u212aen=abcdefgh")
def test_a_text_without_a_beginning_is_one_that_nothing_would_be_done_to(text: str) -> None:
    if not BEGINNINGS.are_in(text):
        looked_at = redact_text(f"{text}\n\nkey")
        assert looked_at == f"{text}\n\nkey"


@given(st.lists(fragments | st.text(max_size=2), max_size=5).map("".join))
def test_a_sensitive_name_holds_a_beginning(name: str) -> None:
    assert BEGINNINGS.are_in(name) or not is_secret_name(name)


def redact_line_slowly(line: str) -> str:
    value = json.loads(line)
    redacted = redact_json(value)
    return line if repr(redacted) == repr(value) else json.dumps(redacted, ensure_ascii=False)


def redact_stream_slowly(lines: list[str], end: str) -> str:
    return "".join(f"event: x{end}data: {redact_line_slowly(line)}{end}{end}" for line in lines)


@given(st.lists(documents.map(json.dumps), max_size=8), line_ends)
@example(["[" * 101 + "]" * 101, '{"a": 1}'], "\n")
@example(["[" * 101 + '"token"' + "]" * 101, "[NaN, 1e999, -0]"], "\r")
@example(['"\\u0130 sk-canarycanary"', '"İ"', '["https:\\/\\/u:p@h"]'], "\r\n")
def test_every_line_comes_out_as_if_each_were_parsed(lines: list[str], end: str) -> None:
    stream = "".join(f"event: x{end}data: {line}{end}{end}" for line in lines)
    assert redact_body(stream.encode(), "text/event-stream") == redact_stream_slowly(lines, end)
    rows = "".join(line + end for line in lines)
    assert redact_body(rows.encode(), "application/x-ndjson") == "".join(
        redact_line_slowly(line) + end for line in lines
    )


@given(st.lists(st.sampled_from(ORDINARY), max_size=8), line_ends, st.booleans())
def test_a_stream_in_which_nothing_is_hidden_is_kept_letter_by_letter(
    said: list[str], end: str, is_ascii: bool
) -> None:
    data = [
        json.dumps({"delta": {"text": text}, "usage": {"output_tokens": 3}}, ensure_ascii=is_ascii) for text in said
    ]
    stream = "".join(f"id: {number}{end}data: {line}{end}event: delta{end}{end}" for number, line in enumerate(data))
    assert redact_body(stream.encode(), "text/event-stream") == stream
