"""Decoding server-sent events from raw chunks.

Chunks can end anywhere: inside a line, inside a character, between CR and LF. So bytes are buffered until a line is
complete and decoded then; a CR ends a line at once, and an LF after it belongs to the same line end. From the standard:
lines end with LF, CR or CRLF; a byte order mark at the very beginning is dropped; lines that begin with a colon are
comments; several `data` lines are joined by newlines; an empty line ends an event, and an event without data is
dropped. A last event without its empty line is dropped, too: the stream was cut inside it.

The size of an event is limited, because a server that never ends one would fill the memory.

Must stay true (tests/models/test_sse.py): however a stream is split into chunks, the same events come out, each as soon
as its last byte has arrived.
"""

from __future__ import annotations

from typing import Final

import msgspec

MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
_MARK: Final = b"\xef\xbb\xbf"


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One event. `data` is its data lines, joined; `id` is the latest id of the stream."""

    event: str
    data: bytes
    id: str | None


class EventTooLarge(ValueError):
    """A single event exceeds the size limit."""


class SseDecoder:
    """Feed it chunks; it returns the events that they complete."""

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._at_beginning = True
        self._after_cr = False
        self._line: list[bytes] = []
        self._line_bytes = 0
        self._event = b""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._id: str | None = None

    def feed(self, chunk: bytes) -> list[SseEvent]:
        if self._at_beginning:
            chunk = self._skip_mark(chunk)
        if not chunk:
            return []
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._line:
            lines[0] = b"".join([*self._line, lines[0]])
            self._line, self._line_bytes = [], 0
        events = self._read_lines(lines)
        if rest:
            self._line.append(rest)
            self._line_bytes += len(rest)
            self._check_size()
        return events

    def _skip_mark(self, chunk: bytes) -> bytes:
        chunk = b"".join([*self._line, chunk])
        self._at_beginning = len(chunk) < len(_MARK) and _MARK.startswith(chunk)
        self._line = [chunk] if self._at_beginning else []
        return b"" if self._at_beginning else chunk.removeprefix(_MARK)

    def _read_lines(self, lines: list[bytes]) -> list[SseEvent]:
        """The events that these lines complete. The two most frequent kinds of lines are read inline."""
        events: list[SseEvent] = []
        for line in lines:
            if line.startswith(b"data: "):
                self._add_data(line[6:])
            elif line.startswith(b"event: "):
                self._event = line[7:]
            elif line:
                self._read_field(line)
            elif self._data:
                events.append(self._finish())
            else:
                self._event = b""
        return events

    def _read_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._add_data(value)
        elif name == b"event":
            self._event = value
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")

    def _add_data(self, value: bytes) -> None:
        self._data.append(value)
        self._data_bytes += len(value) + 1
        self._check_size()

    def _finish(self) -> SseEvent:
        event = SseEvent(self._event.decode("utf-8", "replace") or "message", b"\n".join(self._data), self._id)
        self._event, self._data, self._data_bytes = b"", [], 0
        return event

    def _check_size(self) -> None:
        if self._data_bytes + self._line_bytes > self._max_event_bytes:
            raise EventTooLarge(f"An event is larger than {self._max_event_bytes:,} bytes.")
