"""Every use case of a chat, for one user.

Two classes implement it: `LocalService` (service/local.py) on the store and the feed of this process, and
`RemoteService` (client/remote.py) on a server behind a URL. `User`, `Chat` and `Reply` (app/) are written against this
protocol alone, so they are the same classes in both places.

Every method checks that the chat is this user's. A chat of another user is `NotFound`, exactly as one that does not
exist. A command that the chat's state forbids raises `Refused` and has changed nothing.

Must stay true (tests/app/test_same_script.py): one script gives the same results with either implementation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from indelible.content import ToolResult
from indelible.machine.events import FeedEvent
from indelible.recording.storage.protocol import RunTree
from indelible.service.inputs import ChatChanges, Content, IfBusy
from indelible.service.results import (
    Accepted,
    AttemptPage,
    ChatDetails,
    ChatPage,
    CreatedChat,
    InterruptResult,
    MessagePage,
    ModelPage,
    QueuePage,
    RunPage,
)

MAX_PAGE = 200
"""How many items one page may have."""


class ChatService(Protocol):
    # --- chats ---

    async def create_chat(
        self,
        message: Content | None = None,
        *,
        model: str | None = None,
        system: str | None = None,
        title: str | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> CreatedChat:
        """A new chat; with a message it is answered at once."""

    async def list_chats(
        self, *, search: str | None = None, archived: bool = False, limit: int = 50, cursor: str | None = None
    ) -> ChatPage:
        """The user's chats, the last changed first; `search` looks at titles."""

    async def check_chat(self, chat_id: str) -> None:
        """Raises `NotFound` if this user has no such chat."""

    async def get_status(self, chat_id: str) -> str:
        """What the chat does now."""

    async def get_chat(self, chat_id: str) -> ChatDetails:
        """The chat as it is now, with its last messages and the cursor to read on from."""

    async def update_chat(self, chat_id: str, changes: ChatChanges) -> ChatDetails:
        """Change what stands beside the conversation."""

    async def delete_chat(self, chat_id: str) -> None:
        """Remove the chat and everything that belongs to it, for good."""

    async def fork_chat(self, chat_id: str, message_id: str) -> CreatedChat:
        """A new chat that begins with a copy of this one up to the message."""

    # --- messages ---

    async def list_messages(self, chat_id: str, *, before: str | None = None, limit: int = 50) -> MessagePage:
        """The active path: its last messages, or those above `before`."""

    async def send(
        self, chat_id: str, content: Content, *, if_busy: IfBusy = "queue", model: str | None = None
    ) -> Accepted:
        """Add a message. When this returns, the message is in history or in the queue."""

    async def edit(self, chat_id: str, message_id: str, content: Content, *, model: str | None = None) -> Accepted:
        """Replace a message of the user. The old one and its replies stay, on a branch of their own."""

    async def regenerate(self, chat_id: str, message_id: str, *, model: str | None = None) -> Accepted:
        """Write a reply anew, beside the old one."""

    async def switch_branch(self, chat_id: str, message_id: str) -> Accepted:
        """Go to the branch that ends with this message."""

    # --- turns ---

    async def interrupt(self, chat_id: str, *, turn: str | None = None, wait_s: float | None = 0) -> InterruptResult:
        """Stop the running reply and keep what it said; with `turn`, only if that turn is still running.

        Waits up to `wait_s` for the end of the turn; None waits for as long as it takes.
        """

    async def retry(self, chat_id: str, *, model: str | None = None) -> Accepted:
        """After an error: try again."""

    async def continue_(self, chat_id: str, *, model: str | None = None) -> Accepted:
        """Go on with a reply that was cut."""

    async def compact(self, chat_id: str) -> Accepted:
        """Shorten the model's view of the conversation to a summary."""

    async def submit_tool_results(self, chat_id: str, results: Sequence[ToolResult]) -> Accepted:
        """Answer the client tools that the reply waits for, all of them at once."""

    # --- the queue ---

    async def list_queue(self, chat_id: str) -> QueuePage:
        """What waits its turn, in order."""

    async def edit_queued(self, chat_id: str, queued_id: str, content: Content) -> Accepted:
        """Replace the content of a message that still waits."""

    async def delete_queued(self, chat_id: str, queued_id: str) -> None:
        """Remove a message from the queue."""

    async def reorder_queue(self, chat_id: str, queued_ids: Sequence[str]) -> Accepted:
        """Put the queue into another order; every message of it has to be named once."""

    async def promote_queued(self, chat_id: str, queued_id: str) -> Accepted:
        """Answer this message now; a running reply is stopped for it."""

    # --- reading along, and what was tried ---

    def open_events(
        self, chat_id: str, *, after: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[FeedEvent]]:
        """The feed: a snapshot and then what happens, or what has happened since the cursor `after`."""

    async def list_attempts(self, chat_id: str, *, before: str | None = None, limit: int = 50) -> AttemptPage:
        """Every try at every step, the newest first."""

    async def list_runs(self, chat_id: str, *, before: str | None = None, limit: int = 50) -> RunPage:
        """What was recorded of the work with models, the newest first."""

    async def get_run(self, chat_id: str, run_id: str) -> RunTree:
        """One recorded run with its steps and exchanges; of bodies, only how large they are."""

    async def list_models(self) -> ModelPage:
        """The names under which models may be asked for."""
