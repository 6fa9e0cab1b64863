"""What a use case returns: one set of types for the library, the HTTP routes and the remote client.

A route sends the JSON of these values, OpenAPI shows their schemas, and the client decodes the same JSON into the same
types. So a program sees one shape, whether the chats are in its own process or behind a URL, and a field cannot be
added to one side only. Times, usage and cost of a message are here for the same reason: the library knows what HTTP
knows.

Unknown fields are ignored when an answer is decoded: a newer server may send more of them to an older client.

Must stay true (tests/server/test_openapi.py): every 2xx answer of the server has the schema of one of these types.

Who fills them in is service/local.py; the same over HTTP is client/remote.py.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from indelible.content import Block, Usage
from indelible.content.blocks import text_of
from indelible.recording.storage.protocol import RunSummary
from indelible.store.queries.attempts import AttemptView
from indelible.store.queries.chat_view import QueuedMessage
from indelible.store.queries.listing import ChatSummary


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All fields are always in the JSON."""


class Accepted(Result, frozen=True, kw_only=True):
    """A command was carried out and is on disk. Everything that follows from it can be read from `cursor` on.

    A message that was sent is in history (`message`) or waits its turn (`queued`).
    """

    status: str
    turn: str | None
    cursor: str
    message: str | None = None
    queued: str | None = None


class CreatedChat(Result, frozen=True, kw_only=True):
    """A chat that did not exist before. `message` is its first one, if it was created with one."""

    id: str
    status: str
    turn: str | None
    cursor: str
    title: str | None
    model: str | None
    message: str | None = None


class InterruptResult(Result, frozen=True, kw_only=True):
    """What a stop came to. `stopped` is False if nothing was running any more.

    `message_id` is the reply that was cut, if any of it had been said. `status` and `turn` are the chat's now.
    """

    stopped: bool
    message_id: str | None
    status: str
    turn: str | None


class ChatMessage(Result, frozen=True, kw_only=True):
    """One message as people see it.

    `partial` says that this is a visible piece of a reply that was cut, and `reason` why. `continues` names the cut
    message that this one goes on with. `siblings` are the alternatives at this place of the tree, itself included; a
    message that comes with an event has none. `cost_usd` is None where the price of the model is not known.
    """

    id: str
    parent_id: str | None
    role: str
    blocks: list[Block]
    partial: bool
    reason: str | None
    continues: str | None
    model: str | None
    usage: Usage | None
    cost_usd: float | None
    created_at: datetime
    siblings: list[str] = []

    @property
    def text(self) -> str:
        """All visible text, in order."""
        return text_of(self.blocks)


class LiveBlocks(Result, frozen=True, kw_only=True):
    """The running reply as far as it has come."""

    attempt: str
    blocks: list[Block]


class ChatDetails(Result, frozen=True, kw_only=True):
    """One chat at one moment, with its last messages. Reading on from `cursor` misses nothing and repeats nothing."""

    id: str
    status: str
    cursor: str
    title: str | None
    model: str | None
    debug: str | None
    archived: bool
    turn: str | None
    error: Any
    retry: Any
    queue: list[QueuedMessage]
    live: LiveBlocks | None
    messages: list[ChatMessage]
    has_more: bool


class ChatPage(Result, frozen=True, kw_only=True):
    """Chats of a user, the last changed first. `next` is the cursor of the page that follows; None on the last one."""

    items: list[ChatSummary]
    next: str | None


class MessagePage(Result, frozen=True, kw_only=True):
    """Messages of the active path, oldest first. `next`, given as `before`, leads to those above."""

    cursor: str
    items: list[ChatMessage]
    next: str | None


class QueuePage(Result, frozen=True, kw_only=True):
    """What waits its turn, in order."""

    items: list[QueuedMessage]


class AttemptPage(Result, frozen=True, kw_only=True):
    """Attempts, the newest first. `next`, given as `before`, leads to older ones."""

    items: list[AttemptView]
    next: str | None


class RunPage(Result, frozen=True, kw_only=True):
    """Recorded runs, the newest first. `next`, given as `before`, leads to older ones."""

    items: list[RunSummary]
    next: str | None


class ModelEntry(Result, frozen=True, kw_only=True):
    """A name under which a message, a chat or a retry may ask for a model."""

    id: str
    default: bool


class ModelPage(Result, frozen=True, kw_only=True):
    items: list[ModelEntry]


class Health(Result, frozen=True, kw_only=True):
    """`ok`: the process runs. `ready`: it also takes requests, and its database answers."""

    status: str
