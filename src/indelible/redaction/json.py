"""JSON without secrets.

It is redacted by its structure: whatever stands under a sensitive key goes, or beside its name (`{"name": "api_key",
"value": "…"}`, `["x-api-key", "…"]`), and every text is looked at for what looks like a secret (patterns.py), the keys
themselves and JSON inside of texts included (the arguments of a tool call are such). What is nested too deeply goes.

Most texts of a document are short and hold none of the letters that a secret begins with. Which do is found out once,
for all short texts together, and the others are not looked at.

A document in which nothing was hidden is kept as it came, letter by letter. So what holds no such letter need not be
parsed at all: the outcome is the same.

Must stay true (tests/redaction/test_redact.py, test_redact_property.py): no canary survives at any depth; usage
counters do; redacting twice is redacting once; nothing raises, whatever comes. Documents that are too large to be kept
whole are large.py's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from indelible.redaction.beginnings import Beginnings
from indelible.redaction.names import is_secret_name
from indelible.redaction.patterns import BEGINNINGS, REDACTED, redact_text

SUSPICIOUS: Final = Beginnings({
    **BEGINNINGS.by_anchor,
    "h": (*BEGINNINGS.by_anchor["h"], 'auth"', "auth\\"),
    "\\": ("\\u",),
})  # fmt: skip
"""What a secret or a sensitive name begins with; the key `auth`; and escapes, which may spell anything."""

MAX_DEPTH: Final = 100
"""Of everything together: a text in a document is one deeper than the document, and so is a document in the text."""

TOO_DEEP: Final = f"{REDACTED}: nested too deeply"
_SHORT_LETTERS: Final = 1024
_NO_JSON: Final = re.compile(r"|\[(?:DONE|not [A-Za-z ]+, [0-9,]+ bytes|… [0-9,]+ bytes are missing here …)\]")
_TO_BE_JSON: Final = re.compile(r"\s*+(?:\{\s*+(?:\"|\}\s*+[{\[])|(?:\[\s*+)++(?:\{\s*+[\"}]|\"))")
"""Brackets as no text has them that is none: a text may begin with `[INFO]`, `[1]`, `[[a page]]`, `{name}` or `{{`."""

_NAMING_KEYS: Final = frozenset({"name", "key", "header", "field"})
_VALUE_KEYS: Final = frozenset({"value", "val", "content", "text"})
_NAMES_OF_TEXTS: Final = frozenset({"auth", "pass", "tokens"})
"""Under these a text is a secret, and so are those of a list; a number or an object is none."""

_CREDENTIAL_TOKEN: Final = re.compile(r"(?:access|refresh|auth|api|session|bearer|csrf)[^a-z0-9]?token(?!s)")
_LISTS_OF_NAMES: Final = frozenset({"required", "enum"})
"""In the description of a tool these list names, two as well as three."""

_A_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}(?: [A-Za-z0-9_.\-]{1,64}){0,2}")
_DOCUMENT: Final = re.compile(r"\s*+(?=[{\[])")
_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


class Pairs(list[tuple[str, Any]]):
    """An object with all its pairs: a key may come twice, and the second one does not unsay the first."""


def parse_json(text: str) -> Any:
    """The document, its objects as `Pairs`. Raises ValueError or RecursionError."""
    return json.loads(text, object_pairs_hook=_keep_pairs)


def _keep_pairs(pairs: list[tuple[str, Any]]) -> Pairs:
    """A function, though the class would do: between its calls other threads have their turn."""
    return Pairs(pairs)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_keep_pairs)


def to_plain(value: Any) -> Any:
    """Of a key that comes twice the last one is written, as a reader would have read it."""
    if isinstance(value, Pairs):
        return {key: to_plain(item) for key, item in value}
    return [to_plain(item) for item in value] if isinstance(value, list) else value


def redact_json(value: Any, *, depth: int = 0) -> Any:
    """A JSON value without secrets. What is under a sensitive key goes, unless it says nothing: null, true, empty."""
    try:
        return _Redaction(value).redact(value, depth=depth)
    except RecursionError:
        return TOO_DEEP


def redact_document(text: str, *, depth: int = 0) -> str | None:
    """A JSON document, redacted; as it came if there was nothing to hide; None if it is no JSON."""
    try:
        value = parse_json(text)
        redacted = redact_json(value, depth=depth)
        return text if redacted == value else json.dumps(to_plain(redacted), ensure_ascii=False)
    except ValueError:
        return None
    except RecursionError:
        return json.dumps(TOO_DEEP)


def redact_documents(text: str) -> str | None:
    """Documents that follow each other, each redacted; None if anything else stands between them."""
    values: list[Any] = []
    written: list[str] = []
    done = 0
    try:
        while (found := _DOCUMENT.match(text, done)) is not None:
            value, end = _DECODER.raw_decode(text, found.end())
            written += found[0], text[found.end() : end]
            values.append(value)
            done = end
    except (ValueError, RecursionError):
        return None
    redacted = redact_json(values, depth=-1)
    if text[done:].strip() or not isinstance(redacted, list):
        return None
    for number, (value, hidden) in enumerate(zip(values, redacted, strict=True)):
        if hidden != value:
            written[2 * number + 1] = json.dumps(to_plain(hidden), ensure_ascii=False)
    return "".join((*written, text[done:]))


def redact_data(text: str, *, is_suspicious: bool) -> str | None:
    """What should be a JSON document, redacted; None if it is none. `[DONE]`, a note and nothing may stand for one."""
    if _NO_JSON.fullmatch(text.strip()):
        return text
    may_change = is_suspicious or text.count("[") + text.count("{") > MAX_DEPTH
    return redact_document(text) if may_change or not is_json(text) else text


def is_json(text: str) -> bool:
    """Whether this is a document. msgspec is quick to see that, and has a stricter notion of it than we."""
    try:
        _check_json(text)
    except msgspec.DecodeError:
        return False
    return True


def was_to_be_json(text: str) -> bool:
    """Whether nobody would begin a text like this that is no document, though it may have been cut."""
    return _TO_BE_JSON.match(text) is not None


def begins_like_json(text: str) -> bool:
    return text.lstrip().removeprefix(REDACTED)[:1] in ("{", "[", '"')


# --- values ---


class _Redaction:
    """The redaction of one document, which knows from the start which of its texts need not be looked at."""

    def __init__(self, document: Any) -> None:
        self._suspicious = _list_suspicious(document)
        self._keys: dict[str, str] = {}

    def redact(self, value: Any, *, depth: int) -> Any:
        if isinstance(value, str):
            return _redact_string(value, depth=depth) if value in self._suspicious else value
        if not isinstance(value, dict | list | tuple):
            return value
        if depth >= MAX_DEPTH and value:
            return TOO_DEEP
        if isinstance(value, Pairs):
            return Pairs(self._redact_pairs(value, depth=depth))
        if isinstance(value, dict):
            return dict(self._redact_pairs([(str(key), item) for key, item in value.items()], depth=depth))
        if len(value) == 2 and isinstance(value[1], str | int | float) and self._is_named(value[0], value[1]):
            return [redact_text(value[0]), REDACTED]
        return [self.redact(item, depth=depth + 1) for item in value]

    def _redact_pairs(self, pairs: Sequence[tuple[str, Any]], *, depth: int) -> Iterator[tuple[str, Any]]:
        names = [item for key, item in pairs if key.lower() in _NAMING_KEYS]
        for key, item in pairs:
            is_beside = key.lower() in _VALUE_KEYS and any(self._is_named(name, item) for name in names)
            if is_beside or self._is_under_secret(key, item):
                yield self._redact_key(key), REDACTED
            elif key in _LISTS_OF_NAMES and isinstance(item, list) and depth + 1 < MAX_DEPTH:
                yield key, [self.redact(name, depth=depth + 2) for name in item]
            else:
                yield self._redact_key(key), self.redact(item, depth=depth + 1)

    def _redact_key(self, key: str) -> str:
        """Keys come again and again."""
        if key in self._suspicious and key not in self._keys:
            self._keys[key] = redact_text(key)
        return self._keys.get(key, key)

    def _is_under_secret(self, key: str, item: Any) -> bool:
        if key.lower() in _NAMES_OF_TEXTS:
            texts = item if isinstance(item, list) else [item]
            return all(isinstance(text, str) for text in texts) and not _says_nothing(key, item)
        return key in self._suspicious and is_secret_name(key) and not _says_nothing(self._redact_key(key), item)

    def _is_named(self, name: Any, item: Any) -> bool:
        """Whether this is a name, and that beside it the value of it."""
        is_name = isinstance(name, str) and name in self._suspicious and _A_NAME.fullmatch(name) is not None
        return is_name and is_secret_name(name) and not _says_nothing(name, item)


def _list_suspicious(document: Any) -> set[str]:
    """The texts in a document, keys included, that may have to be changed. Long ones are, without a look at them."""
    texts: set[str] = set()
    waiting = [document]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            texts.add(item)
        elif isinstance(item, Pairs):
            texts.update(key for key, _ in item)
            waiting += [inner for _, inner in item]
        elif isinstance(item, dict):
            texts.update(map(str, item))
            waiting += item.values()
        elif isinstance(item, list | tuple):
            waiting += item
    short = [text for text in texts if len(text) <= _SHORT_LETTERS]
    holders = SUSPICIOUS.find_holders(short)
    return texts.difference(short).union(short[number] for number in holders)


def _says_nothing(name: str, item: Any) -> bool:
    lowered = name.lower()
    is_counter = isinstance(item, int | float) and "token" in lowered and not _CREDENTIAL_TOKEN.search(lowered)
    return is_counter or item is None or isinstance(item, bool) or item in ("", [], {}, REDACTED)


def _redact_string(text: str, *, depth: int) -> str:
    may_be_document = begins_like_json(text) and SUSPICIOUS.are_in(text)
    redacted = redact_document(text, depth=depth + 1) if may_be_document else None
    return redact_text(text) if redacted is None else redacted
