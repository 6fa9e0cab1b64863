"""Redaction of anything: nothing raises, no kestrel is left, and what is not parsed would not have been changed."""

from __future__ import annotations

import json
import random
import re
from typing import Any, Final

from hypothesis import example, given
from hypothesis import strategies as st
from tests.recording.canaries import KESTREL, LOOKS, NAMES, ORDINARY, ORDINARY_NAMES

from indelible.redaction.redact import redact_body, redact_json
from indelible.redaction.secrets import NAME_PARTS, KnownSecrets, is_secret_name

KNOWN: Final = KnownSecrets(["kestrel0/KESTREL"])
TYPES: Final = (
    *("text/event-stream", "application/json", "application/x-ndjson", "application/json-seq", "text/plain", ""),
    *("application/x-www-form-urlencoded", "text/html; charset=latin-1", "image/png", "application/octet-stream"),
)
PIECES: Final = (
    *("=", ":", ": ", " = ", '"', "'", "\\", "/", "?", "&", "#", ";", "@", "%", "+", " ", "\n", "\r\n", ",", "."),
    *("{", "}", "[", "]", "(", ")", "data:", "data: ", "event: x", "[DONE]", "\\n", "\\u0073", "%73", "://", "é", "密"),
    *("x1", "aB", "0", "İ", "kestrel0/KESTREL"),
)

fragments = st.sampled_from((*NAME_PARTS, *NAMES, *ORDINARY_NAMES, *LOOKS, *PIECES))
texts = (
    st.lists(fragments | st.text(max_size=3), max_size=12).map("".join)
    | st.sampled_from(ORDINARY)
    | st.text(max_size=30)
)
keys = st.sampled_from((*NAMES, *ORDINARY_NAMES)) | texts
scalars = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | texts
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
line_ends = st.sampled_from(["\n", "\r\n", "\r"])


# --- nothing raises ----------------------------------------------------------------------


@given(st.binary(max_size=200) | texts.map(lambda text: text.encode("utf-8", "surrogatepass")), st.sampled_from(TYPES))
def test_any_bytes_can_be_redacted_once_and_for_all(body: bytes, content_type: str) -> None:
    kept = redact_body(body, content_type, known=KNOWN)
    kept.encode()
    if "[binary" not in kept:
        assert redact_body(kept.encode(), content_type, known=KNOWN) == kept


@given(st.binary(max_size=100), st.binary(max_size=100), st.integers(0, 2**40), st.sampled_from(TYPES), texts)
def test_any_body_with_a_gap_can_be_redacted(
    head: bytes, tail: bytes, missing: int, content_type: str, text: str
) -> None:
    redact_body(head, content_type, tail, missing, KNOWN).encode()
    redact_body(text.encode("utf-8", "replace") + head, content_type, tail, missing).encode()
    redact_body(head, text, tail, missing)


@given(documents)
def test_any_value_can_be_redacted_once_and_for_all(value: Any) -> None:
    redacted = redact_json(value, KNOWN)
    assert repr(redact_json(redacted, KNOWN)) == repr(redacted)


# --- no kestrel is left ------------------------------------------------------------------


@st.composite
def documents_with_a_secret(draw: st.DrawFn) -> Any:
    """A document with one secret somewhere in it: a known one, or one under a sensitive key."""
    value = st.sampled_from(["kestrel", ["kestrel"], {"a": "kestrel"}])
    by_name = st.builds(lambda name, hidden: {name: hidden}, st.sampled_from(NAMES), value)
    document: Any = draw(by_name | st.sampled_from(["kestrel0/KESTREL", {"see kestrel0/KESTREL": 1}]))
    for _ in range(draw(st.integers(0, 5))):
        match draw(st.integers(0, 3)):
            case 0:
                document = {draw(st.sampled_from(ORDINARY_NAMES)): document, "other": draw(st.sampled_from(ORDINARY))}
            case 1:
                document = [draw(st.sampled_from(ORDINARY)), document]
            case 2:
                document = json.dumps(document, ensure_ascii=draw(st.booleans()))
            case _:
                document = [document, draw(scalars)]
    return document


