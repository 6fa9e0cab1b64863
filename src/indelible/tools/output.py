"""What a tool returned or raised, as text that a model can be sent.

A tool may return anything; what is stored, published and sent is text that always encodes as UTF-8. So `render_output`
never raises: text stays as it is, values that hold other values (dicts, lists, models, dataclasses, structs) become
compact JSON, and anything that JSON cannot express becomes `str(value)`, or a placeholder with its type if that fails
too. A picture, or bytes that are no text, become a placeholder that says what they are and what to return instead; a
caller that can store files collects pictures, PDFs and `File`s beside the text, which then only names them. Cycles,
very deep nesting and endless values are cut short where they occur, so that a strange value causes nothing worse than a
strange result.

Then `cut_text` keeps a long text within a limit: two thirds from the head, one third from the
tail, and between them a marker that says how many bytes are missing. The limit counts bytes of
UTF-8 and follows the model's window (`limit_for`); a cut never splits a character.

What people, the model and the log get of an exception is cut first and then redacted, for its message may be 100 MB or
hold the password of a database: known secrets of the process, values that look like keys, and user names and passwords
in addresses. The tracebacks in the log are the exception's own, and those of its causes and, if it is a group, of its
members.

Must stay true (tests/tools/test_tool_output.py, for arbitrary values): `render_output` returns
text that encodes; a cut text is a head and a tail of the original, within the limit.
(tests/tools/test_tool_outcome.py): nothing shows a secret; an iterator that nobody has read is a mistake and no result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, cast

import msgspec
from pydantic import BaseModel

from indelible.content import File
from indelible.content.unicode import clean_text
from indelible.errors import TestBroken
from indelible.files.media_types import SNIFFED_BYTES, find_magic
from indelible.redaction.redact import redact_addresses
from indelible.redaction.secrets import redact_keys

_TEXTS: Final = (str, bytes, bytearray, memoryview)
_BYTES: Final = (bytes, bytearray, memoryview)
_NUMBERS: Final = (int, float)
_LISTS: Final = (list, tuple, set, frozenset, deque)
_DICTS: Final = (dict, Mapping)
_FILES: Final = ("image/", "application/pdf", "application/zip", "application/gzip", "application/vnd.openxmlformats-")
"""Types of files that tools return; text might begin as some other files do."""

MAX_FILES: Final = 10
"""How many files one result may have."""
_UTF8_CONTINUATION: Final = range(0x80, 0xC0)
_MAX_DEPTH: Final = 100
_MAX_SIZE: Final = 16 * 1024 * 1024
_SIZE_OF_VALUE: Final = 16
_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""It writes in pieces: writing all at once, in C, would keep every other thread from running meanwhile."""
_MIN_LIMIT_BYTES: Final = 16 * 1024
_UNKNOWN_WINDOW_LIMIT_BYTES: Final = 64 * 1024


# --- to text -----------------------------------------------------------------------------


def render_output(value: object, files: list[File] | None = None) -> str:
    """The text form of whatever a tool returned. Never raises; the text always encodes.

    With `files`, pictures and files in the value are appended to it, up to `MAX_FILES`.
    """
    if value is None:
        return ""
    plain = _Unfolding(files).to_plain(value)
    return clean_text(plain if isinstance(plain, str) else "".join(_JSON.iterencode(plain)))


class _Unfolding:
    """One walk over a value: the values it is inside of (for cycles and depth), and how much more it may collect."""

    def __init__(self, files: list[File] | None = None) -> None:
        self._files = files
        self._open: set[int] = set()
        self._size_left = _MAX_SIZE

    def to_plain(self, value: object) -> Any:
        """The value as JSON knows it: dicts with text keys, lists, text, numbers, booleans, None."""
        self._size_left -= _SIZE_OF_VALUE
        try:
            if value is None or isinstance(value, bool):
                return value
            if isinstance(value, Enum):
                return self.to_plain(value.value)
            if isinstance(value, File):
                return self._collect(value) or _describe_file(value)
            if isinstance(value, _BYTES):
                media_type = _find_kind(bytes(value))
                found = None if media_type is None else self._collect(File(media_type, data=bytes(value)))
                if found is not None:
                    return found
            if isinstance(value, _TEXTS):
                self._size_left -= len(value)
                return _to_plain_text(value)
            if isinstance(value, _NUMBERS):
                return _to_plain_number(value)
            return self._to_plain_inside(value)
        except Exception:  # reading a value may raise anything
            return _describe(value)

    def _collect(self, file: File) -> str | None:
        """Set a file aside; returns its name for the text, or None if it cannot be."""
        if self._files is None or not file.data or len(self._files) >= MAX_FILES:
            return None
        self._files.append(file)
        return f"[file: {file.name or file.media_type}, {len(file.data):,} bytes]"

    def _to_plain_inside(self, value: object) -> Any:
        inside = _unwrap(value)
        if inside is None:
            return _format(value)
        if id(value) in self._open:
            return f"<this {type(value).__name__} again>"
        if len(self._open) >= _MAX_DEPTH:
            return f"<{type(value).__name__} nested too deeply to show>"
        self._open.add(id(value))
        try:
            if isinstance(inside, _DICTS):
                return self._to_plain_dict(inside)
            if isinstance(inside, _LISTS):
                return self._to_plain_list(inside)
            return self.to_plain(inside)
        finally:
            self._open.discard(id(value))

    def _to_plain_dict(self, mapping: Mapping[Any, Any]) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, value in mapping.items():
            if self._size_left <= 0:
                plain["..."] = "<more left out>"
                break
            plain[key if type(key) is str else _to_key(self.to_plain(key))] = self.to_plain(value)
        return plain

    def _to_plain_list(self, values: Iterable[Any]) -> list[Any]:
        plain: list[Any] = []
        for value in values:
            if self._size_left <= 0:
                plain.append("<more left out>")
                break
            plain.append(self.to_plain(value))
        return plain


