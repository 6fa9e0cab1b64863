"""Chats on a server, with the same `User`, `Chat` and `Reply` as in process.

    async with indelible.Client("http://127.0.0.1:8000") as ada:
        chat = await ada.create_chat()
        print((await chat.send("Is it raining in Oslo?")).text)

Without arguments the address and the token come from INDELIBLE_URL and INDELIBLE_TOKEN. Each method of a service is one
route: http_transport.py sends the request, and waits up to `retry_for_s` for a lost connection or a restarting server.
It repeats a write with its idempotency key, and resumes a feed from its cursor, so nothing is done twice or missed. An
upload is a stream that is opened again and sent again; the client asks before it sends (`Expect: 100-continue`), so a
file that is refused for its size is refused before any of it travels. A download is continued from where it stopped.

Must stay true (tests/app/test_same_script.py): one script gives the same results here and in process.
(tests/server/test_remote.py, tests/server/test_file_routes.py, tests/server/test_unreliable_servers.py).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import date
from typing import Any, Final, Self

import msgspec

from indelible.api.events import FeedEvent, MessageTree
from indelible.api.inputs import ChatChanges, Content, IfBusy, OpenChunks, list_blocks
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
from indelible.app.app import User
from indelible.client.http_transport import HttpTransport
from indelible.concurrency.readings import Readings
from indelible.content import ToolResult, ToolSpec
from indelible.errors import Invalid

URL_VARIABLE: Final = "INDELIBLE_URL"
TOKEN_VARIABLE: Final = "INDELIBLE_TOKEN"  # noqa: S105  (the name of a variable)


class Client(User):
    """The chats of a server, as the user of the token. Use it with `async with`."""

    def __init__(self, url: str | None = None, *, token: str | None = None, retry_for_s: float = 30.0) -> None:
        address = url or os.environ.get(URL_VARIABLE)
        if not address:
            raise Invalid(f"Give the client the server's URL, or set {URL_VARIABLE}.")
        if not address.startswith(("http://", "https://")):
            raise Invalid(f"The server's URL must begin with http:// or https://; got {address!r}.")
        self.url = address.rstrip("/")
        self._http = HttpTransport(self.url, token=token or os.environ.get(TOKEN_VARIABLE), retry_for_s=retry_for_s)
        super().__init__(RemoteService(self._http))

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._service.readings.aclose()
        finally:
            await self._http.__aexit__()


_BYTES: Final = "application/octet-stream"


class RemoteFiles:
    """The files of the user of the token."""

    def __init__(self, http: HttpTransport) -> None:
        self._http = http

    async def upload(
        self, open_chunks: OpenChunks, *, name: str, media_type: str | None = None, size: int | None = None
    ) -> StoredFile:
        headers = {"Content-Type": media_type or _BYTES}
        if size is not None:
            headers["Content-Length"] = str(size)
        return await self._http.upload(StoredFile, "/files", open_chunks, query={"name": name}, headers=headers)

    async def list_files(self, *, limit: int = 50, cursor: str | None = None) -> FilePage:
        return await self._http.read(FilePage, "/files", {"limit": limit, "cursor": cursor})

    async def get_file(self, file_id: str) -> StoredFile:
        return await self._http.read(StoredFile, f"/files/{file_id}/info")

    @asynccontextmanager
    async def open_file(
        self, file_id: str, *, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        size = (await self.get_file(file_id)).size
        stop = size if stop is None else min(stop, size)
        async with aclosing(self._http.download(f"/files/{file_id}", start, stop)) as chunks:
            yield chunks

    async def load_preview(self, file_id: str) -> bytes:
        return await self._http.read_bytes(f"/files/{file_id}/preview")

    async def delete_file(self, file_id: str) -> None:
        await self._http.delete(f"/files/{file_id}")


class RemoteLists:
    """The lists of the user of the token."""

    def __init__(self, http: HttpTransport) -> None:
        self._http = http

    async def mark_read(self, chat_id: str, seq: int | None = None) -> None:
        await self._http.write(object, "POST", f"/chats/{chat_id}/read", {"seq": seq})

    async def get_draft(self, chat_id: str) -> Draft:
        return await self._http.read(Draft, f"/chats/{chat_id}/draft")

    async def save_draft(self, chat_id: str, text: str) -> None:
        await self._http.write(object, "PUT", f"/chats/{chat_id}/draft", {"text": text})

    async def export_chat(self, chat_id: str, format: ExportFormat = "json") -> bytes:
        return await self._http.read_bytes(f"/chats/{chat_id}/export", {"format": format})

    async def import_chat(self, content: bytes) -> CreatedChat:
        return await self._http.write(CreatedChat, "POST", "/chats/import", content)

    async def get_usage(
        self, *, since: date | None = None, until: date | None = None, user: str | None = None, by_user: bool = False
    ) -> UsagePage:
        query = {"since": since, "until": until, "user": user, "by": "user" if by_user else None}
        return await self._http.read(UsagePage, "/usage", query)

    @asynccontextmanager
    async def open_tab(
        self, chat_id: str | None = None, *, after: str | None = None
    ) -> AsyncIterator[AsyncIterator[FeedEvent]]:
        async with aclosing(self._http.follow("/events", {"chat": chat_id}, after=after)) as events:
            yield events


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
