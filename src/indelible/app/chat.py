"""One chat: every method is one use case, durable or refused.

The same class serves chats of this process and chats behind a server: what differs is the service under it
(service/protocol.py). Reading is separate from working. Leaving a loop over a reply stops nothing: the reply goes on
and is kept, and `chat.events(after=cursor)` resumes reading it from anywhere.

Must stay true (tests/app/test_same_script.py): the same script gives the same results in process and over HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from indelible.app.reply import Reply
from indelible.content import ToolResult
from indelible.machine.events import FeedEvent
from indelible.recording.storage.protocol import RunSummary, RunTree
from indelible.service.inputs import ChatChanges, Content, IfBusy, check_if_busy, to_blocks
from indelible.service.protocol import MAX_PAGE, ChatService
from indelible.service.results import Accepted, ChatDetails, ChatMessage, InterruptResult
from indelible.store.database.tables import DebugMode
from indelible.store.queries.attempts import AttemptView
from indelible.store.queries.chat_view import QueuedMessage


class Chat:
    """One chat. Its methods raise `Refused` (and change nothing) where the chat's state forbids them."""

    def __init__(self, service: ChatService, chat_id: str) -> None:
        self.id = chat_id
        self._service = service

    def __repr__(self) -> str:
        return f"Chat({self.id!r})"

    # --- talking ---

    def stream(
        self, content: Content, *, if_busy: IfBusy = "queue", model: str | None = None
    ) -> AbstractAsyncContextManager[Reply]:
        """Send a message and read the reply within the block: `async with chat.stream("…") as reply`.

        The message is durable when the block begins. Leaving the block stops reading, not the reply.
        """
        return self.send(content, if_busy=if_busy, model=model)

    def send(self, content: Content, *, if_busy: IfBusy = "queue", model: str | None = None) -> Reply:
        """Send a message; the reply is read part by part (`async for`) or as a whole (`await`).

        if_busy: "queue" waits for its turn, "interrupt" stops a running reply first, "steer" joins it.
        Nothing is sent before the reply is read; one that never is warns (`NeverSent`).
        """
        check_if_busy(if_busy)
        blocks = to_blocks(content)
        return self._reply(lambda: self._service.send(self.id, blocks, if_busy=if_busy, model=model))

    async def post(self, content: Content, *, if_busy: IfBusy = "queue", model: str | None = None) -> Accepted:
        """Send a message and do not wait for the reply: when this returns, the message is safe."""
        return await self._service.send(self.id, content, if_busy=if_busy, model=model)

    def edit(self, message_id: str, content: Content, *, model: str | None = None) -> Reply:
        """Replace a message of yours. The old one and its replies stay, on a branch of their own."""
        blocks = to_blocks(content)
        return self._reply(lambda: self._service.edit(self.id, message_id, blocks, model=model))

    def regenerate(self, message_id: str, *, model: str | None = None) -> Reply:
        """Write a reply anew, beside the old one."""
        return self._reply(lambda: self._service.regenerate(self.id, message_id, model=model))

    def retry(self, *, model: str | None = None) -> Reply:
        """After an error: try again, perhaps with another model. What was said is continued."""
        return self._reply(lambda: self._service.retry(self.id, model=model))

    def continue_(self, *, model: str | None = None) -> Reply:
        """Go on with a reply that was cut."""
        return self._reply(lambda: self._service.continue_(self.id, model=model))

    def submit_tool_results(self, results: Sequence[ToolResult]) -> Reply:
        """Answer the client tools that the reply stopped for, all of them at once."""
        return self._reply(lambda: self._service.submit_tool_results(self.id, results))

    def compact(self) -> Reply:
        """Shorten the model's view of the conversation to a summary. The reply has no text."""
        return self._reply(lambda: self._service.compact(self.id))

    async def interrupt(self, *, turn: str | None = None, wait: bool = True) -> InterruptResult:
        """Stop the running reply and keep what it said. With `turn`, only if that one is still running."""
        return await self._service.interrupt(self.id, turn=turn, wait_s=None if wait else 0)

    # --- reading ---

    async def details(self) -> ChatDetails:
        """The chat as it is now: status, queue, the running reply, the last messages, a cursor to read on from."""
        return await self._service.get_chat(self.id)

    async def status(self) -> str:
        return await self._service.get_status(self.id)

    async def messages(self, *, before: str | None = None, limit: int | None = None) -> list[ChatMessage]:
        """The conversation as people see it, oldest first: all of it, or the last `limit` above `before`."""
        found: list[ChatMessage] = []
        while limit is None or len(found) < limit:
            size = MAX_PAGE if limit is None else min(MAX_PAGE, limit - len(found))
            page = await self._service.list_messages(self.id, before=before, limit=size)
            found = [*page.items, *found]
            before = page.next
            if before is None:
                break
        return found

    async def events(self, *, after: str | None = None) -> AsyncGenerator[FeedEvent, None]:
        """The feed: a snapshot and then what happens, or what has happened since the cursor `after`."""
        async with self._service.open_events(self.id, after=after) as events:
            async for event in events:
                yield event

    async def attempts(self, *, before: str | None = None, limit: int = 50) -> list[AttemptView]:
        """What was tried, the newest first, also what came to nothing."""
        return (await self._service.list_attempts(self.id, before=before, limit=limit)).items

    async def runs(self, *, before: str | None = None, limit: int = 50) -> list[RunSummary]:
        """What was recorded of the work with models, the newest first."""
        return (await self._service.list_runs(self.id, before=before, limit=limit)).items

    async def run(self, run_id: str) -> RunTree:
        """One recorded run with its steps and exchanges."""
        return await self._service.get_run(self.id, run_id)

    # --- the queue ---

    async def queue(self) -> list[QueuedMessage]:
        """What waits its turn, in order."""
        return (await self._service.list_queue(self.id)).items

    async def edit_queued(self, queued_id: str, content: Content) -> None:
        """Replace the content of a message that still waits."""
        await self._service.edit_queued(self.id, queued_id, content)

    async def delete_queued(self, queued_id: str) -> None:
        """Remove a message from the queue."""
        await self._service.delete_queued(self.id, queued_id)

    async def reorder_queue(self, queued_ids: Sequence[str]) -> None:
        """Put the queue into another order; every message of it has to be named once."""
        await self._service.reorder_queue(self.id, queued_ids)

    async def promote_queued(self, queued_id: str) -> None:
        """Answer this message now: a running reply is stopped for it."""
        await self._service.promote_queued(self.id, queued_id)

    # --- the chat itself ---

    async def update(
        self,
        *,
        title: str | msgspec.UnsetType | None = msgspec.UNSET,
        labels: list[str] | msgspec.UnsetType | None = msgspec.UNSET,
        pinned: bool | msgspec.UnsetType = msgspec.UNSET,
        archived: bool | msgspec.UnsetType = msgspec.UNSET,
        model: str | msgspec.UnsetType | None = msgspec.UNSET,
        system: str | msgspec.UnsetType | None = msgspec.UNSET,
        parameters: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET,
        debug: DebugMode | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> None:
        """Change what is given; None removes it: `await chat.update(title="Rain", labels=["weather"])`."""
        changes = ChatChanges(
            title=title,
            labels=labels,
            pinned=pinned,
            archived=archived,
            model=model,
            system=system,
            parameters=parameters,
            debug=debug,
        )
        await self._service.update_chat(self.id, changes)

    async def archive(self, *, archived: bool = True) -> None:
        """Put the chat away, or bring it back."""
        await self.update(archived=archived)

    async def switch_branch(self, message_id: str) -> None:
        """Go to the branch that ends with this message."""
        await self._service.switch_branch(self.id, message_id)

    async def fork(self, message_id: str) -> Chat:
        """A new chat that begins with a copy of this one up to the message."""
        return Chat(self._service, (await self._service.fork_chat(self.id, message_id)).id)

    async def delete(self) -> None:
        """Remove the chat and everything that belongs to it. This cannot be undone."""
        await self._service.delete_chat(self.id)

    def _reply(self, begin: Callable[[], Awaitable[Accepted]]) -> Reply:
        return Reply(self._service, self.id, begin)
