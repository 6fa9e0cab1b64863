"""Every JSON value that the server answers with, the same type for the library, the HTTP routes and the remote client.

A route sends the JSON of these values, OpenAPI shows their schemas, and the client decodes the same JSON into the same
types. So a program sees one shape, whether the chats are in its own process or behind a URL, and a field cannot be
added to one side only.

They are below the store, which reads some of them from its rows as they are: a chat in a list, a stored file, a share.
What is only the store's is there. A client ignores unknown fields when it decodes a response, because a newer server
may send more of them.

Must stay true (tests/server/test_openapi.py): every 2xx response of the server has the schema of one of these types.

events.py has what a feed brings, records.py the runs that were recorded for debugging.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

import msgspec

from indelible.api.records import RunSummary
from indelible.content import Block, File, ToolCall, Usage
from indelible.content.blocks import text_of
from indelible.machine.effects import AttemptOutcome
from indelible.machine.states import IfBusy

# --- words ---

DebugMode = Literal["off", "errors", "all"]
ExportFormat = Literal["json", "md"]
LoginMethod = Literal["token", "oidc"]
Scope = Literal["read", "write", "admin"]
ALL_SCOPES: tuple[Scope, ...] = ("read", "write", "admin")
UserRole = Literal["admin", "user"]
NEW_CHAT: Final = "new"
"""Instead of a chat's id: the draft of a chat that does not exist yet."""


# --- results ---


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


class InterruptResult(Result, frozen=True, kw_only=True):
    """The result of a stop. `stopped` is False if nothing was running.

    `message_id` is the interrupted reply, if any of it was written. `status` and `turn` are the chat's afterwards.
    """

    stopped: bool
    message_id: str | None
    status: str
    turn: str | None


# --- chats ---


class CreatedChat(Result, frozen=True, kw_only=True):
    """A new chat. `message` is its first message, if it was created with one."""

    id: str
    status: str
    turn: str | None
    cursor: str
    title: str | None
    model: str | None
    message: str | None = None


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


