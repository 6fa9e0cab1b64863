"""Every use case of a chat, for one user.

Two classes implement it: `LocalService` (service/chats.py) on the store and the feed of this process, and
`RemoteService` (client/client.py) on a server behind a URL. `User`, `Chat` and `Reply` (app/) are written against this
protocol alone, so they are the same classes in both places.

Every method checks that the chat is this user's. A chat of another user is `NotFound`, exactly as one that does not
exist. A command that is not allowed in the chat's state raises `Refused` and changes nothing.

Must stay true (tests/app/test_same_script.py): one script gives the same results with either implementation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import date
from typing import Any, Protocol

from indelible.api.events import FeedEvent, MessageTree
from indelible.api.inputs import ChatChanges, Content, IfBusy, OpenChunks
from indelible.api.records import RunTree
from indelible.api.shapes import (
    Accepted,
    AttemptPage,
    ChatDetails,
    ChatPage,
    CreatedChat,
    Draft,
    ExportFormat,
    FilePage,
    InterruptResult,
    MessagePage,
    ModelPage,
    QueuePage,
    RunPage,
    StoredFile,
    UpdatedChat,
    UsagePage,
)
from indelible.concurrency.readings import Readings
from indelible.content import ToolResult, ToolSpec

MAX_PAGE = 200
"""The maximum number of items on a page."""


class ChatService(Protocol):
    @property
    def readings(self) -> Readings:
        """The open loops over replies and feeds; whoever closes the service closes them first."""

    @property
    def files(self) -> FileService:
        """The use cases of the user's files."""

    @property
    def lists(self) -> ListService:
        """The use cases beside a conversation: read marks, drafts, usage, export and import, the live list."""

    # --- chats ---

    async def create_chat(
        self,
        message: Content | None = None,
        *,
        model: str | None = None,
        system: str | None = None,
        title: str | None = None,
        parameters: dict[str, Any] | None = None,
        tools: Sequence[ToolSpec] | None = None,
    ) -> CreatedChat:
        """Create a chat. With a message, the reply starts at once."""

    async def list_chats(
        self,
        *,
        search: str | None = None,
        label: str | None = None,
        pinned: bool | None = None,
        archived: bool = False,
        unread: bool | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> ChatPage:
        """The user's chats, pinned first, then most recently updated first.

        With `search`, those whose title or messages have all of its words, newest match first.
        """

    async def check_chat(self, chat_id: str) -> None:
        """Raises `NotFound` if this user has no such chat."""

    async def get_status(self, chat_id: str) -> str:
        """The status of the chat."""

    async def get_chat(self, chat_id: str) -> ChatDetails:
        """The chat as it is now, with its last messages and the cursor to continue from."""

    async def update_chat(self, chat_id: str, changes: ChatChanges) -> UpdatedChat:
        """Update the chat's metadata: all of the changes, or none."""

    async def delete_chat(self, chat_id: str) -> None:
        """Delete the chat and all its data. This can't be undone."""

    async def fork_chat(self, chat_id: str, message_id: str) -> CreatedChat:
        """Create a chat that starts with a copy of this one, up to and including the message."""

    # --- messages ---

    async def list_messages(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
    ) -> MessagePage:
        """The last messages of the active branch, those before `before`, or those after `after`."""

    async def send(
        self, chat_id: str, content: Content, *, if_busy: IfBusy = "queue", model: str | None = None
    ) -> Accepted:
        """Send a message. When this returns, it is on disk: in the conversation or in the queue."""

    async def edit(self, chat_id: str, message_id: str, content: Content, *, model: str | None = None) -> Accepted:
        """Edit one of the user's messages. The old message and its replies are kept as a branch."""

    async def regenerate(self, chat_id: str, message_id: str, *, model: str | None = None) -> Accepted:
        """Regenerate a reply, or answer a user message again; the old reply is kept as a branch."""

    async def switch_branch(self, chat_id: str, message_id: str, *, exact: bool = False) -> Accepted:
        """Switch to the branch of this message, at its newest end; with `exact`, to the message itself."""

    async def get_tree(self, chat_id: str) -> MessageTree:
        """Every message of every branch, in short."""

    # --- turns ---

    async def interrupt(self, chat_id: str, *, turn: str | None = None, wait_s: float | None = 0) -> InterruptResult:
        """Stop the running reply; what was written is saved. With `turn`, only if that turn is still running.

        Waits up to `wait_s` for the turn to end; None waits without a limit.
        """

    async def retry(self, chat_id: str, *, model: str | None = None) -> Accepted:
        """Retry after an error, or answer a message that has no complete reply."""

    async def continue_(self, chat_id: str, *, model: str | None = None) -> Accepted:
        """Continue an interrupted reply."""

    async def compact(self, chat_id: str) -> Accepted:
        """Replace older turns by a summary in the model's prompt."""

    async def submit_tool_results(
        self, chat_id: str, results: Sequence[ToolResult], *, turn: str | None = None
    ) -> Accepted:
        """Submit the results of the client tools that the reply is waiting for, all at once."""

    # --- the queue ---

    async def list_queue(self, chat_id: str) -> QueuePage:
        """The queued messages, in order."""

    async def edit_queued(self, chat_id: str, queued_id: str, content: Content) -> Accepted:
        """Edit a queued message."""

    async def delete_queued(self, chat_id: str, queued_id: str) -> None:
        """Remove a message from the queue."""

    async def reorder_queue(self, chat_id: str, queued_ids: Sequence[str]) -> Accepted:
        """Reorder the queue. Name every queued message exactly once."""

    async def promote_queued(self, chat_id: str, queued_id: str) -> Accepted:
        """Send this queued message now; a running reply is stopped for it."""

    # --- events, attempts and runs ---

    def open_events(
        self, chat_id: str, *, after: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[FeedEvent]]:
        """The feed: a snapshot, then new events; or everything since the cursor `after`."""

    async def list_attempts(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
    ) -> AttemptPage:
        """Every attempt at every step, newest first."""

    async def list_runs(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
    ) -> RunPage:
        """The recorded runs, newest first."""

    async def get_run(self, chat_id: str, run_id: str) -> RunTree:
        """One recorded run with its steps and exchanges; only the sizes of bodies."""

    async def list_models(self) -> ModelPage:
        """The model names that a chat, a message or a retry may use."""


class FileService(Protocol):
    async def upload(
        self, open_chunks: OpenChunks, *, name: str, media_type: str | None = None, size: int | None = None
    ) -> StoredFile:
        """Store a file. `media_type` is only a hint: the first bytes decide. `size` is announced, if it is known."""

    async def list_files(self, *, limit: int = 50, cursor: str | None = None) -> FilePage:
        """The user's files, newest first."""

    async def get_file(self, file_id: str) -> StoredFile:
        """What is known about a file."""

    def open_file(
        self, file_id: str, *, start: int = 0, stop: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes of a file, or a range of them, in chunks."""

    async def load_preview(self, file_id: str) -> bytes:
        """A small WebP picture of an image. `NotFound` if it has none."""

    async def delete_file(self, file_id: str) -> None:
        """Delete a file that no chat uses."""


class ListService(Protocol):
    async def mark_read(self, chat_id: str, seq: int | None = None) -> None:
        """Mark the chat as read, up to the event `seq` or all of it."""

    async def get_draft(self, chat_id: str) -> Draft:
        """What the user has typed in the chat; `new` instead of an id is the next chat."""

    async def save_draft(self, chat_id: str, text: str) -> None:
        """Replace the draft; an empty text deletes it."""

    async def export_chat(self, chat_id: str, format: ExportFormat = "json") -> bytes:
        """The chat as a file: all of it as JSON, which can be imported, or the active branch as Markdown."""

    async def import_chat(self, content: bytes) -> CreatedChat:
        """Create a chat from an exported one (JSON). A file with a mistake is `Invalid`, and changes nothing."""

    async def get_usage(
        self, *, since: date | None = None, until: date | None = None, user: str | None = None, by_user: bool = False
    ) -> UsagePage:
        """What the user's chats used, by day and model; the last 30 days by default.

        An admin may ask for another user by name, or for all of them.
        """

    def open_tab(
        self, chat_id: str | None = None, *, after: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[FeedEvent]]:
        """The live list of the user's chats and, with `chat_id`, the feed of that chat woven into it."""
