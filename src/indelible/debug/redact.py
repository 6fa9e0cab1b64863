"""Bodies and headers as they may be kept: readable, and without secrets (SPEC 7.2, 7.3).

JSON is redacted by its structure: whatever stands under a sensitive key goes, and every text is looked at for what
looks like a secret (secrets.py), the keys themselves and JSON inside of texts included (the arguments of a tool call
are such). An event stream is redacted event by event. What can not be parsed, because it is broken, because it is
nested too deeply or because its middle is missing, is replaced by a note: it is never kept raw.

A body in which nothing was hidden is kept as it came, letter by letter. So a line that holds none of the letters that a
secret begins with need not be parsed at all: the outcome is the same, and a stream of plain text costs next to nothing.

A secret that a model itself spells out over several events, a few letters in each, is in none of them and is not seen.

Must stay true (tests/debug/test_redact.py, test_redact_property.py): no canary survives anywhere; usage counters do;
redacting twice is redacting once; nothing raises, whatever comes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from indelible.debug.lines import split_lines
from indelible.debug.secrets import BEGINNINGS, REDACTED, is_secret_header, is_secret_name, redact_text, redact_url
from indelible.surrogates import clean_text

__all__ = [
    "GAP",
    "REDACTED",
    "hide_known",
    "list_secrets",
    "redact_body",
    "redact_headers",
    "redact_json",
    "redact_text",
    "redact_url",
]

GAP: Final = re.compile(r"^\[… [0-9,]+ bytes are missing here …\]$", re.MULTILINE)
"""The line that stands for the missing middle of a body; see `_mark`."""

_SHORTEST_SECRET: Final = 8
_MAX_DEPTH: Final = 100
"""Of everything together: a text in a document is one deeper than the document, and so is a document in the text."""

_TOO_DEEP: Final = f"{REDACTED}: nested too deeply"
_LINE_ENDS: Final = ("\n", "\r\n", "\r")
_DATA: Final = re.compile(r"(?:\A|[\r\n])data:")
_DATA_OF_JSON: Final = re.compile(r"(?:\A|[\r\n])data: ?[{\[]")
_NO_JSON: Final = re.compile(r"|\[(?:DONE|not [A-Za-z ]+, [0-9,]+ bytes|… [0-9,]+ bytes are missing here …)\]")
_LINES_OF_JSON: Final = ("ndjson", "jsonl", "json-seq", "jsonlines", "json-stream", "stream+json")
_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode
_SUSPICIOUS: Final = (*BEGINNINGS, "\\u")
"""In lower case: what a secret or a sensitive name begins with; and escapes, which may spell anything."""


def redact_headers(headers: Mapping[str, str], secrets: Sequence[str] = ()) -> dict[str, str]:
    return {
        redact_text(name): REDACTED if value and is_secret_header(name) else hide_known(redact_text(value), secrets)
        for name, value in headers.items()
    }


def list_secrets(headers: Mapping[str, str]) -> list[str]:
    """What the sensitive headers of a request hold: a provider may repeat it, and no pattern need know its look."""
    words = [value.rpartition(" ")[2] for name, value in headers.items() if is_secret_header(name)]
    return [word for word in words if len(word) >= _SHORTEST_SECRET]


def hide_known(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return text


# --- JSON ---


class _Pairs(list[tuple[str, Any]]):
    """An object with all its pairs: a key may come twice, and the second one does not unsay the first."""


def redact_json(value: Any) -> Any:
    """A JSON value without secrets. What is under a sensitive key goes, unless it says nothing: null, true, empty."""
    try:
        return _redact(value, depth=0)
    except RecursionError:
        return _TOO_DEEP


def _redact(value: Any, *, depth: int) -> Any:
    if isinstance(value, str):
        return _redact_string(value, depth=depth)
    if not isinstance(value, dict | list | tuple):
        return value
    if depth >= _MAX_DEPTH and value:
        return _TOO_DEEP
    if isinstance(value, _Pairs):
        return _Pairs(_redact_pair(key, item, depth=depth) for key, item in value)
    if isinstance(value, dict):
        return dict(_redact_pair(str(key), item, depth=depth) for key, item in value.items())
    return [_redact(item, depth=depth + 1) for item in value]


def _redact_pair(key: str, item: Any, *, depth: int) -> tuple[str, Any]:
    name = redact_text(key)
    if is_secret_name(key) and not _says_nothing(name, item):
        return name, REDACTED
    return name, _redact(item, depth=depth + 1)


def _says_nothing(name: str, item: Any) -> bool:
    is_counter = isinstance(item, int | float) and "token" in name.lower()
    return is_counter or item is None or isinstance(item, bool) or item in ("", [], {}, REDACTED)


def _redact_string(text: str, *, depth: int) -> str:
    if not _is_suspicious(text):
        return text
    redacted = _redact_document(text, depth=depth + 1) if _begins_like_json(text) else None
    return redact_text(text) if redacted is None else redacted


def _begins_like_json(text: str) -> bool:
    return text.lstrip().removeprefix(REDACTED)[:1] in ("{", "[", '"')


def _is_suspicious(text: str) -> bool:
    """Whether it may hold anything to hide."""
    lowered = text.lower()
    return any(part in lowered for part in _SUSPICIOUS)


def _redact_document(text: str, *, depth: int = 0) -> str | None:
    """A JSON document, redacted; as it came if there was nothing to hide; None if it is no JSON."""
    try:
        value = json.loads(text, object_pairs_hook=_Pairs)
        redacted = _redact(value, depth=depth)
        return text if redacted == value else json.dumps(_to_plain(redacted), ensure_ascii=False)
    except ValueError:
        return None
    except RecursionError:
        return json.dumps(_TOO_DEEP)


def _keep_json(text: str) -> str | None:
    """The text if it is JSON. msgspec is quick to see that, and has a stricter notion of it than we."""
    try:
        _check_json(text)
    except msgspec.DecodeError:
        return _redact_document(text)
    return text


def _redact_data(text: str, *, is_suspicious: bool) -> str | None:
    """What should be a JSON document, redacted; None if it is none. `[DONE]`, a note and nothing may stand for one."""
    if _NO_JSON.fullmatch(text.strip()):
        return text
    may_change = is_suspicious or text.count("[") + text.count("{") > _MAX_DEPTH
    return _redact_document(text) if may_change else _keep_json(text)


def _to_plain(value: Any) -> Any:
    """Of a key that comes twice the last one is written, as a reader would have read it."""
    if isinstance(value, _Pairs):
        return {key: _to_plain(item) for key, item in value}
    return [_to_plain(item) for item in value] if isinstance(value, list) else value


# --- bodies ---


def redact_body(head: bytes, content_type: str, tail: bytes = b"", missing: int = 0) -> str:
    """A body as it may be kept. If its middle is missing, `tail` is what followed."""
    if not missing:
        head, tail = head + tail, b""
    first = head.decode("utf-8-sig", "replace")
    last = tail.decode("utf-8", "replace")
    size_bytes = len(head) + len(tail) + missing
    return clean_text(_redact_any(first, last, missing, content_type.partition(";")[0].strip().lower(), size_bytes))


def _redact_any(first: str, last: str, missing: int, media_type: str, size_bytes: int) -> str:
    if _is_binary(media_type) or "\0" in first or "\0" in last:
        return f"[binary, {size_bytes:,} bytes]"
    if any(kind in media_type for kind in _LINES_OF_JSON):
        return _redact_lines(_redact_rows, first, last, missing)
    data = _DATA if "event-stream" in media_type else _DATA_OF_JSON
    if "json" not in media_type and (data.search(first) or data.search(last)):
        return _redact_lines(_redact_events, first, last, missing)
    if "json" in media_type or first.lstrip()[:1] in ("{", "["):
        redacted = None if missing else _redact_data(first, is_suspicious=_is_suspicious(first))
        if redacted is not None or "json" in media_type:
            return f"[not a JSON document that could be read, {size_bytes:,} bytes]" if redacted is None else redacted
    if "form-urlencoded" in media_type:
        return _redact_form(first, last, missing)
    return _redact_plain(first, last, missing)


def _is_binary(media_type: str) -> bool:
    kind, _, name = media_type.partition("/")
    return kind in ("image", "audio", "video", "font") or name in ("octet-stream", "vnd.amazon.eventstream")


def _mark(missing: int) -> str:
    return f"\n[… {missing:,} bytes are missing here …]\n"


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
    after = after or "".join(last.split(maxsplit=1)[1:])
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
    for line, is_suspicious in split_lines(text, _SUSPICIOUS):
        content = line.strip("\r\n\x1e")
        redacted = _redact_data(content, is_suspicious=is_suspicious)
        yield (
            line if redacted == content else line.replace(content, _describe(content) if redacted is None else redacted)
        )


def _redact_events(text: str) -> Iterator[str]:
    """Events end with an empty line."""
    event: list[str] = []
    is_suspicious = False
    for line, is_line_suspicious in split_lines(text, _SUSPICIOUS):
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
    if not data.startswith("data: {") or data.count("[") + data.count("{") > _MAX_DEPTH:
        return False
    try:
        _check_json(data[6:])
    except msgspec.DecodeError:
        return False
    return True


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
    if not any(_begins_like_json(line) for line in data):
        return redact_text(whole).split("\n") if is_suspicious else data
    for documents in ([whole], data):
        redacted = [_redact_data(document, is_suspicious=is_suspicious) for document in documents]
        known = [document for document in redacted if document is not None]
        if len(known) == len(documents):
            return known
    return [_describe(whole)]


def _describe(text: str) -> str:
    return f"[not JSON, {len(text.encode('utf-8', 'replace')):,} bytes]"
