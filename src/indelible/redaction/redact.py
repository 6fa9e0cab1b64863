"""Bodies and headers as they may be kept: readable, and without secrets (SPEC 7.2, 7.3).

JSON is redacted by its structure (json.py), an event stream event by event, anything else by its looks
(patterns.py). JSON is known by its type, or by how it begins. If it can not be parsed, because it is broken, nested too
deeply or because its middle is missing, it is replaced by a note: it is never kept raw. A document that is there as a
whole, but is too large, is shortened and stays one (large.py); of other bodies that are too large both ends are kept.

A body in which nothing was hidden is kept as it came, letter by letter. So a line that holds none of the letters that a
secret begins with need not be parsed at all: the outcome is the same, and a stream of plain text costs next to nothing.

Redacting a body may take milliseconds, and is nothing for the event loop. What is redacted there, headers, addresses
and errors, is shortened first: `redact_headers`, `redact_address`, `redact_line`.

A secret that a model itself spells out over several events, a few letters in each, is in none of them and is not seen.

Must stay true (tests/redaction/test_redact.py, test_redact_property.py): no canary survives anywhere; usage counters
do; redacting twice is redacting once; nothing raises, whatever comes; no call keeps other threads waiting for long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from indelible.content.unicode import clean_text
from indelible.redaction.json import (
    MAX_DEPTH,
    SUSPICIOUS,
    begins_like_json,
    is_json,
    redact_data,
    redact_documents,
    redact_json,
    was_to_be_json,
)
from indelible.redaction.large import redact_large
from indelible.redaction.lines import split_lines
from indelible.redaction.names import is_secret_header, is_secret_name
from indelible.redaction.patterns import BEGINNINGS, REDACTED, redact_text, redact_url
from indelible.redaction.shorten import hide_known, note_missing, shorten_line

__all__ = [
    "GAP",
    "KEPT_BYTES",
    "REDACTED",
    "hide_known",
    "list_secrets",
    "redact_address",
    "redact_body",
    "redact_headers",
    "redact_json",
    "redact_line",
    "redact_text",
    "redact_url",
]

KEPT_BYTES: Final = 256 * 1024
"""So much of a body is kept, the first half of it and the last."""

GAP: Final = re.compile(r"^\[… [0-9,]+ bytes are missing here …\]$", re.MULTILINE)
"""The line that stands for the missing middle of a body; see `_mark`."""

_SHORTEST_SECRET: Final = 8
_LONGEST_WORD: Final = 20
_COOKIE_ATTRIBUTES: Final = frozenset({"path", "domain", "expires", "max-age", "samesite", "priority"})
_NEAR_LETTERS: Final = 4096
_CUT_LETTERS: Final = 512
"""Behind a gap in a line so long so much goes: a name, a sign and a value may stand there, and the name be cut."""

_LINE_ENDS: Final = ("\n", "\r\n", "\r")
_DATA: Final = re.compile(r"(?:\A|[\r\n])data:")
_DATA_OF_JSON: Final = re.compile(r"(?:\A|[\r\n])data: ?[{\[]")
_LINES_OF_JSON: Final = ("ndjson", "jsonl", "json-seq", "jsonlines", "json-stream", "stream+json")


# --- lines ---


def redact_line(text: str) -> str:
    """An error or another line that somebody waits for: shortened if it is long, and redacted."""
    return redact_text(shorten_line(text))


def redact_address(url: str) -> str:
    """An address that somebody waits for: shortened if it is long, and redacted."""
    return redact_url(shorten_line(url))


def redact_headers(headers: Mapping[str, str], secrets: Sequence[str] = ()) -> dict[str, str]:
    lines = [(shorten_line(name), shorten_line(value)) for name, value in headers.items()]
    suspicious = set(BEGINNINGS.find_holders([f"{name}: {value}" for name, value in lines]))
    redacted: dict[str, str] = {}
    for number, (name, value) in enumerate(lines):
        redact = redact_text if number in suspicious else str
        is_secret = bool(value) and is_secret_header(name)
        redacted[redact(name)] = REDACTED if is_secret else hide_known(redact(value), secrets)
    return redacted


def list_secrets(headers: Mapping[str, str]) -> list[str]:
    """What the sensitive headers of a request hold: a provider may repeat it, and no pattern need know its look."""
    words = (word for name, value in headers.items() if is_secret_header(name) for word in _list_words(name, value))
    return [word for word in dict.fromkeys(words) if _looks_random(word)]


def _looks_random(word: str) -> bool:
    """Whether it is no ordinary word: people who need no key say `anything`, and that is hidden nowhere but there."""
    if len(word) < _SHORTEST_SECRET or not any(map(str.isalpha, word)):
        return False
    is_mixed = any(map(str.islower, word)) and any(map(str.isupper, word[1:]))
    return is_mixed or len(word) >= _LONGEST_WORD or any(map(str.isdigit, word))


def _list_words(name: str, value: str) -> Iterator[str]:
    """The words of a header that are secrets. An ordinary word is one only if the name leaves no doubt."""
    if "cookie" in name.lower():
        for part in re.split(r"[;,]\s*", value):
            key, _, word = part.strip().partition("=")
            if key.lower() not in _COOKIE_ATTRIBUTES:
                yield word.strip('"')
        return
    word = value.rpartition(" ")[2]
    if is_secret_name(name) or not word.isalpha():
        yield word


# --- bodies ---


def redact_body(
    head: bytes, content_type: str, tail: bytes = b"", missing: int = 0, secrets: Sequence[str] = ()
) -> str:
    """A body as it may be kept, without these secrets either. If its middle is missing, `tail` is what followed."""
    media_type = content_type.partition(";")[0].strip().lower()
    size_bytes = len(head) + len(tail) + missing
    if not missing:
        head, tail = head + tail, b""
        if size_bytes > KEPT_BYTES:
            document = redact_large(head, KEPT_BYTES, secrets) if _may_be_document(head, media_type) else None
            if document is not None:
                return clean_text(hide_known(document, secrets))
            head, tail, missing = head[: KEPT_BYTES // 2], head[-(KEPT_BYTES // 2) :], size_bytes - KEPT_BYTES
    first = head.decode("utf-8-sig", "replace")
    last = tail.decode("utf-8", "replace")
    return clean_text(hide_known(_redact_any(first, last, missing, media_type, size_bytes), secrets))


def begins_like_document(body: bytes) -> bool:
    return body[:64].removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


def _may_be_document(body: bytes, media_type: str) -> bool:
    is_other = _is_binary(media_type) or any(kind in media_type for kind in _LINES_OF_JSON)
    return not is_other and begins_like_document(body)


def _redact_any(first: str, last: str, missing: int, media_type: str, size_bytes: int) -> str:
    if _is_binary(media_type) or "\0" in first or "\0" in last:
        return f"[binary, {size_bytes:,} bytes]"
    if any(kind in media_type for kind in _LINES_OF_JSON):
        return _redact_lines(_redact_rows, first, last, missing)
    is_called_json = "json" in media_type
    was_json = is_called_json or was_to_be_json(first)
    data = _DATA if "event-stream" in media_type else _DATA_OF_JSON
    if not was_json and (data.search(first) or data.search(last)):
        return _redact_lines(_redact_events, first, last, missing)
    if was_json or first.lstrip()[:1] in ("{", "["):
        redacted = None if missing else redact_data(first, is_suspicious=SUSPICIOUS.are_in(first))
        if redacted is None and not (missing or is_called_json):
            redacted = redact_documents(first)
        if redacted is not None:
            return redacted
    if was_json:
        return f"[not a JSON document that could be read, {size_bytes:,} bytes]"
    if "form-urlencoded" in media_type:
        return _redact_form(first, last, missing)
    return _redact_plain(first, last, missing)


def _is_binary(media_type: str) -> bool:
    kind, _, name = media_type.partition("/")
    return kind in ("image", "audio", "video", "font") or name in ("octet-stream", "vnd.amazon.eventstream")


def _mark(missing: int) -> str:
    return f"\n{note_missing(missing, 'bytes')}\n"


def _redact_form(first: str, last: str, missing: int) -> str:
    if not missing:
        return redact_url(f"?{first}")[1:]
    before, after = first.rpartition("&")[0], last.partition("&")[2]
    return redact_url(f"?{before}")[1:] + _mark(missing) + redact_url(f"?{after}")[1:]


def _redact_plain(first: str, last: str, missing: int) -> str:
    """Text. What is cut by the gap may be half a secret, so the line or word goes; so does a key's second half."""
    if not missing:
        return redact_text(first)
    before, after = _cut_lines(first, last)
    before = before or "".join(first.rsplit(maxsplit=1)[:-1])
    if not after or len(last) - len(after) > _NEAR_LETTERS:
        after = "".join(last[_CUT_LETTERS:].split(maxsplit=1)[1:])
        missing += len(last[: len(last) - len(after)].encode())
    ending = after.find("-----END ")
    if ending >= 0 and "-----BEGIN " not in after[:ending]:
        after = REDACTED + after[ending:].partition("\n")[2]
    return redact_text(before) + _mark(missing) + redact_text(after)


