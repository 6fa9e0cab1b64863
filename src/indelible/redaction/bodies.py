"""Redacted bodies: readable, at most 256 KiB, and without the secrets that we can name (rules 7.2 and 7.3).

JSON is redacted by its structure (json.py), an event stream event by event, a form by the names of its fields; of any
other text the known secrets are hidden. JSON is recognised by its type or by how it begins. If it cannot be parsed it
is replaced by a note with its size: it is never kept raw. Plain text is kept, because it is what people and models
wrote, and that stands in the messages of the same database (patterns.py has what is hidden when it is shown).

Of a body that is too large both ends are kept, with a line between them; a JSON document is shortened instead and stays
one. Beside a gap a line could be half a line and a word half a secret, so cut lines go, and so many characters of the
edges as the longest known secret has.

Redacting a body may take milliseconds, so it must not run on the event loop.

Must stay true (tests/redaction/test_bodies.py, test_redaction_property.py): no canary survives; a body in which nothing
is hidden is kept character by character; redacting twice is redacting once; nothing raises, whatever comes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from indelible.content.unicode import clean_text
from indelible.redaction.headers import note_missing, redact_addresses
from indelible.redaction.json import is_harmless, redact_document, shorten_document
from indelible.redaction.known import NO_SECRETS, KnownSecrets
from indelible.redaction.patterns import REDACTED

KEPT_BYTES: Final = 256 * 1024
"""So much of a body is kept: the first half of it and the last."""

MAX_WHOLE_BYTES: Final = 16 * 1024 * 1024
"""A JSON document that is not larger is parsed as a whole; of a larger one the beginning is kept."""

GAP: Final = re.compile(r"^\[… [0-9,]+ bytes are missing here …\]$", re.MULTILINE)
"""The line that stands for the missing middle of a body."""

_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_DATA: Final = re.compile(r"(?:\A|[\r\n])data:")
_DATA_OF_JSON: Final = re.compile(r"(?:\A|[\r\n])data: ?[{\[]")
_ROWS: Final = ("ndjson", "jsonl", "json-seq", "jsonlines", "json-stream", "stream+json")
_TO_BE_JSON: Final = re.compile(r"\s*+(?:\{\s*+(?:\"|\}\s*+[{\[])|(?:\[\s*+)++(?:\{\s*+[\"}]|\"))")
"""As no text begins that is no document: a text may begin with `[INFO]`, `[1]`, `[[a page]]`, `{name}` or `{{`."""

_NO_JSON: Final = re.compile(r"|\[(?:DONE|not [A-Za-z ]+, [0-9,]+ bytes|… [0-9,]+ bytes are missing here …)\]")
"""What may stand where JSON is expected: nothing, the end of a stream, and our own notes."""


def redact_body(
    head: bytes, content_type: str, tail: bytes = b"", missing: int = 0, known: KnownSecrets = NO_SECRETS
) -> str:
    """A body as it may be kept. If its middle is missing, `tail` is what followed."""
    media_type = content_type.partition(";")[0].strip().lower()
    size_bytes = len(head) + len(tail) + missing
    if not missing:
        head, tail = head + tail, b""
    if size_bytes > KEPT_BYTES or missing:
        if _may_be_document(head, media_type):
            is_whole = not missing and size_bytes <= MAX_WHOLE_BYTES
            document = shorten_document(head, KEPT_BYTES, known, is_whole=is_whole)
            if document is not None:
                return clean_text(document)
        if not missing:
            head, tail, missing = head[: KEPT_BYTES // 2], head[-(KEPT_BYTES // 2) :], size_bytes - KEPT_BYTES
    first, last = head.decode("utf-8-sig", "replace"), tail.decode("utf-8", "replace")
    if _is_binary(media_type) or "\0" in first or "\0" in last:
        return f"[binary, {size_bytes:,} bytes]"
    if missing:
        first, last = known.hide(first)[: -known.margin or None], known.hide(last)[known.margin :]
    redact = _choose(first, last, media_type)
    text: str | None
    if redact is not None:
        text = _redact_ends(redact, first, last, missing, known)
    else:
        text = _redact_text(first, last, missing, known, is_called_json="json" in media_type)
    return f"[not a JSON document that could be read, {size_bytes:,} bytes]" if text is None else clean_text(text)


def begins_like_document(body: bytes) -> bool:
    return body[:64].removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


def _may_be_document(body: bytes, media_type: str) -> bool:
    is_other = _is_binary(media_type) or any(kind in media_type for kind in _ROWS)
    return not is_other and begins_like_document(body)


def _is_binary(media_type: str) -> bool:
    kind, _, name = media_type.partition("/")
    return kind in ("image", "audio", "video", "font") or name in ("octet-stream", "vnd.amazon.eventstream")


_Redact = Callable[[str, KnownSecrets], str]


def _choose(first: str, last: str, media_type: str) -> _Redact | None:
    """How a body of many parts is redacted; None if it is a document or plain text."""
    if any(kind in media_type for kind in _ROWS):
        return _redact_rows
    if "form-urlencoded" in media_type:
        return _redact_form
    if "json" in media_type or _TO_BE_JSON.match(first):
        return None
    data = _DATA if "event-stream" in media_type else _DATA_OF_JSON
    return _redact_events if data.search(first) or data.search(last) else None


def _redact_text(first: str, last: str, missing: int, known: KnownSecrets, *, is_called_json: bool) -> str | None:
    """A document or plain text; None if it should be JSON and is not."""
    was_json = is_called_json or _TO_BE_JSON.match(first) is not None
    if not missing and (was_json or first.lstrip()[:1] in ("{", "[")):
        redacted = _redact_data(first, known)
        if redacted is not None:
            return redacted
    if was_json:
        return None
    return _redact_ends(lambda text, known: known.hide(text), first, last, missing, known)


def _redact_ends(redact: _Redact, first: str, last: str, missing: int, known: KnownSecrets) -> str:
    if not missing:
        return redact(first, known)
    head = first[: max(first.rfind("\n"), first.rfind("\r")) + 1]
    line_end = re.search(r"\r\n?|\n", last)
    tail = last[line_end.end() :] if line_end else ""
    if redact not in (_redact_events, _redact_rows):  # text may be one long line, and is then cut anywhere
        head, tail = head or first, tail or last
    if redact is _redact_form:
        head, tail = first.rpartition("&")[0], last.partition("&")[2]
    return f"{redact(head, known)}\n{note_missing(missing, 'bytes')}\n{redact(tail, known)}"


def _redact_form(text: str, known: KnownSecrets) -> str:
    return redact_addresses(f"?{known.hide(text)}")[1:]


# --- streams ---


def _redact_rows(text: str, known: KnownSecrets) -> str:
    return "".join(_redact_row(line, known) for line in _LINE.findall(text))


def _redact_row(line: str, known: KnownSecrets) -> str:
    content = line.strip("\r\n\x1e")
    redacted = _redact_data(content, known)
    return line.replace(content, _describe(content) if redacted is None else redacted) if content else line


def _redact_events(text: str, known: KnownSecrets) -> str:
    """Known secrets may stand in any field; documents stand in the data of an event, which an empty line ends."""
    return "".join(_redact_each_event(known.hide(text), known))


def _redact_each_event(text: str, known: KnownSecrets) -> Iterator[str]:
    event: list[str] = []
    for line in _LINE.findall(text):
        event.append(line)
        if line[0] in "\r\n":
            yield from _redact_event(event, known)
            event = []
    yield from _redact_event(event, known)


def _redact_event(lines: list[str], known: KnownSecrets) -> Iterator[str]:
    data = [line[5:].strip("\r\n").removeprefix(" ") for line in lines if line.startswith("data:")]
    redacted = _redact_lines_of_data(data, known)
    if redacted is None:
        yield from lines
        return
    documents = iter(redacted)
    for line in lines:
        if not line.startswith("data:"):
            yield line
        elif (document := next(documents, None)) is not None:
            yield f"data: {document}" + line[len(line.rstrip("\r\n")) :]


def _redact_lines_of_data(data: list[str], known: KnownSecrets) -> list[str] | None:
    """The data of one event; None if nothing is hidden.

    It is one document; or, if the sender forgets the empty lines, one on each line. Malformed JSON is replaced.
    """
    if len(data) == 1 and is_harmless(data[0]):
        return None
    if not any(line.lstrip().removeprefix(REDACTED)[:1] in ("{", "[", '"') for line in data):
        return None
    whole = "\n".join(data)
    for documents in ([whole], data):
        redacted = [document for document in (_redact_data(each, known) for each in documents) if document is not None]
        if len(redacted) == len(documents):
            return None if redacted == documents else redacted
    return [_describe(whole)]


def _redact_data(text: str, known: KnownSecrets) -> str | None:
    return text if _NO_JSON.fullmatch(text.strip()) else redact_document(text, known)


def _describe(text: str) -> str:
    return f"[not JSON, {len(text.encode('utf-8', 'replace')):,} bytes]"