def escape_some_letters(written: str, chance: random.Random) -> str:
    """The same JSON, in which some letters of its texts are escapes."""

    def escape(text: re.Match[str]) -> str:
        return re.sub(r"\\u....|\\.|[\x20-\x7e](?<![\"\\])", escape_letter, text[0])

    def escape_letter(letter: re.Match[str]) -> str:
        return f"\\u{ord(letter[0]):04x}" if len(letter[0]) == 1 and chance.random() < 0.2 else letter[0]

    return re.sub(r"\"(?:\\.|[^\"\\])*\"", escape, written)


@given(documents_with_a_secret(), st.booleans(), st.booleans(), line_ends, st.randoms(use_true_random=False))
def test_no_kestrel_is_left_of_any_document(
    document: Any, is_ascii: bool, is_escaped: bool, end: str, chance: random.Random
) -> None:
    written = json.dumps(document, ensure_ascii=is_ascii)
    written = escape_some_letters(written, chance) if is_escaped else written.replace("/", "\\/")
    indented = json.dumps(document, indent=2).split("\n")
    assert KESTREL not in json.dumps(redact_json(document, KNOWN)).lower()
    for body, content_type in (
        (written, "application/json"),
        (written + end, "application/x-ndjson"),
        (f"data:{written}{end}{end}", "text/event-stream"),
        (f"event: x{end}data: {written}{end}id: 1{end}{end}data: [DONE]{end}{end}", "text/event-stream"),
        ("".join(f"data: {line}{end}" for line in indented) + end, "text/event-stream"),
    ):
        kept = redact_body(body.encode("utf-8", "replace"), content_type, known=KNOWN)
        assert KESTREL not in kept.lower(), body


@given(st.lists(documents_with_a_secret().map(json.dumps), min_size=1, max_size=4), st.data())
def test_no_kestrel_is_left_beside_a_gap(written: list[str], data: st.DataObject) -> None:
    for content_type in ("text/event-stream", "application/x-ndjson"):
        start, end = ("data: ", "\n\n") if "event" in content_type else ("", "\n")
        body = "".join(start + document + end for document in written).encode()
        first = data.draw(st.integers(1, len(body)))
        last = data.draw(st.integers(first, len(body)))
        kept = redact_body(body[:first], content_type, body[last:], last - first + 1, KNOWN)
        assert KESTREL not in kept.lower()


# --- what is not parsed would not have been changed --------------------------------------


@given(st.lists(fragments | st.text(max_size=2), max_size=5).map("".join))
def test_a_sensitive_name_holds_one_of_the_parts_that_are_searched_first(name: str) -> None:
    assert any(part in name.lower() for part in NAME_PARTS) or not is_secret_name(name)


def redact_line_slowly(line: str) -> str:
    value = json.loads(line)
    redacted = redact_json(value, KNOWN)
    return line if repr(redacted) == repr(value) else json.dumps(redacted, ensure_ascii=False)


@given(st.lists(documents.map(json.dumps), max_size=8), line_ends)
@example(["[" * 90 + '"token"' + "]" * 90, "[NaN, 1e999, -0]"], "\r")
@example(['"\\u0130 secret"', '"İ"', '["https:\\/\\/u:p@h"]'], "\r\n")
def test_every_line_comes_out_as_if_each_were_parsed(lines: list[str], end: str) -> None:
    plain = [
        line for line in lines if "kestrel" not in line.lower()
    ]  # of which known secrets are hidden before parsing
    stream = "".join(f"event: x{end}data: {line}{end}{end}" for line in plain)
    slowly = "".join(f"event: x{end}data: {redact_line_slowly(line)}{end}{end}" for line in plain)
    assert redact_body(stream.encode(), "text/event-stream", known=KNOWN) == slowly


@given(st.lists(st.sampled_from((*ORDINARY, *LOOKS)), max_size=8), line_ends, st.booleans())
def test_a_stream_in_which_nothing_is_hidden_is_kept_letter_by_letter(
    said: list[str], end: str, is_ascii: bool
) -> None:
    data = [
        json.dumps({"delta": {"text": text}, "usage": {"output_tokens": 3}}, ensure_ascii=is_ascii) for text in said
    ]
    stream = "".join(f"id: {number}{end}data: {line}{end}event: delta{end}{end}" for number, line in enumerate(data))
    assert redact_body(stream.encode(), "text/event-stream", known=KNOWN) == stream
