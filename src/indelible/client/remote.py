"""Every use case on a server behind a URL (see service/protocol.py for what each one promises).

Each method is one route: http_transport.py sends the request, and repeats it if the response was lost; the JSON of the
response becomes the type that the server encoded (api/shapes.py). lists.py and files.py have the routes beside a
conversation.

`Chat` and `Reply` do not see the differences from the service in process: when a server shuts down, the feed reconnects
with its cursor, and a stop that takes longer than one request is requested again.

Must stay true (tests/app/test_same_script.py): one script gives the same results here and in process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import msgspec

from indelible.api.events import FeedEvent, MessageTree
from indelible.api.records import RunTree
from indelible.api.shapes import (
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
from indelible.client.files import RemoteFiles
from indelible.client.http_transport import HttpTransport
from indelible.client.lists import RemoteLists
from indelible.concurrency.readings import Readings
from indelible.content import ToolResult, ToolSpec
from indelible.service.inputs import ChatChanges, Content, IfBusy, list_blocks

_LONGEST_WAIT_S: Final = 60.0
"""The longest that the server waits for the end of a turn in one request."""


class RemoteService:
    """The use cases of the user of the token. `http` is for a program that wants the JSON as the server sent it."""

    def __init__(self, http: HttpTransport) -> None:
        self.http = http
        self.readings = Readings()
        self.files = RemoteFiles(http)
        self.lists = RemoteLists(http)

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
        given = None if message is None else _write_content(message)
        declared = None if tools is None else [_declare(tool) for tool in tools]
        chosen = {"model": model, "system": system, "title": title}
        body = {"message": given, **chosen, "parameters": parameters, "tools": declared}
        return await self.http.write(CreatedChat, "POST", "/chats", body)

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
        query = {"q": search, "label": label, "pinned": pinned, "archived": archived, "unread": unread}
        return await self.http.read(ChatPage, "/chats", {**query, "limit": limit, "cursor": cursor})

    async def check_chat(self, chat_id: str) -> None:
        await self.list_messages(chat_id, limit=1)  # what guests may read too

    async def get_status(self, chat_id: str) -> str:
        return (await self.get_chat(chat_id)).status

    async def get_chat(self, chat_id: str) -> ChatDetails:
        return await self.http.read(ChatDetails, f"/chats/{chat_id}")

    async def update_chat(self, chat_id: str, changes: ChatChanges) -> UpdatedChat:
        given = msgspec.to_builtins(changes)
        if isinstance(changes.tools, list):
            given["tools"] = [_declare(tool) for tool in changes.tools]
        return await self.http.write(UpdatedChat, "PATCH", f"/chats/{chat_id}", given)

    async def delete_chat(self, chat_id: str) -> None:
        await self.http.delete(f"/chats/{chat_id}")

    async def fork_chat(self, chat_id: str, message_id: str) -> CreatedChat:
        return await self.http.write(CreatedChat, "POST", f"/chats/{chat_id}/fork", {"message_id": message_id})

    # --- messages ---

    async def list_messages(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
    ) -> MessagePage:
        query = {"before": before, "after": after, "limit": limit}
        return await self.http.read(MessagePage, f"/chats/{chat_id}/messages", query)

    async def send(
        self, chat_id: str, content: Content, *, if_busy: IfBusy = "queue", model: str | None = None
    ) -> Accepted:
        body = {**_write_message(content), "if_busy": if_busy, "model": model}
        return await self.http.write(Accepted, "POST", f"/chats/{chat_id}/messages", body)

    async def edit(self, chat_id: str, message_id: str, content: Content, *, model: str | None = None) -> Accepted:
        body = {**_write_message(content), "model": model}
        return await self.http.write(Accepted, "POST", f"/chats/{chat_id}/messages/{message_id}/edit", body)

    async def regenerate(self, chat_id: str, message_id: str, *, model: str | None = None) -> Accepted:
        path = f"/chats/{chat_id}/messages/{message_id}/regenerate"
        return await self.http.write(Accepted, "POST", path, {"model": model})

    async def switch_branch(self, chat_id: str, message_id: str, *, exact: bool = False) -> Accepted:
        body = {"message_id": message_id, "exact": exact}
        return await self.http.write(Accepted, "POST", f"/chats/{chat_id}/branch", body)

    async def get_tree(self, chat_id: str) -> MessageTree:
        return await self.http.read(MessageTree, f"/chats/{chat_id}/tree")

    # --- turns ---

    async def interrupt(self, chat_id: str, *, turn: str | None = None, wait_s: float | None = 0) -> InterruptResult:
        each_s = _LONGEST_WAIT_S if wait_s is None else min(wait_s, _LONGEST_WAIT_S)
        first = latest = await self._interrupt(chat_id, turn, each_s)
        while wait_s is None and latest.status == "interrupting" and latest.turn in (turn, first.turn):
            latest = await self._interrupt(chat_id, first.turn, each_s)
        message_id = latest.message_id or first.message_id
        return msgspec.structs.replace(latest, stopped=first.stopped, message_id=message_id)

    async def _interrupt(self, chat_id: str, turn: str | None, wait_s: float) -> InterruptResult:
        body = {"wait_s": wait_s, "turn": turn}
        return await self.http.write(InterruptResult, "POST", f"/chats/{chat_id}/interrupt", body)

    async def retry(self, chat_id: str, *, model: str | None = None) -> Accepted:
        return await self.http.write(Accepted, "POST", f"/chats/{chat_id}/retry", {"model": model})

    async def continue_(self, chat_id: str, *, model: str | None = None) -> Accepted:
        return await self.http.write(Accepted, "POST", f"/chats/{chat_id}/continue", {"model": model})

    async def compact(self, chat_id: str) -> Accepted:
        return await self.http.write(Accepted, "POST", f"/chats/{chat_id}/compact")

    async def submit_tool_results(
        self, chat_id: str, results: Sequence[ToolResult], *, turn: str | None = None
    ) -> Accepted:
        given = [
            {"tool_call_id": result.call_id, "output": result.output, "is_error": result.is_error} for result in results
        ]
        body = {"results": msgspec.to_builtins(given), "turn": turn}
        return await self.http.write(Accepted, "POST", f"/chats/{chat_id}/tool-results", body)

    # --- the queue ---

    async def list_queue(self, chat_id: str) -> QueuePage:
        return await self.http.read(QueuePage, f"/chats/{chat_id}/queue")

    async def edit_queued(self, chat_id: str, queued_id: str, content: Content) -> Accepted:
        body = _write_message(content)
        return await self.http.write(Accepted, "PATCH", f"/chats/{chat_id}/queue/{queued_id}", body)

    async def delete_queued(self, chat_id: str, queued_id: str) -> None:
        await self.http.delete(f"/chats/{chat_id}/queue/{queued_id}")

    async def reorder_queue(self, chat_id: str, queued_ids: Sequence[str]) -> Accepted:
        return await self.http.write(Accepted, "PUT", f"/chats/{chat_id}/queue/order", {"ids": list(queued_ids)})

    async def promote_queued(self, chat_id: str, queued_id: str) -> Accepted:
        return await self.http.write(Accepted, "POST", f"/chats/{chat_id}/queue/{queued_id}/promote")

    # --- events, attempts and runs ---

    @asynccontextmanager
    async def open_events(
        self, chat_id: str, *, after: str | None = None, on_reconnect: Callable[[], None] | None = None
    ) -> AsyncIterator[AsyncIterator[FeedEvent]]:
        """`on_reconnect` is called when a lost connection is restored."""
        feed = self.http.follow(f"/chats/{chat_id}/events", after=after, on_reconnect=on_reconnect)
        async with aclosing(feed) as events:
            yield events

    async def list_attempts(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
    ) -> AttemptPage:
        query = {"before": before, "after": after, "limit": limit}
        return await self.http.read(AttemptPage, f"/chats/{chat_id}/attempts", query)

    async def list_runs(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
    ) -> RunPage:
        query = {"before": before, "after": after, "limit": limit}
        return await self.http.read(RunPage, f"/chats/{chat_id}/debug/runs", query)

    async def get_run(self, chat_id: str, run_id: str) -> RunTree:
        return await self.http.read(RunTree, f"/chats/{chat_id}/debug/runs/{run_id}", {"bodies": False})

    async def list_models(self) -> ModelPage:
        return await self.http.read(ModelPage, "/models")


def _declare(tool: ToolSpec) -> dict[str, Any]:
    """A tool that the client runs, as the server takes it."""
    return {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}


def _write_content(content: Content) -> str | list[dict[str, Any]]:
    return content if isinstance(content, str) else msgspec.to_builtins(list_blocks(content))


def _write_message(content: Content) -> dict[str, Any]:
    written = _write_content(content)
    return {"text" if isinstance(written, str) else "content": written}