# --- event streams ---


def _redact_lines(redact: Callable[[str], Iterator[str]], first: str, last: str, missing: int) -> str:
    if not missing:
        return "".join(redact(first))
    before, after = _cut_lines(first, last)
    return "".join(redact(before)) + _mark(missing) + "".join(redact(after))


def _cut_lines(first: str, last: str) -> tuple[str, str]:
    """What stands before and after a gap, in whole lines: one that is cut by the gap is no line."""
    line_end = re.search(r"\r\n?|\n", last)
    return first[: max(first.rfind("\n"), first.rfind("\r")) + 1], last[line_end.end() :] if line_end else ""


def _redact_rows(text: str) -> Iterator[str]:
    for line, is_suspicious in split_lines(text, SUSPICIOUS):
        content = line.strip("\r\n\x1e")
        redacted = redact_data(content, is_suspicious=is_suspicious)
        yield (
            line if redacted == content else line.replace(content, _describe(content) if redacted is None else redacted)
        )


def _redact_events(text: str) -> Iterator[str]:
    """Events end with an empty line."""
    event: list[str] = []
    is_suspicious = False
    for line, is_line_suspicious in split_lines(text, SUSPICIOUS):
        event.append(line)
        is_suspicious |= is_line_suspicious
        if line in _LINE_ENDS:
            if not is_suspicious and _is_one_document(event):
                yield from event
            else:
                yield from _redact_event(event, is_suspicious=is_suspicious)
            event, is_suspicious = [], False
    yield from _redact_event(event, is_suspicious=is_suspicious)


