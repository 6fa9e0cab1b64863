"""What a reader may see: the kinds of events in a feed, and the values in them (feed/events.py writes their JSON).

A feed is what happened in a chat, in order: first perhaps a `snapshot`, then one event per fact and one `part`
event per piece of a running reply. docs/feed.md shows the JSON of every kind. Each event has a cursor; a reader
that returns with it gets what comes after.

An event is the same for every reader of a chat, so its JSON is made once and shared, and stored JSON
(blocks, parts, usage) is inserted without being decoded. A reader in Python uses `data` or `parts`,
which are decoded on first use.

People never see messages for the model only (`visibility = model`): summaries, and the instruction to continue a
partial reply. For people, the message above takes its place in the tree.

Must stay true (tests/feed/test_feed_page.py): docs/feed.md has every kind, and every kind is sent as it says.

feed/events.py makes the events, and turns a position into a cursor.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal, get_args

import msgspec

from indelible.api.shapes import ChatNow, LiveBlocks
from indelible.content import Part
from indelible.machine import states

EventKind = Literal[
    "snapshot",
    "message",
    "head",
    "attempt",
    "part",
    "reset",
    "status",
    "queue",
    "retry",
    "action",
    "error",
    "chat",
    "resync",
    "end",
]
ListEventKind = Literal["chats", "chat_changed", "chat_removed"]
"""Events of a user's list of chats (feed/chat_list.py). They have no cursor, and are not replayed."""
EndReason = Literal["shutdown", "deleted", "slow"]
KINDS: Final[tuple[EventKind, ...]] = get_args(EventKind)
BUSY: Final = frozenset({"pending", *(status.value for status in states.BUSY)})
"""The statuses of a chat with a running reply, as people see them. pending: it waits for a worker that is alive."""


class Position(msgspec.Struct, frozen=True):
    """The position of a reader: event `seq`, and row `n` of the attempt running then, if there is one."""

    seq: int = 0
    attempt: str | None = None
    n: int = 0


BEGINNING: Final = Position()


class ShownMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as people get it. `siblings` are the branches here, including itself; events do not have them."""

    id: str
    parent_id: str | None
    role: str
    blocks: msgspec.Raw
    partial: bool
    reason: str | None
    continues: str | None
    model: str | None
    usage: msgspec.Raw
    cost_usd: float | None
    timings: msgspec.Raw
    created_at: datetime
    siblings: list[str] | msgspec.UnsetType = msgspec.UNSET


class TreeItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message in short. `text` is the beginning of its text."""

    id: str
    parent_id: str | None
    role: str
    model: str | None
    created_at: datetime
    text: str


class MessageTree(msgspec.Struct, frozen=True, kw_only=True):
    """Every branch of a chat, in the order of creation. `head` is the end of the active branch."""

    head: str | None
    items: list[TreeItem]


class ShownQueued(msgspec.Struct, frozen=True, kw_only=True):
    """A message in the queue."""

    id: str
    if_busy: states.IfBusy
    blocks: msgspec.Raw
    model: str | None
    created_at: datetime


class ChatSnapshot(ChatNow, frozen=True, kw_only=True):
    """One chat at one moment; reading on from its `cursor` misses nothing and repeats nothing."""

    queue: list[ShownQueued]
    live: LiveBlocks | None
    action: Any
    messages: list[ShownMessage]
    has_more: bool


class MessageAdded(msgspec.Struct, frozen=True, kw_only=True):
    """A message entered history. If it ended an attempt, `attempt` names that, and it takes the preview's place."""

    message: ShownMessage
    attempt: str | None = None
    last_n: int | None = None
    queued: str | None = None


class PartsAppended(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one flush of a running attempt: row `n` of its journal."""

    attempt: str
    n: int
    parts: list[Part]


class EventBody:
    """The JSON of an event, shared by all readers, and decoded at most once."""

    __slots__ = ("__weakref__", "_data", "_parts", "json")

    def __init__(self, json: bytes) -> None:
        self.json = json
        self._data: dict[str, Any] | None = None
        self._parts: list[Part] | None = None

    @property
    def data(self) -> dict[str, Any]:
        if self._data is None:
            self._data = msgspec.json.decode(self.json, type=dict[str, Any])
        return self._data

    @property
    def parts(self) -> list[Part]:
        if self._parts is None:
            self._parts = _decode_parts_appended(self.json).parts
        return self._parts


class FeedEvent(msgspec.Struct, frozen=True):
    """One event as a reader gets it. An end before everything else, and events of lists, have no cursor."""

    kind: EventKind | ListEventKind
    cursor: str | None
    body: EventBody

    @property
    def json(self) -> bytes:
        return self.body.json

    @property
    def data(self) -> dict[str, Any]:
        """The decoded JSON. It is shared: do not modify it."""
        return self.body.data

    @property
    def parts(self) -> list[Part]:
        """The parts of a `part` event; empty for every other kind."""
        return self.body.parts if self.kind == "part" else []


_decode_parts_appended: Final = msgspec.json.Decoder(PartsAppended).decode
