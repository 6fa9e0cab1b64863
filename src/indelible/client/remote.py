"""Every use case on a server behind a URL (see service/protocol.py for what each one promises).

Each method is one request of wire.py, whose JSON is decoded into the same types that the server encoded
(service/results.py). Unknown fields are ignored, so a newer server does no harm.

`Chat` and `Reply` do not see the differences from the service in process: when a server shuts down, the feed reconnects
with its cursor, and a stop that takes longer than one request is requested again.

Must stay true (tests/app/test_same_script.py): one script gives the same results here and in process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, TypeVar

import msgspec

from indelible.client.files import RemoteFiles
from indelible.client.lists import RemoteLists
from indelible.client.wire import WireClient
from indelible.content import ToolResult, ToolSpec
from indelible.machine.events import FeedEvent, MessageTree
from indelible.recording.storage.protocol import RunTree
from indelible.service.inputs import ChatChanges, Content, IfBusy, list_blocks
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
    UpdatedChat,
)

T = TypeVar("T")

_LONGEST_WAIT_S: Final = 60.0
"""The longest that the server waits for the end of a turn in one request."""


class RemoteService:
    """The use cases of the user of the token."""

    def __init__(self, wire: WireClient) -> None:
        self._wire = wire
        self.files = RemoteFiles(wire)

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
        given = None if message is None else _write(message)
        declared = None if tools is None else [_declare(tool) for tool in tools]
        answer = await self._wire.create_chat(
            given, model=model, system=system, title=title, parameters=parameters, tools=declared
        )
        return _read(answer, CreatedChat)

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
        chosen: dict[str, Any] = {"label": label, "pinned": pinned, "archived": archived, "unread": unread}
        return _read(await self._wire.list_chats(search=search, **chosen, limit=limit, cursor=cursor), ChatPage)

    @property
    def lists(self) -> RemoteLists:
        return RemoteLists(self._wire)

    async def check_chat(self, chat_id: str) -> None:
        await self._wire.list_queue(chat_id)  # the smallest answer that a chat has

    async def get_status(self, chat_id: str) -> str:
        return (await self.get_chat(chat_id)).status

    async def get_chat(self, chat_id: str) -> ChatDetails:
        return _read(await self._wire.get_chat(chat_id), ChatDetails)

    async def update_chat(self, chat_id: str, changes: ChatChanges) -> UpdatedChat:
        given = msgspec.to_builtins(changes)
        if isinstance(changes.tools, list):
            given["tools"] = [_declare(tool) for tool in changes.tools]
        return _read(await self._wire.update_chat(chat_id, **given), UpdatedChat)

    async def delete_chat(self, chat_id: str) -> None:
        await self._wire.delete_chat(chat_id)

    async def fork_chat(self, chat_id: str, message_id: str) -> CreatedChat:
        return _read(await self._wire.fork_chat(chat_id, message_id), CreatedChat)

    # --- messages ---

    async def list_messages(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
    ) -> MessagePage:
        return _read(await self._wire.list_messages(chat_id, before=before, after=after, limit=limit), MessagePage)

    async def send(
        self, chat_id: str, content: Content, *, if_busy: IfBusy = "queue", model: str | None = None
    ) -> Accepted:
        return _read(await self._wire.send(chat_id, _write(content), if_busy=if_busy, model=model), Accepted)

    async def edit(self, chat_id: str, message_id: str, content: Content, *, model: str | None = None) -> Accepted:
        return _read(await self._wire.edit(chat_id, message_id, _write(content), model=model), Accepted)

    async def regenerate(self, chat_id: str, message_id: str, *, model: str | None = None) -> Accepted:
        return _read(await self._wire.regenerate(chat_id, message_id, model=model), Accepted)

    async def switch_branch(self, chat_id: str, message_id: str, *, exact: bool = False) -> Accepted:
        return _read(await self._wire.switch_branch(chat_id, message_id, exact=exact), Accepted)

    async def get_tree(self, chat_id: str) -> MessageTree:
        return _read(await self._wire.get_tree(chat_id), MessageTree)

    # --- turns ---

    async def interrupt(self, chat_id: str, *, turn: str | None = None, wait_s: float | None = 0) -> InterruptResult:
        each_s = _LONGEST_WAIT_S if wait_s is None else min(wait_s, _LONGEST_WAIT_S)
        first = _read(await self._wire.interrupt(chat_id, turn=turn, wait_s=each_s), InterruptResult)
        latest = first
        while wait_s is None and latest.status == "interrupting" and latest.turn in (turn, first.turn):
            latest = _read(await self._wire.interrupt(chat_id, turn=first.turn, wait_s=each_s), InterruptResult)
        message_id = latest.message_id or first.message_id
        return msgspec.structs.replace(latest, stopped=first.stopped, message_id=message_id)

    async def retry(self, chat_id: str, *, model: str | None = None) -> Accepted:
        return _read(await self._wire.retry(chat_id, model=model), Accepted)

    async def continue_(self, chat_id: str, *, model: str | None = None) -> Accepted:
        return _read(await self._wire.continue_(chat_id, model=model), Accepted)

    async def compact(self, chat_id: str) -> Accepted:
        return _read(await self._wire.compact(chat_id), Accepted)

    async def submit_tool_results(
        self, chat_id: str, results: Sequence[ToolResult], *, turn: str | None = None
    ) -> Accepted:
        given = [
            {"tool_call_id": result.call_id, "output": result.output, "is_error": result.is_error} for result in results
        ]
        return _read(await self._wire.submit_tool_results(chat_id, msgspec.to_builtins(given), turn=turn), Accepted)

    # --- the queue ---

    async def list_queue(self, chat_id: str) -> QueuePage:
        return _read({"items": await self._wire.list_queue(chat_id)}, QueuePage)

    async def edit_queued(self, chat_id: str, queued_id: str, content: Content) -> Accepted:
        return _read(await self._wire.edit_queued(chat_id, queued_id, _write(content)), Accepted)

    async def delete_queued(self, chat_id: str, queued_id: str) -> None:
        await self._wire.delete_queued(chat_id, queued_id)

    async def reorder_queue(self, chat_id: str, queued_ids: Sequence[str]) -> Accepted:
        return _read(await self._wire.reorder_queue(chat_id, queued_ids), Accepted)

    async def promote_queued(self, chat_id: str, queued_id: str) -> Accepted:
        return _read(await self._wire.promote_queued(chat_id, queued_id), Accepted)

    # --- events, attempts and runs ---

    @asynccontextmanager
    async def open_events(self, chat_id: str, *, after: str | None = None) -> AsyncIterator[AsyncIterator[FeedEvent]]:
        async with aclosing(self._wire.stream_feed(chat_id, after=after)) as events:
            yield events

    async def list_attempts(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
    ) -> AttemptPage:
        return _read(await self._wire.list_attempts(chat_id, before=before, after=after, limit=limit), AttemptPage)

    async def list_runs(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
    ) -> RunPage:
        return _read(await self._wire.list_runs(chat_id, before=before, after=after, limit=limit), RunPage)

    async def get_run(self, chat_id: str, run_id: str) -> RunTree:
        return _read(await self._wire.read_run(chat_id, run_id, bodies=False), RunTree)

    async def list_models(self) -> ModelPage:
        return _read({"items": await self._wire.list_models()}, ModelPage)


def _declare(tool: ToolSpec) -> dict[str, Any]:
    """A tool that the client runs, as the server takes it."""
    return {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}


def _read(answer: dict[str, Any], result_type: type[T]) -> T:
    return msgspec.convert(answer, result_type)


def _write(content: Content) -> str | list[dict[str, Any]]:
    return content if isinstance(content, str) else msgspec.to_builtins(list_blocks(content))