def _is_one_document(event: list[str]) -> bool:
    """Whether it is as most are: a name, perhaps, and one line with one document of JSON."""
    if len(event) not in (2, 3) or (len(event) == 3 and event[0].startswith("data:")):
        return False
    data = event[-2]
    return data.startswith("data: {") and data.count("[") + data.count("{") <= MAX_DEPTH and is_json(data[6:])


def _redact_event(lines: list[str], *, is_suspicious: bool) -> Iterator[str]:
    data = [line[5:].rstrip("\r\n").removeprefix(" ") for line in lines if line.startswith("data:")]
    redacted = _redact_lines_of_data(data, is_suspicious=is_suspicious)
    is_same = redacted in (data, ["\n".join(data)])
    documents = iter(redacted)
    for line in lines:
        if not line.startswith("data:"):
            yield redact_text(line) if is_suspicious else line
        elif is_same:
            yield line
        elif (document := next(documents, None)) is not None:
            yield f"data: {document}" + line[len(line.rstrip("\r\n")) :]


def _redact_lines_of_data(data: list[str], *, is_suspicious: bool) -> list[str]:
    """The data of one event: one document; or, from those who forget the empty lines, one on each line.

    What was to be JSON and is none goes; words may stay.
    """
    whole = "\n".join(data)
    if not any(begins_like_json(line) for line in data):
        return redact_text(whole).split("\n") if is_suspicious else data
    for documents in ([whole], data):
        redacted = [redact_data(document, is_suspicious=is_suspicious) for document in documents]
        known = [document for document in redacted if document is not None]
        if len(known) == len(documents):
            return known
    return [_describe(whole)]


def _describe(text: str) -> str:
    return f"[not JSON, {len(text.encode('utf-8', 'replace')):,} bytes]"