def _unwrap(value: object) -> Any:
    """What the value holds: its library's own JSON form, or else one level down; None: it has no inside."""
    if isinstance(value, _LISTS + _DICTS):
        return value
    with contextlib.suppress(Exception):
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json", fallback=_format, warnings=False)
        if isinstance(value, msgspec.Struct):
            return msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview), enc_hook=_format)
    names = _find_fields(value)
    return None if names is None else {name: getattr(value, name) for name in names if hasattr(value, name)}


def _find_fields(value: object) -> Iterable[str] | None:
    if isinstance(value, BaseModel):
        return type(value).model_fields
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [field.name for field in dataclasses.fields(value)]
    return None


def _to_key(plain: object) -> str:
    return plain if isinstance(plain, str) else json.dumps(plain)


def _to_plain_text(value: str | bytes | bytearray | memoryview) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    data = bytes(value)
    media_type = _find_kind(data)
    if media_type is not None or b"\0" in data:
        return _describe_binary(media_type or "binary data", len(data))
    return data.decode("utf-8", "replace")


def _find_kind(data: bytes) -> str | None:
    kind = find_magic(data[:SNIFFED_BYTES])
    return kind if kind is not None and kind.startswith(_FILES) else None


def _describe_file(file: File) -> str:
    """A file that is stored elsewhere can be named; one that is inline cannot be shown."""
    if file.data is None:
        return file.url or file.name or f"[{file.media_type}]"
    return _describe_binary(file.media_type, len(file.data))


def _describe_binary(kind: str, size_bytes: int) -> str:
    advice = "a tool's result is text; return a URL or a description instead"
    return f"[{kind}, {size_bytes:,} bytes, not shown: {advice}]"


def _to_plain_number(value: float) -> float | str:
    """JSON has no infinities, and Python writes very long integers only in hexadecimal."""
    if not isinstance(value, int):
        return float(value) if math.isfinite(value) else _format(value)
    number = int(value)
    try:
        int.__repr__(number)
    except ValueError:
        return hex(number)
    return number


def _format(value: object) -> str:
    try:
        return str(value)
    except Exception:  # a foreign __str__ may raise anything
        return _describe(value)


def _describe(value: object) -> str:
    return f"<a {type(value).__name__} that cannot be shown as text>"


# --- within a limit ----------------------------------------------------------------------


class CutText(NamedTuple):
    """A text within its limit, and how many bytes of the original are not in it."""

    text: str
    missing_bytes: int


def limit_for(context_tokens: int | None) -> int:
    """How many bytes of one result a model with this context window gets."""
    return _UNKNOWN_WINDOW_LIMIT_BYTES if context_tokens is None else max(_MIN_LIMIT_BYTES, context_tokens)


def cut_text(text: str, limit_bytes: int) -> CutText:
    """Keep the text within the limit, marker included. A limit too small for the marker leaves only that."""
    text = clean_text(text)
    size_bytes = len(text) if text.isascii() else len(text.encode())  # most large texts are ASCII, and not copied
    if size_bytes <= limit_bytes:
        return CutText(text, 0)
    room = max(0, limit_bytes - len(_mark(size_bytes)))
    head_end = room * 2 // 3
    tail_bytes = room - head_end
    head = text[: head_end + 1].encode()  # a character has one byte or more
    while head_end > 0 and head[head_end] in _UTF8_CONTINUATION:
        head_end -= 1
    tail = text[max(0, len(text) - tail_bytes) :].encode()
    tail_start = len(tail) - tail_bytes
    while tail_start < len(tail) and tail[tail_start] in _UTF8_CONTINUATION:
        tail_start += 1
    missing_bytes = size_bytes - head_end - (len(tail) - tail_start)
    return CutText(head[:head_end].decode() + _mark(missing_bytes) + tail[tail_start:].decode(), missing_bytes)


