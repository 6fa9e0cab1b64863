"""What a use case returns: one set of types for the library, the HTTP routes and the remote client.

A route sends the JSON of these values, OpenAPI shows their schemas, and the client decodes the same JSON into the same
types. So a program sees one shape, whether the chats are in its own process or behind a URL, and a field cannot be
added to one side only.

A client ignores unknown fields when it decodes a response, because a newer server may send more of them.

Must stay true (tests/server/test_openapi.py): every 2xx response of the server has the schema of one of these types.

service/local.py fills them in; client/remote.py decodes them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from indelible.content import Block, Usage
from indelible.content.blocks import text_of
from indelible.recording.storage.protocol import RunSummary
from indelible.store.payloads import Timings
from indelible.store.queries.attempts import AttemptView
from indelible.store.queries.chat_view import AwaitedAction, QueuedMessage
from indelible.store.queries.listing import ChatSummary


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All fields are always in the JSON."""


class Accepted(Result, frozen=True, kw_only=True):
    """The command was carried out and is on disk. Read its consequences from `cursor` on.

    A sent message is in the conversation (`message`) or in the queue (`queued`).
    """

    status: str
    turn: str | None
    cursor: str
    message: str | None = None
    queued: str | None = None


class CreatedChat(Result, frozen=True, kw_only=True):
    """A new chat. `message` is its first message, if it was created with one."""

    id: str
    status: str
    turn: str | None
    cursor: str
    title: str | None
    model: str | None
    message: str | None = None


class InterruptResult(Result, frozen=True, kw_only=True):
    """The result of a stop. `stopped` is False if nothing was running.

    `message_id` is the interrupted reply, if any of it was written. `status` and `turn` are the chat's afterwards.
    """

    stopped: bool
    message_id: str | None
    status: str
    turn: str | None


class ChatMessage(Result, frozen=True, kw_only=True):
    """One message as people see it.

    `partial` marks an interrupted reply, and `reason` says why. `continues` names the interrupted message that this one
    continues. `siblings` are the alternatives at this place of the tree, itself included; a
    message that comes with an event has none. `usage` is None if the provider did not tell it, `cost_usd` also if the
    model's price is unknown. `timings` says when the model was called, when its first part arrived and when it ended.
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
    timings: Timings | None
    created_at: datetime
    siblings: list[str] = []

    @property
    def text(self) -> str:
        """All visible text, in order."""
        return text_of(self.blocks)


class LiveBlocks(Result, frozen=True, kw_only=True):
    """The running reply so far."""

    attempt: str
    blocks: list[Block]


class ChatDetails(Result, frozen=True, kw_only=True):
    """A consistent snapshot of a chat, with its last messages. Reading from `cursor` on misses and repeats nothing.

    `usage` and `cost_usd` are the sums over all its messages, of every branch, as far as they are known. `labels` and
    what follows it are the owner's, as they are now: `system` is the chat's own instruction (None: the setting),
    `unread` whether a reply came since you read it, and `draft` what you have typed and not sent.
    """

    id: str
    status: str
    cursor: str
    title: str | None
    model: str | None
    debug: str | None
    archived: bool
    usage: Usage | None
    cost_usd: float | None
    turn: str | None
    error: Any
    retry: Any
    queue: list[QueuedMessage]
    live: LiveBlocks | None
    action: AwaitedAction | None
    messages: list[ChatMessage]
    has_more: bool
    labels: list[str] = []
    pinned: bool = False
    unread: bool = False
    system: str | None = None
    draft: str | None = None


class UpdatedChat(Result, frozen=True, kw_only=True):
    """The chat's metadata after an update. Read its consequences from `cursor` on."""

    id: str
    status: str
    cursor: str
    title: str | None
    model: str | None
    labels: list[str]
    pinned: bool
    archived: bool
    debug: str | None


class ChatPage(Result, frozen=True, kw_only=True):
    """A user's chats. `next` and `previous` are the cursors of the pages after and before this one."""

    items: list[ChatSummary]
    next: str | None
    previous: str | None = None


class MessagePage(Result, frozen=True, kw_only=True):
    """Messages of the active branch, oldest first. Pass `next` as `before` for earlier ones, `previous` as `after`."""

    cursor: str
    items: list[ChatMessage]
    next: str | None
    previous: str | None = None


class QueuePage(Result, frozen=True, kw_only=True):
    """The queued messages, in order."""

    items: list[QueuedMessage]


class AttemptPage(Result, frozen=True, kw_only=True):
    """Attempts, newest first. Pass `next` as `before` for older ones, `previous` as `after`."""

    items: list[AttemptView]
    next: str | None
    previous: str | None = None


class RunPage(Result, frozen=True, kw_only=True):
    """Recorded runs, newest first. Pass `next` as `before` for older ones, `previous` as `after`."""

    items: list[RunSummary]
    next: str | None
    previous: str | None = None


class ModelEntry(Result, frozen=True, kw_only=True):
    """A name under which a message, a chat or a retry may ask for a model."""

    id: str
    default: bool


class ModelPage(Result, frozen=True, kw_only=True):
    items: list[ModelEntry]


class Health(Result, frozen=True, kw_only=True):
    """`ok`: the process runs. `ready`: it also takes requests, and its database answers."""

    status: str
