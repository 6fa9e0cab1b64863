"""An event on the wire, in pieces that a slow reader can be made to wait for.

A snapshot of a large chat has megabytes. Written at once, all of it would be copied for every reader and wait in the
memory of its connection until the client has read it. In pieces, the connection accepts the next one when it has sent
the last, and what was not sent yet is the event's own JSON, which all readers share (feed/channel.py).

Must stay true (tests/server/test_feed_limits.py): the pieces together are the event.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final, Protocol

from indelible.api.events import FeedEvent

PIECE_BYTES: Final = 64 * 1024


class Events(Protocol):
    """What a feed is read from: a reader."""

    def __aiter__(self) -> AsyncIterator[FeedEvent]: ...

    async def __anext__(self) -> FeedEvent: ...

    def get_nowait(self) -> FeedEvent | None:
        """The next event if there is one without waiting."""


def iterate_pieces(reader: Events, event: FeedEvent) -> Iterator[bytes]:
    """An event and those that are ready after it: small ones together, a large one in pieces."""
    together: list[bytes] = []
    size_bytes = 0
    following: FeedEvent | None = event
    while following is not None and len(following.json) <= PIECE_BYTES:
        together.append(write_event(following))
        size_bytes += len(together[-1])
        following = reader.get_nowait() if size_bytes < PIECE_BYTES else None
    if together:
        yield b"".join(together)
    if following is not None:
        yield from split_event(following)


def write_event(event: FeedEvent) -> bytes:
    return b"%b%b\n\n" % (_write_head(event), event.json)


def split_event(event: FeedEvent) -> Iterator[bytes]:
    """The event, in one piece if it is small."""
    if len(event.json) <= PIECE_BYTES:
        yield write_event(event)
        return
    yield _write_head(event)
    whole = memoryview(event.json)
    for start in range(0, len(whole), PIECE_BYTES):
        yield bytes(whole[start : start + PIECE_BYTES])
    yield b"\n\n"


def _write_head(event: FeedEvent) -> bytes:
    cursor = b"" if event.cursor is None else b"id: %b\n" % event.cursor.encode()
    return b"%bevent: %b\ndata: " % (cursor, event.kind.encode())