def _mark(missing_bytes: int) -> str:
    return f"\n\n[{missing_bytes} bytes left out here]\n\n"


# --- of a call ---------------------------------------------------------------------------

Hide = Callable[[str], str]
"""Hides the secrets that this process knows in a text."""

_MAX_ERROR_BYTES: Final = 4096
_REDACTED_CHARACTERS: Final = 32 * 1024
"""How much of an exception's message is searched for secrets. Little of it is kept, from its beginning and its end."""
_MAX_LOGGED: Final = 12
"""How many exceptions are logged of one: itself, the members of a group, causes."""
_MAX_NOTES: Final = 3


class BadArguments(ValueError):
    """The model's arguments are invalid. The text is for the model: the field and the problem."""


class Returned(NamedTuple):
    """What a tool's function returned or raised. Never an exception in flight."""

    value: Any = None
    error: BaseException | None = None


class ToolOutcome(NamedTuple):
    """The text of a value and its files; or of an error, with the exception as it may be logged."""

    text: str
    files: list[File]
    error: BaseException | None = None


def read_returned(returned: Returned, *, wants_files: bool, hide: Hide) -> ToolOutcome:
    """The outcome of a call, even if looking at what it gave raises anything: that ends nothing but the call."""
    try:
        return _read_carefully(returned, wants_files=wants_files, hide=hide)
    except TestBroken:
        raise
    except BaseException as error:
        unreadable = TypeError(f"What the tool gave cannot be read: looking at it raised {type(error).__name__}.")
        return ToolOutcome(str(unreadable), [], unreadable)


def _read_carefully(returned: Returned, *, wants_files: bool, hide: Hide) -> ToolOutcome:
    value, error = returned
    if error is None and isinstance(value, Iterator | AsyncIterator):
        error = TypeError(
            f"The tool returned a {type(value).__name__}, which nobody has read. Return a list or a text."
        )
    if error is not None:
        return _read_error(error, hide)
    files: list[File] | None = [] if wants_files else None
    text = _render(value, files)
    return ToolOutcome(text, files or [])


def _read_error(error: BaseException, hide: Hide) -> ToolOutcome:
    text = _shorten(error, hide)
    if not isinstance(error, BadArguments):  # those say what is wrong without a name
        kind = type(error).__name__
        text = f"{kind}: {text}" if text else kind
    return ToolOutcome(text, [], _Loggable(hide).copy(error))


def _render(value: object, files: list[File] | None = None) -> str:
    """The text of a value, even if it raises when it is shown; `files` collects the files in it."""
    try:
        return render_output(value, files)
    except TestBroken:
        raise
    except BaseException:
        return f"<a {type(value).__name__} that cannot be shown as text>"


def _shorten(error: object, hide: Hide) -> str:
    """The exception's message, or another text of it, cut and redacted."""
    text = _render(error)
    if len(text) > 2 * _REDACTED_CHARACTERS:
        text = f"{text[:_REDACTED_CHARACTERS]} … {text[-_REDACTED_CHARACTERS:]}"
    return cut_text(redact_addresses(redact_keys(hide(text))), _MAX_ERROR_BYTES).text


class _Loggable:
    """Makes exceptions that may be logged, of one that was raised and of what belongs to it."""

    def __init__(self, hide: Hide) -> None:
        self._hide = hide
        self._left = _MAX_LOGGED

    def copy(self, error: BaseException) -> Exception:
        """An exception of the same name with the shortened message and notes, the same traceback, and copied causes."""
        self._left -= 1
        shown = self._copy_alone(error)
        shown.__traceback__ = error.__traceback__
        notes = getattr(error, "__notes__", None)
        for note in notes[:_MAX_NOTES] if isinstance(notes, list) else ():
            shown.add_note(_shorten(note, self._hide))
        if error.__cause__ is not None and self._left > 0:
            shown.__cause__ = self.copy(error.__cause__)
        elif error.__context__ is not None and self._left > 0:
            shown.__context__ = self.copy(error.__context__)
        shown.__suppress_context__ = error.__suppress_context__
        return shown

    def _copy_alone(self, error: BaseException) -> Exception:
        kind = type(error)
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        if isinstance(error, BaseExceptionGroup):
            members = [self.copy(member) for member in error.exceptions if self._left > 0]
            if members:
                group = type(kind.__name__, (ExceptionGroup,), names)
                return cast(Exception, group(_shorten(error.message, self._hide), members))
        return cast(Exception, type(kind.__name__, (Exception,), names)(_shorten(error, self._hide)))
