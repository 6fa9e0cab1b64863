"""One chat: every method is one use case, durable or refused.

The same class serves chats of this process and chats behind a server: what differs is the service under it
(api/operations.py). Reading is separate from running. Leaving a loop over a reply stops nothing: the reply continues
and is saved, and `chat.events(after=cursor)` resumes reading it from anywhere.

The service lists in pages; a program asks for as many items as it wants, or for all of them (`collect_pages`). Nothing
is asked for beyond the limit, and the cursor of a page leads to the next one until there is none. The pages stay apart,
because messages come newest page first with the oldest message of each page first: only the caller knows how to join
them.

Must stay true: the same script gives the same results in process and over HTTP (tests/app/test_same_script.py); no page
is larger than the service allows, or than what is still wanted (tests/app/test_collect_pages.py).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from indelible.api import inputs, shapes
from indelible.api.events import FeedEvent, MessageTree
from indelible.api.operations import MAX_PAGE, ChatApi
from indelible.api.records import RunSummary, RunTree
from indelible.app.archive import write_archive
from indelible.app.reply import Reply
from indelible.content import ToolResult, ToolSpec


class Chat:
    """One chat. A method that is not allowed in the chat's state raises `Refused` and changes nothing."""

    def __init__(self, service: ChatApi, chat_id: str) -> None:
        self.id = chat_id
        self._service = service

    def __repr__(self) -> str:
        return f"Chat({self.id!r})"

    # --- sending ---

    def stream(
        self, content: inputs.Content, *, if_busy: inputs.IfBusy = "queue", model: str | None = None
    ) -> AbstractAsyncContextManager[Reply]:
        """Send a message and read the reply within the block: `async with chat.stream("…") as reply`.

        The message is on disk when the block begins. Leaving the block stops reading, not the reply.
        """
        return self.send(content, if_busy=if_busy, model=model)

    def send(self, content: inputs.Content, *, if_busy: inputs.IfBusy = "queue", model: str | None = None) -> Reply:
        """Send a message; the reply is read part by part (`async for`) or as a whole (`await`).

        if_busy: "queue" waits for its turn, "interrupt" stops a running reply first, "steer" joins it.
        Nothing is sent until the reply is read; a reply that is never read causes a warning (`NeverSent`).
        """
        inputs.check_if_busy(if_busy)
        message = inputs.NewMessage(content=inputs.to_blocks(content), if_busy=if_busy, model=model)
        return self._reply(lambda: self._service.send(self.id, message))

    async def post(
        self, content: inputs.Content, *, if_busy: inputs.IfBusy = "queue", model: str | None = None
    ) -> shapes.Accepted:
        """Send a message without waiting for the reply. When this returns, the message is on disk."""
        inputs.check_if_busy(if_busy)
        message = inputs.NewMessage(content=inputs.to_blocks(content), if_busy=if_busy, model=model)
        return await self._service.send(self.id, message)

    def edit(self, message_id: str, content: inputs.Content, *, model: str | None = None) -> Reply:
        """Edit one of your messages. The old message and its replies are kept as a branch."""
        message = inputs.EditedMessage(content=inputs.to_blocks(content), model=model)
        return self._reply(lambda: self._service.edit(self.id, message_id, message))

    def regenerate(self, message_id: str, *, model: str | None = None) -> Reply:
        """Regenerate a reply, or answer one of your messages again; the old reply is kept as a branch."""
        return self._reply(lambda: self._service.regenerate(self.id, message_id, inputs.TurnRequest(model=model)))

    def retry(self, *, model: str | None = None) -> Reply:
        """Retry after an error, or a message that has no complete reply, optionally with another model.

        A partial reply is continued.
        """
        return self._reply(lambda: self._service.retry(self.id, inputs.TurnRequest(model=model)))

    def continue_(self, *, model: str | None = None) -> Reply:
        """Continue an interrupted reply."""
        return self._reply(lambda: self._service.continue_(self.id, inputs.TurnRequest(model=model)))

    def submit_tool_results(self, results: Sequence[ToolResult], *, turn: str | None = None) -> Reply:
        """Submit the results of the client tools that the reply is waiting for, all at once.

        With `turn`, results that come too late are refused, even if a later reply waits for calls with the same ids.
        """
        body = inputs.ToolResultsRequest(results=inputs.to_results(results), turn=turn)
        return self._reply(lambda: self._service.submit_tool_results(self.id, body))

    def compact(self) -> Reply:
        """Replace older turns by a summary in the model's prompt. The reply has no text."""
        return self._reply(lambda: self._service.compact(self.id))

    async def interrupt(self, *, turn: str | None = None, wait: bool = True) -> shapes.InterruptResult:
        """Stop the running reply; what was written is saved. With `turn`, only if that turn is still running."""
        if wait:
            return await self._service.interrupt_and_wait(self.id, turn=turn)
        return await self._service.interrupt(self.id, inputs.Interruption(turn=turn))

    # --- reading ---

    async def details(self) -> shapes.ChatDetails:
        """The chat as it is now: status, queue, the running reply, the last messages, the cursor to continue from."""
        return await self._service.get_chat(self.id)

    async def status(self) -> str:
        """The chat's status: "idle", "running", "error" and so on (docs/states.md)."""
        return await self._service.get_status(self.id)

    async def messages(self, *, before: str | None = None, limit: int | None = None) -> list[shapes.ChatMessage]:
        """The conversation as people see it, oldest first: all of it, or the last `limit` messages before `before`."""
        pages = await collect_pages(
            lambda before, size: self._service.list_messages(self.id, before=before, limit=size), limit, start=before
        )
        return [message for items in reversed(pages) for message in items]

    async def tree(self) -> MessageTree:
        """Every message of every branch in short: id, parent, role, model, time and the beginning of its text."""
        return await self._service.get_tree(self.id)

    def events(self, *, after: str | None = None) -> AsyncGenerator[FeedEvent, None]:
        """The feed: a snapshot, then new events; or everything since the cursor `after`.

        It ends when the process is told to end (SIGTERM).
        """
        return self._service.readings.add_endless(self._service.open_events(self.id, after=after))

    async def attempts(self, *, before: str | None = None, limit: int = 50) -> list[shapes.AttemptView]:
        """Every attempt, newest first, failed ones included."""
        return (await self._service.list_attempts(self.id, before=before, limit=limit)).items

    async def runs(self, *, before: str | None = None, limit: int = 50) -> list[RunSummary]:
        """The recorded runs, newest first."""
        return (await self._service.list_runs(self.id, before=before, limit=limit)).items

    async def run(self, run_id: str) -> RunTree:
        """One recorded run with its steps and exchanges."""
        return await self._service.get_run(self.id, run_id)

    # --- beside the conversation ---

    async def mark_read(self, seq: int | None = None) -> None:
        """Mark the chat as read: it is unread again when the next reply comes. With `seq`, up to this event."""
        await self._service.lists.mark_read(self.id, inputs.ReadRequest(seq=seq))

    async def draft(self) -> str:
        """What you have typed in this chat and not sent yet."""
        return (await self._service.lists.get_draft(self.id)).text

    async def save_draft(self, text: str) -> None:
        """Keep what you have typed; an empty text deletes it. Nobody else sees it."""
        await self._service.lists.save_draft(self.id, inputs.DraftRequest(text=text))

    async def export(self, format: shapes.ExportFormat = "json") -> bytes:
        """The chat as a file: all of it as JSON, for `user.import_chat`, or the active branch as Markdown ("md")."""
        return await self._service.lists.export_chat(self.id, format)

    async def export_archive(self, path: str | Path) -> None:
        """Write the chat and its files to a ZIP archive, for `user.import_archive`, here or on another server."""
        await write_archive(self._service, self.id, Path(path))

    # --- the queue ---

    async def queue(self) -> list[shapes.QueuedMessage]:
        """The queued messages, in order."""
        return (await self._service.list_queue(self.id)).items

    async def edit_queued(self, queued_id: str, content: inputs.Content) -> None:
        """Edit a queued message."""
        await self._service.edit_queued(self.id, queued_id, inputs.MessageContent(content=inputs.to_blocks(content)))

    async def delete_queued(self, queued_id: str) -> None:
        """Remove a message from the queue."""
        await self._service.delete_queued(self.id, queued_id)

    async def reorder_queue(self, queued_ids: Sequence[str]) -> None:
        """Reorder the queue. Name every queued message exactly once."""
        await self._service.reorder_queue(self.id, inputs.QueueOrder(ids=list(queued_ids)))

    async def promote_queued(self, queued_id: str) -> None:
        """Send this queued message now; a running reply is stopped for it."""
        await self._service.promote_queued(self.id, queued_id)

    # --- the chat ---

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
        tools: list[ToolSpec] | msgspec.UnsetType | None = msgspec.UNSET,
        debug: shapes.DebugMode | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> None:
        """Update the given fields; None clears a field: `await chat.update(title="Rain", labels=["weather"])`."""
        changes = inputs.ChatChanges(
            title=title,
            labels=labels,
            pinned=pinned,
            archived=archived,
            model=model,
            system=system,
            parameters=parameters,
            tools=inputs.declare_tools(tools) if isinstance(tools, list) else tools,
            debug=debug,
        )
        await self._service.update_chat(self.id, changes)

    async def archive(self, *, archived: bool = True) -> None:
        """Archive the chat, or unarchive it."""
        await self.update(archived=archived)

    async def switch_branch(self, message_id: str, *, exact: bool = False) -> None:
        """Switch to the branch of this message, at its newest end; with `exact`, to the message itself."""
        await self._service.switch_branch(self.id, inputs.BranchTarget(message_id=message_id, exact=exact))

    async def fork(self, message_id: str) -> Chat:
        """Create a chat that starts with a copy of this one, up to and including the message."""
        return Chat(self._service, (await self._service.fork_chat(self.id, inputs.Fork(message_id=message_id))).id)

    async def delete(self) -> None:
        """Delete the chat and all its data. This can't be undone."""
        await self._service.delete_chat(self.id)

    def _reply(self, begin: Callable[[], Awaitable[shapes.Accepted]]) -> Reply:
        return Reply(self._service, self.id, begin)


T_co = TypeVar("T_co", covariant=True)


class ItemPage(Protocol[T_co]):
    """Some items, and the cursor of the next page, if there is one."""

    @property
    def items(self) -> Sequence[T_co]: ...

    @property
    def next(self) -> str | None: ...


async def collect_pages(
    fetch: Callable[[str | None, int], Awaitable[ItemPage[T_co]]], limit: int | None, *, start: str | None = None
) -> list[Sequence[T_co]]:
    """The items of each page from the cursor `start` on, at most `limit` in all. `fetch` gets a cursor and a size."""
    pages: list[Sequence[T_co]] = []
    cursor, count = start, 0
    while limit is None or count < limit:
        page = await fetch(cursor, MAX_PAGE if limit is None else min(MAX_PAGE, limit - count))
        pages.append(page.items)
        count += len(page.items)
        cursor = page.next
        if cursor is None:
            break
    return pages
