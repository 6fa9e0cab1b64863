"""JSON without secrets, shortened to a limit.

A document is redacted by its structure: what stands under a sensitive key is hidden at any depth, in the JSON within
its texts too (the arguments of a tool call are such), and known secrets are hidden after decoding, so no escape can
spell one. A document in which nothing was hidden is kept as it came, character by character. That is why most of a
stream need not be parsed: text that holds no part of a sensitive name and no escape stays as it is.

Half a document is none. One that is too large is parsed, redacted and then shortened where it hurts least: long texts,
lists and objects lose their middle, and a note stands in its place. The limits are lowered until it fits. If only the
beginning of it is there, that is completed to a document first.

Must stay true (tests/redaction/test_json.py, test_redaction_property.py): no canary survives at any depth, usage
counters do, redacting twice is redacting once, nothing raises, and any document fits after shortening.
"""

from __future__ import annotations

import json
from itertools import chain, islice
from typing import Any, Final

import msgspec
from pydantic_core import from_json

from indelible.redaction.headers import note_missing
from indelible.redaction.known import NO_SECRETS, KnownSecrets
from indelible.redaction.patterns import NAME_PARTS, REDACTED, is_secret_name

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