class Snippet(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a text. `ranges` are the places of found words in it: [start, end), in characters."""

    text: str
    ranges: list[tuple[int, int]]


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """Where a search found a chat: a message, or its title (None), and the piece of the text."""

    message_id: str | None
    snippet: Snippet


class ChatSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a list. `version` grows with every event of the chat.

    `usage` and `cost_usd` are the sums over all its messages, as far as they are known. `unread`: a model has replied
    since the owner read it. `match`: what a search has found; in other lists it is unset.
    """

    id: str
    status: str
    title: str | None
    model: str | None
    labels: list[str]
    pinned: bool
    archived: bool
    unread: bool
    debug: DebugMode | None
    version: int
    created_at: datetime
    updated_at: datetime
    usage: Usage | None = None
    cost_usd: float | None = None
    match: Match | msgspec.UnsetType = msgspec.UNSET


class ChatPage(Result, frozen=True, kw_only=True):
    """A user's chats. `next` and `previous` are the cursors of the pages after and before this one."""

    items: list[ChatSummary]
    next: str | None
    previous: str | None = None


class ChatExtras(msgspec.Struct, frozen=True, kw_only=True):
    """What a user sees of a chat beside the conversation. All but the draft is the owner's, and empty to others."""

    labels: list[str]
    pinned: bool
    unread: bool
    system: str | None
    draft: str | None


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """What a user has typed and not sent yet. Without one, the text is empty and `updated_at` is None."""

    text: str = ""
    updated_at: datetime | None = None


# --- messages, and a chat with them ---


class Timings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a step began, when its first part arrived, and when it ended, by the worker's clock."""

    started_at: datetime | None = None
    first_part_at: datetime | None = None
    ended_at: datetime | None = None


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


class MessagePage(Result, frozen=True, kw_only=True):
    """Messages of the active branch, oldest first. Pass `next` as `before` for earlier ones, `previous` as `after`."""

    cursor: str
    items: list[ChatMessage]
    next: str | None
    previous: str | None = None


class QueuedMessage(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    if_busy: IfBusy
    blocks: list[Block]
    model: str | None
    created_at: datetime


class QueuePage(Result, frozen=True, kw_only=True):
    """The queued messages, in order."""

    items: list[QueuedMessage]


class AwaitedAction(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that the client has to answer, and until when; None means no limit."""

    calls: list[ToolCall]
    deadline_at: datetime | None


class LiveBlocks(Result, frozen=True, kw_only=True):
    """The running reply so far."""

    attempt: str
    blocks: list[Block]


class ChatNow(Result, frozen=True, kw_only=True):
    """A chat at one moment, without its messages."""

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


class ChatDetails(ChatNow, frozen=True, kw_only=True):
    """A consistent snapshot of a chat, with its last messages. Reading from `cursor` on misses and repeats nothing.

    `usage` and `cost_usd` are the sums over all its messages, of every branch, as far as they are known. `labels` and
    what follows it are the owner's, as they are now: `system` is the chat's own instruction (None: the setting),
    `unread` whether a reply came since you read it, and `draft` what you have typed and not sent.
    """

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


# --- what the work has left ---


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one step of a turn. Without an outcome it is open. `last_n` is its last journal row."""

    id: str
    turn_id: str
    step: int
    number: int
    provider: str | None
    model: str | None
    outcome: AttemptOutcome | None
    error: Any
    usage: Usage | None
    started_at: datetime
    ended_at: datetime | None
    last_n: int | None


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


# --- files, usage, models, health ---


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A stored file. `sha256` is in hexadecimal; `width` and `height` are those of an image, in pixels."""

    id: str
    name: str
    media_type: str
    size: int
    sha256: str
    width: int | None
    height: int | None
    has_preview: bool
    created_at: datetime

    def to_block(self) -> File:
        """The file as a block of a message."""
        return File(self.media_type, name=self.name, file_id=self.id, size=self.size)


class FilePage(Result, frozen=True, kw_only=True):
    """A user's files, newest first. `next` is the cursor of the next page."""

    items: list[StoredFile]
    next: str | None


class UsageDay(msgspec.Struct, frozen=True, kw_only=True):
    """What was used on a day with a model. `cost`: dollars, as far as known; None: unknown. `user`: in lists of all."""

    day: str
    model: str | None
    input_tokens: int
    output_tokens: int
    cost: float | None
    turns: int
    user: str | msgspec.UnsetType = msgspec.UNSET


class UsageTotal(Result, frozen=True, kw_only=True):
    """The sums over all days. `cost` is in dollars, of what has a known price; None if nothing has."""

    input_tokens: int
    output_tokens: int
    cost: float | None
    turns: int


class UsagePage(Result, frozen=True, kw_only=True):
    """What was used, by day and model, and in total."""

    days: list[UsageDay]
    total: UsageTotal


class ModelEntry(Result, frozen=True, kw_only=True):
    """A name under which a message, a chat or a retry may ask for a model."""

    id: str
    default: bool


class ModelPage(Result, frozen=True, kw_only=True):
    items: list[ModelEntry]


class Health(Result, frozen=True, kw_only=True):
    """`ok`: the process runs. `ready`: it also takes requests, and its database answers."""

    status: str


# --- users, logins and shares ---


class SessionUser(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    role: UserRole


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who is logged in. `login` is `none` where nobody has to; `methods` are the ways to log in."""

    user: SessionUser
    login: Literal["none", "required"]
    methods: list[Literal["token", "oidc"]]
    scopes: list[Scope]
    expires_at: datetime | None


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret. `prefix` is how it begins."""

    id: str
    label: str
    prefix: str
    scopes: list[Scope]
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None


class CreatedToken(TokenInfo, frozen=True, kw_only=True):
    """A new token. `token` is shown once."""

    token: str


class TokenPage(msgspec.Struct, frozen=True, kw_only=True):
    """The user's valid tokens, newest first."""

    items: list[TokenInfo]


class UserInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A user, as an admin sees them."""

    name: str
    role: UserRole
    disabled: bool
    created_at: datetime


class UserPage(msgspec.Struct, frozen=True, kw_only=True):
    """All users, by name."""

    items: list[UserInfo]


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Who else may read a chat: a user, or, if `user` is null, whoever has the link."""

    id: str
    user: str | None
    created_at: datetime


class CreatedShare(Share, frozen=True, kw_only=True):
    """A new share. `url` is that of a link, and is shown once; null if the chat is shared with a user."""

    url: str | None


class SharePage(msgspec.Struct, frozen=True, kw_only=True):
    """Who else may read the chat, oldest first."""

    items: list[Share]


class Link(NamedTuple):
    """A valid link: its share, the chat, and the chat's owner."""

    share_id: str
    chat_id: str
    owner_id: str
