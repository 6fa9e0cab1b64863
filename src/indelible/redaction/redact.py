"""Bodies, headers and errors as they may be kept: readable, bounded, and without the secrets that we can name.

*Bodies* (rules 7.2 and 7.3) are at most 256 KiB. JSON is redacted by its structure, an event stream event by event, a
form by the names of its fields; of any other text the known secrets are hidden. JSON is recognised by its type or by
how it begins. If it cannot be parsed it is replaced by a note with its size: it is never kept raw. Plain text is kept,
because it is what people and models wrote, and that stands in the messages of the same database (secrets.py has what is
hidden when it is shown). Redacting a body may take milliseconds, so it must not run on the event loop.

*Documents.* What stands under a sensitive key is hidden at any depth, in the JSON within texts too (the arguments of a
tool call are such), and known secrets are hidden after decoding, so no escape can spell one. A document in which
nothing was hidden is kept as it came, character by character. That is why most of a stream need not be parsed: text
that holds no part of a sensitive name and no escape stays as it is.

*Too large.* Half a document is none. One that is too large is parsed, redacted and then shortened where it hurts least:
long texts, lists and objects lose their middle, and a note stands in its place. The limits are lowered until it fits.
If only the beginning of it is there, that is completed to a document first. Of any other body both ends are kept, with
a line between them. Beside that gap a line could be half a line and a word half a secret, so cut lines go, and so many
characters of the edges as the longest known secret has.

*Lines.* A header is hidden by its name. Elsewhere the name and password of an address go, and the values of its
sensitive parameters: in the address itself, in a `Location`, and in errors, which like to repeat an address. Text
longer than 4 KiB is cut at the end of a word, and a note says how much is missing; of an address, which is one word,
whole parts are kept.

Must stay true (tests/redaction/): no canary survives at any depth, counters of usage and rate limits do; what holds
nothing to hide is kept character by character; redacting twice is redacting once; nothing raises, whatever comes; any
document fits after shortening, and no half of a word is left where a line is cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final

import msgspec
from pydantic_core import from_json

from indelible.content.unicode import clean_text
from indelible.redaction.secrets import (
    NAME_PARTS,
    NO_SECRETS,
    REDACTED,
    KnownSecrets,
    is_secret_header,
    is_secret_name,
    is_secret_parameter,
)

KEPT_BYTES: Final = 256 * 1024
"""So much of a body is kept: the first half of it and the last."""

MAX_WHOLE_BYTES: Final = 16 * 1024 * 1024
"""A JSON document that is not larger is parsed as a whole; of a larger one the beginning is kept."""

GAP: Final = re.compile(r"^\[… [0-9,]+ bytes are missing here …\]$", re.MULTILINE)
"""The line that stands for the missing middle of a body."""

_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_DATA: Final = re.compile(r"(?:\A|[\r\n])data:")
_DATA_OF_JSON: Final = re.compile(r"(?:\A|[\r\n])data: ?[{\[]")
_TO_BE_JSON: Final = re.compile(r"\s*+(?:\{\s*+(?:\"|\}\s*+[{\[])|(?:\[\s*+)++(?:\{\s*+[\"}]|\"))")
"""As no text begins that is no document: a text may begin with `[INFO]`, `[1]`, `[[a page]]`, `{name}` or `{{`."""

_NO_JSON: Final = re.compile(r"|\[(?:DONE|not [A-Za-z ]+, [0-9,]+ bytes|… [0-9,]+ bytes are missing here …)\]")
"""What may stand where JSON is expected: nothing, the end of a stream, and our own notes."""


# --- bodies ---


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
    return not _is_binary(media_type) and begins_like_document(body)


def _is_binary(media_type: str) -> bool:
    kind, _, name = media_type.partition("/")
    return kind in ("image", "audio", "video", "font") or name in ("octet-stream", "vnd.amazon.eventstream")


_Redact = Callable[[str, KnownSecrets], str]


def _choose(first: str, last: str, media_type: str) -> _Redact | None:
    """How a body of many parts is redacted; None if it is a document or plain text."""
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
    if redact is not _redact_events:  # text may be one long line, and is then cut anywhere
        head, tail = head or first, tail or last
    if redact is _redact_form:
        head, tail = first.rpartition("&")[0], last.partition("&")[2]
    return f"{redact(head, known)}\n{note_missing(missing, 'bytes')}\n{redact(tail, known)}"


def _redact_form(text: str, known: KnownSecrets) -> str:
    return redact_addresses(f"?{known.hide(text)}")[1:]


# --- event streams ---


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


# --- documents ---

MAX_DEPTH: Final = 100
TOO_DEEP: Final = f"{REDACTED}: nested too deeply"
_SUSPICIOUS: Final = (*NAME_PARTS, "\\u", "\\/")
_OPENING: Final = frozenset('{["')
_CLOSING: Final = frozenset('}]"')
_CREDENTIAL_TOKENS: Final = ("access", "refresh", "auth", "api", "session", "bearer", "csrf")
_LIMITS: Final = (
    *((1 << 30, 1 << 30, MAX_DEPTH), (65536, 1 << 30, MAX_DEPTH), (16384, 1024, MAX_DEPTH), (4096, 256, MAX_DEPTH)),
    *((2048, 64, MAX_DEPTH), (1024, 16, 20), (256, 8, 8), (64, 4, 6), (32, 4, 4)),
)
"""How many characters a text may have, how many items a list or an object, and how deep they may be nested."""

_is_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


def is_harmless(text: str) -> bool:
    """Whether this is a document with nothing to hide, once the known secrets are gone. It is not parsed for that."""
    lowered = text.lower()
    return not any(part in lowered for part in _SUSPICIOUS) and is_json(text)


def redact_document(text: str, known: KnownSecrets = NO_SECRETS, *, depth: int = 0) -> str | None:
    """A JSON document, redacted; as it came if there was nothing to hide; None if it is no JSON."""
    text = known.hide(text)
    if is_harmless(text):
        return text
    try:
        document = _Document(text)
        redacted = redact_json(document.value, known, depth=depth)
    except ValueError:
        return None
    except RecursionError:
        return json.dumps(TOO_DEEP)
    is_same = redacted == document.value and not document.has_duplicates
    return text if is_same else json.dumps(redacted, ensure_ascii=False)


def redact_json(value: Any, known: KnownSecrets = NO_SECRETS, *, depth: int = 0) -> Any:
    """A JSON value without secrets. What says nothing (null, false, empty) stays under a sensitive key."""
    if isinstance(value, str):
        return _redact_string(value, known, depth=depth)
    if not isinstance(value, dict | list):
        return value
    if depth >= MAX_DEPTH and value:
        return TOO_DEEP
    if isinstance(value, list):
        return [redact_json(item, known, depth=depth + 1) for item in value]
    return {
        known.hide(key): REDACTED if _is_secret(key, item) else redact_json(item, known, depth=depth + 1)
        for key, item in value.items()
    }


def is_json(text: str) -> bool:
    try:
        _is_json(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True


class _Document:
    """A document, and whether a key comes twice in one of its objects: then the text holds more than the value."""

    def __init__(self, text: str) -> None:
        self.has_duplicates = False
        self.value = json.loads(text, object_pairs_hook=self._make_object)

    def _make_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """A function of ours is called for each object: between the calls other threads get their turn."""
        made = dict(pairs)
        self.has_duplicates |= len(made) < len(pairs)
        return made


def _is_secret(key: str, item: Any) -> bool:
    if item is None or isinstance(item, bool) or item in ("", [], {}, REDACTED) or not is_secret_name(key):
        return False
    lowered = key.lower()
    is_counter = isinstance(item, int | float) and "token" in lowered
    return not is_counter or (not lowered.endswith("tokens") and any(word in lowered for word in _CREDENTIAL_TOKENS))


def _redact_string(text: str, known: KnownSecrets, *, depth: int) -> str:
    """The text; if it is a document itself, that is redacted like any other."""
    if text.lstrip()[:1] in _OPENING and text.rstrip()[-1:] in _CLOSING and depth < MAX_DEPTH:
        redacted = redact_document(text, known, depth=depth + 1)
        if redacted is not None:
            return redacted
    return known.hide(text)


# --- shortening ---


def shorten_document(body: bytes, max_bytes: int, known: KnownSecrets = NO_SECRETS, *, is_whole: bool) -> str | None:
    """A document redacted and shortened to so many bytes; None if it is no JSON. Of one that is cut, what is there."""
    try:
        if is_whole:
            value = _Document(body.decode("utf-8-sig", "replace")).value
        else:
            value = from_json(body[:max_bytes].removeprefix(b"\xef\xbb\xbf"), allow_partial=True)
        value = redact_json(value, known)
    except ValueError:
        return None
    except RecursionError:
        return json.dumps(TOO_DEEP)
    for limits in _LIMITS:
        written = json.dumps(_shorten(value, *limits), ensure_ascii=False)
        if len(written.encode("utf-8", "surrogatepass")) <= max_bytes:
            return written
    return json.dumps(note_missing(len(body), "bytes"), ensure_ascii=False)


def _shorten(value: Any, max_chars: int, max_items: int, max_depth: int) -> Any:
    if isinstance(value, str):
        return _shorten_text(value, max_chars)
    if not isinstance(value, dict | list) or not value:
        return value
    if max_depth == 0:
        return note_missing(len(value), "items")
    limits = max_chars, max_items, max_depth - 1
    half = max_items // 2
    missing = len(value) - 2 * half if len(value) > max_items else 0
    note = note_missing(missing, "items")
    if isinstance(value, list):
        kept = [*value[:half], *value[-half:]] if missing else value
        items = [_shorten(item, *limits) for item in kept]
        return [*items[:half], note, *items[half:]] if missing else items
    pairs = value.items()
    kept_pairs = chain(islice(pairs, half), islice(pairs, len(value) - half, None)) if missing else pairs
    made = {_shorten_text(key, max_chars): _shorten(item, *limits) for key, item in kept_pairs}
    return {**made, "…": note} if missing else made


def _shorten_text(text: str, max_chars: int) -> str:
    half = max_chars // 2
    if len(text) <= max_chars:
        return text
    return text[:half] + note_missing(len(text) - 2 * half, "characters") + text[-half:]


# --- headers, addresses, errors ---

MAX_LINE_CHARS: Final = 4096
_NOTE_CHARS: Final = 64
_USER_INFO: Final = re.compile(r"(?<=://)[^\s/?#\"<>`\\]{1,1024}(?=@)")
_PARAMETER: Final = re.compile(r"(?P<name>(?<=[?&#;])[^=?&#;\s\"'<>]{1,128}+=)[^&#\s\"<>`\\]++")


def redact_headers(headers: Mapping[str, str], known: KnownSecrets = NO_SECRETS) -> dict[str, str]:
    return {
        redact_line(name, known): REDACTED if value and is_secret_header(name) else redact_line(value, known)
        for name, value in headers.items()
    }


def redact_line(text: str, known: KnownSecrets = NO_SECRETS) -> str:
    """A header's value, an address or an error."""
    return shorten_line(redact_addresses(known.hide(text[: MAX_LINE_CHARS + known.margin])), len(text))


def redact_addresses(text: str) -> str:
    """The text; the addresses in it have neither user-info nor values of sensitive parameters."""
    if "=" in text:
        text = _PARAMETER.sub(_redact_parameter, text)
    return _USER_INFO.sub(REDACTED, text) if "@" in text else text


def _redact_parameter(found: re.Match[str]) -> str:
    return found["name"] + REDACTED if is_secret_parameter(found["name"][:-1]) else found[0]


def shorten_line(text: str, length: int) -> str:
    """As many whole words as may be kept of a text that had this length."""
    if length <= MAX_LINE_CHARS:
        return text
    text = text[: MAX_LINE_CHARS - _NOTE_CHARS]
    words = [text, ""] if text[-1:].isspace() else text.rsplit(maxsplit=1)
    is_one_word = len(words) < 2
    kept = text[: max(text.rfind(sign) for sign in "/?&#;") + 1] if is_one_word else words[0].rstrip()
    return f"{kept} {note_missing(length - len(kept), 'characters')}".lstrip()


def note_missing(count: int, what: str) -> str:
    return f"[… {count:,} {what} are missing here …]"
