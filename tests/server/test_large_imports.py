"""An export can be imported again, however large: over HTTP within a limit of its own, and one of a user at a time."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.server.asking import read_problem
from tests.support.app_harness import AppHarness
from tests.support.waiting import deadline

import indelible
from indelible.content import encode
from indelible.errors import TooLarge
from indelible.server.access import MAX_BODY_BYTES
from indelible.server.limits import BodyLimits
from indelible.service.access import Identity

JSON = {"Content-Type": "application/json"}
IMPORT = "/api/v1/chats/import"


def write_file(count: int, text: str) -> bytes:
    """An exported chat with so many messages of this text."""
    at = "2026-01-01T00:00:00Z"
    messages = [
        {
            "id": f"m{n}",
            "parent_id": f"m{n - 1}" if n else None,
            "role": "assistant" if n % 2 else "user",
            "blocks": [{"type": "text", "text": text}],
            "created_at": at,
        }
        for n in range(count)
    ]
    file: dict[str, Any] = {"format": "indelible.chat", "version": 1, "exported_at": at, "created_at": at}
    file |= {"title": None, "model": None, "system": None, "parameters": None, "tools": None, "labels": []}
    return encode(file | {"head": f"m{count - 1}", "messages": messages})


async def test_a_chat_that_is_larger_than_any_other_request_is_exported_and_imported(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    made = await server.app.import_chat(write_file(40, "Rain. " * 50_000))
    async with indelible.Client(server.url) as ada:
        exported = await (await ada.chat(made.id)).export()
        assert len(exported) > MAX_BODY_BYTES
        copy = await ada.import_chat(exported)
        assert len(await copy.messages()) == 40


async def test_the_limit_of_an_import_is_a_setting_and_holds_for_nothing_else(harness: AppHarness) -> None:
    file = write_file(2, "Rain.")
    server = await harness.start_server(worker=False, import_max_bytes=len(file))
    async with indelible.Client(server.url) as ada:
        await ada.import_chat(file)
        with pytest.raises(TooLarge, match=f"limit {len(file):,} bytes"):
            await ada.import_chat(file + b" ")
        with pytest.raises(TooLarge):  # though the client would still be sending it
            await ada.import_chat(file + b" " * 4 * MAX_BODY_BYTES)
    for path in ("/chats", "/chats/import/x", "/chats/x/api/v1/chats/import", "//shared/x/api/v1/chats/import"):
        headers = {**JSON, "Content-Length": str(MAX_BODY_BYTES + 1), "Expect": "100-continue"}
        async with server.request("POST", path, headers=headers) as response:
            assert (await read_problem(response))["status"] == 413, path


class Imports:
    """An application whose imports end when the test says so."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.may_end = asyncio.Event()
        self.limited = BodyLimits(self)

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        self.running.append(scope["identity"].user_id)
        await self.may_end.wait()

    def begin(self, user_id: str) -> tuple[asyncio.Task[None], asyncio.Event]:
        """A request of this user, and what is set when its body is read."""
        is_read = asyncio.Event()

        async def receive() -> Message:
            is_read.set()
            return {"type": "http.request", "body": b"{}"}

        async def send(_message: Message) -> None:
            raise AssertionError("nobody answers")

        identity = Identity(user_id=user_id, user=user_id, role="user", scopes=("write",), how="token")
        scope = {"type": "http", "method": "POST", "path": IMPORT, "headers": [], "identity": identity}
        return asyncio.create_task(self.limited(scope, receive, send)), is_read


async def test_a_user_has_one_import_in_memory_and_keeps_nobody_else_waiting() -> None:
    imports = Imports()
    first, _ = imports.begin("ada")
    second, is_read = imports.begin("ada")
    third, _ = imports.begin("ada")
    other, other_is_read = imports.begin("grace")
    async with deadline():
        await other_is_read.wait()
    assert not is_read.is_set()
    assert imports.running == ["ada", "grace"]
    third.cancel()
    imports.may_end.set()
    async with deadline():
        await asyncio.gather(first, second, other)
    assert imports.running == ["ada", "grace", "ada"]
    assert third.cancelled()
    del first, second, third, other
    gc.collect()
    assert not imports.limited._importing
