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
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from inspect import signature
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar, cast, get_type_hints
from urllib.parse import quote

from msgspec.structs import replace

from indelible.api.events import FeedEvent
from indelible.api.inputs import Interruption, OpenChunks
from indelible.api.operations import AccountApi, ChatApi, FileApi, ListApi, Operation
from indelible.api.records import RunTree
from indelible.api.shapes import CreatedChat, ExportFormat, InterruptResult, StoredFile
from indelible.app.app import User
from indelible.client.http_transport import HttpTransport
from indelible.concurrency.readings import Readings
from indelible.errors import Invalid

URL_VARIABLE: Final = "INDELIBLE_URL"
TOKEN_VARIABLE: Final = "INDELIBLE_TOKEN"  # noqa: S105  (the name of a variable)
_BYTES: Final = "application/octet-stream"
_LONGEST_WAIT_S: Final = 60.0
"""The longest that the server waits for the end of a turn in one request."""
P = ParamSpec("P")
C = TypeVar("C", bound=Coroutine[Any, Any, Any])


def remote(declared: Callable[Concatenate[Any, P], C]) -> Callable[Concatenate[Any, P], C]:
    """The method that asks the route of a use case (api/operations.py). Type checkers see its declared signature."""
    operation: Operation = vars(declared)["operation"]
    _, *names = signature(declared).parameters
    in_path = [name for name in names if f"{{{name}}}" in operation.path]
    in_query = [name for name in names if name not in (*in_path, "body")]
    result = get_type_hints(declared)["return"]
    kind = object if result is type(None) else result  # a response without a body has none

    async def ask(service: _Remote, /, *args: Any, **named: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | named
        path = operation.path.format_map({name: quote(given[name], safe="") for name in in_path})
        if operation.method == "GET":
            return await service.http.read(kind, path, {name: given.get(name) for name in in_query})
        if operation.method == "DELETE":
            return await service.http.delete(path)
        return await service.http.write(kind, operation.method, path, given.get("body"))

    ask.__name__, ask.__doc__ = declared.__name__, declared.__doc__
    return cast("Callable[Concatenate[Any, P], C]", ask)


class _Remote:
    """What the user of the token may do. `http` is for a program that wants the JSON as the server sent it."""

    def __init__(self, http: HttpTransport) -> None:
        self.http = http


class RemoteFiles(_Remote):
    """The files of the user of the token."""

    list_files = remote(FileApi.list_files)
    get_file = remote(FileApi.get_file)
    delete_file = remote(FileApi.delete_file)

    async def upload(
        self, open_chunks: OpenChunks, *, name: str, media_type: str | None = None, size: int | None = None
    ) -> StoredFile:
        headers = {"Content-Type": media_type or _BYTES}
        if size is not None:
            headers["Content-Length"] = str(size)
        return await self.http.upload(StoredFile, "/files", open_chunks, query={"name": name}, headers=headers)

    @asynccontextmanager
    async def open_file(
        self, file_id: str, *, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        size = (await self.get_file(file_id)).size
        stop = size if stop is None else min(stop, size)
        async with aclosing(self.http.download(f"/files/{file_id}", start, stop)) as chunks:
            yield chunks

    async def load_preview(self, file_id: str) -> bytes:
        return await self.http.read_bytes(f"/files/{file_id}/preview")


class RemoteLists(_Remote):
    """The lists of the user of the token."""

    mark_read = remote(ListApi.mark_read)
    get_draft = remote(ListApi.get_draft)
    save_draft = remote(ListApi.save_draft)
    get_usage = remote(ListApi.get_usage)

    async def export_chat(self, chat_id: str, format: ExportFormat = "json") -> bytes:
        return await self.http.read_bytes(f"/chats/{chat_id}/export", {"format": format})

    async def import_chat(self, content: bytes) -> CreatedChat:
        return await self.http.write(CreatedChat, "POST", "/chats/import", content)

    @asynccontextmanager
    async def open_tab(
        self, chat_id: str | None = None, *, after: str | None = None
    ) -> AsyncIterator[AsyncIterator[FeedEvent]]:
        async with aclosing(self.http.follow("/events", {"chat": chat_id}, after=after)) as events:
            yield events


class RemoteAccounts(_Remote):
    """The tokens and shares of the user of the token; for an admin, the users."""

    list_tokens = remote(AccountApi.list_tokens)
    create_token = remote(AccountApi.create_token)
    revoke_token = remote(AccountApi.revoke_token)
    list_users = remote(AccountApi.list_users)
    add_user = remote(AccountApi.add_user)
    update_user = remote(AccountApi.update_user)
    list_shares = remote(AccountApi.list_shares)
    share_chat = remote(AccountApi.share_chat)
    delete_share = remote(AccountApi.delete_share)


class RemoteService(_Remote):
    """The use cases of the user of the token."""

    def __init__(self, http: HttpTransport) -> None:
        super().__init__(http)
        self.readings = Readings()
        self.files: FileApi = RemoteFiles(http)
        self.lists: ListApi = RemoteLists(http)
        self.accounts: AccountApi = RemoteAccounts(http)

    # --- chats ---

    create_chat = remote(ChatApi.create_chat)
    list_chats = remote(ChatApi.list_chats)
    get_chat = remote(ChatApi.get_chat)
    update_chat = remote(ChatApi.update_chat)
    delete_chat = remote(ChatApi.delete_chat)
    fork_chat = remote(ChatApi.fork_chat)

    async def check_chat(self, chat_id: str) -> None:
        await self.list_messages(chat_id, limit=1)  # what guests may read too

    async def get_status(self, chat_id: str) -> str:
        return (await self.get_chat(chat_id)).status

    # --- messages ---

    list_messages = remote(ChatApi.list_messages)
    send = remote(ChatApi.send)
    edit = remote(ChatApi.edit)
    regenerate = remote(ChatApi.regenerate)
    switch_branch = remote(ChatApi.switch_branch)
    get_tree = remote(ChatApi.get_tree)

    # --- turns ---

    interrupt = remote(ChatApi.interrupt)
    retry = remote(ChatApi.retry)
    continue_ = remote(ChatApi.continue_)
    compact = remote(ChatApi.compact)
    submit_tool_results = remote(ChatApi.submit_tool_results)

    async def interrupt_and_wait(self, chat_id: str, *, turn: str | None = None) -> InterruptResult:
        first = latest = await self.interrupt(chat_id, Interruption(turn=turn, wait_s=_LONGEST_WAIT_S))
        while latest.status == "interrupting" and latest.turn in (turn, first.turn):
            latest = await self.interrupt(chat_id, Interruption(turn=first.turn, wait_s=_LONGEST_WAIT_S))
        return replace(latest, stopped=first.stopped, message_id=latest.message_id or first.message_id)

    # --- the queue ---

    list_queue = remote(ChatApi.list_queue)
    edit_queued = remote(ChatApi.edit_queued)
    delete_queued = remote(ChatApi.delete_queued)
    reorder_queue = remote(ChatApi.reorder_queue)
    promote_queued = remote(ChatApi.promote_queued)

    # --- events, attempts and runs ---

    list_attempts = remote(ChatApi.list_attempts)
    list_runs = remote(ChatApi.list_runs)
    list_models = remote(ChatApi.list_models)

    @asynccontextmanager
    async def open_events(
        self, chat_id: str, *, after: str | None = None, on_reconnect: Callable[[], None] | None = None
    ) -> AsyncIterator[AsyncIterator[FeedEvent]]:
        """`on_reconnect` is called when a lost connection is restored."""
        feed = self.http.follow(f"/chats/{chat_id}/events", after=after, on_reconnect=on_reconnect)
        async with aclosing(feed) as events:
            yield events

    async def get_run(self, chat_id: str, run_id: str) -> RunTree:
        return await self.http.read(RunTree, f"/chats/{chat_id}/debug/runs/{run_id}", {"bodies": False})


def connect(http: HttpTransport) -> ChatApi:
    """The use cases of a server. A type checker finds here what `RemoteService` lacks."""
    return RemoteService(http)


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
        super().__init__(connect(self._http))

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
