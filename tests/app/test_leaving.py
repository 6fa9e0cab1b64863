"""Loops over replies and feeds that a program leaves, and programs that are told to end while they read.

The programs are real ones, in processes of their own: what an interpreter prints as it ends is what they are about.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.support.app_harness import AppHarness
from tests.support.waiting import DEADLINE_S, deadline, wait_for_task

import indelible
from indelible.api.events import FeedEvent
from indelible.concurrency.readings import until_process_ends
from indelible.errors import Shutdown
from indelible.testing import ScriptedModel, parts

LEAVES = """
import asyncio, sys
import indelible

def open_user():
    where = sys.argv[1]
    return indelible.Client(where) if where.startswith("http") else indelible.open(where, model="demo")

async def relay(chat):
    async for event in chat.events():
        yield event

async def read_one(reading):
    async for _ in reading:
        break

async def main():
    async with open_user() as user:
        chat = await user.create_chat()
        async for part in chat.send("Hello"):
            break
        reply = chat.send("And another.")
        async for part in reply:
            break
        async for part in reply:
            break
        async for event in chat.events():
            break
        async for event in user.events():
            break
        left = chat.events(after="start")
        await asyncio.create_task(read_one(left))
        async for event in relay(chat):
            break
    print("closed")

asyncio.run(main())
"""

SERVES = """
import asyncio, os, signal, socket, sys
from contextlib import asynccontextmanager

import aiohttp, uvicorn
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

import indelible

number = getattr(signal, sys.argv[2])

@asynccontextmanager
async def lifespan(api):
    async with indelible.open(sys.argv[1], model="demo") as app:
        api.state.app = app
        yield
    print("the app is closed")

async def relay(request):
    chat = await api.state.app.create_chat()

    async def write():
        async for event in chat.events():
            yield event.kind + "\\n"
        print("the feed has ended")

    return StreamingResponse(write())

async def reply(request):
    chat = await api.state.app.create_chat()

    async def write():
        async with chat.stream("hello") as reply:
            os.kill(os.getpid(), number)
            async for part in reply:
                yield part.text

    return StreamingResponse(write())

api = Starlette(routes=[Route("/events", relay), Route("/reply", reply)], lifespan=lifespan)

async def read(url):
    async with aiohttp.ClientSession() as session:
        async with session.get(url + "/events") as events:
            assert await events.content.readline() == b"snapshot\\n"
            async with session.get(url + "/reply") as reply:
                print(len(await reply.text()) > 50)
            assert await events.content.read() == b""

async def main():
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: None)  # uvicorn raises the signal again when it has ended
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(api, log_level="warning"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read(f"http://127.0.0.1:{listening.getsockname()[1]}"))
        await server.serve(sockets=[listening])
    print("served")

asyncio.run(main())
"""

WAITS = """
import asyncio, os, signal, sys
import indelible

async def read(chat):
    async for event in chat.events():
        os.kill(os.getpid(), signal.SIGTERM)

async def main():
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with indelible.open(sys.argv[1], model="demo") as app, asyncio.TaskGroup() as tasks:
        tasks.create_task(read(await app.create_chat()))
        await told.wait()
    print("closed")

asyncio.run(main())
"""

INTERRUPTED = """
import asyncio, os, signal, sys
import indelible

async def main():
    async with indelible.open(sys.argv[1], model="demo") as app:
        chat = await app.create_chat()
        try:
            async for event in chat.events():
                os.kill(os.getpid(), signal.SIGINT)
        finally:
            print("left")

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""


INTERRUPTS = """
import asyncio, importlib, signal, sys
import indelible

async def main():
    loop = asyncio.get_running_loop()
    interrupted = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, print, "terminated")
    loop.add_signal_handler(signal.SIGINT, interrupted.set)
    async with indelible.open(sys.argv[1], model="demo") as app:
        chat = await app.create_chat()
        kinds = []
        async for event in chat.events():
            kinds.append(event.kind)
            if event.kind == "snapshot":
                signal.raise_signal(signal.SIGINT)
                await interrupted.wait()
                await chat.update(title="Still here")
            else:
                signal.raise_signal(signal.SIGTERM)
    print(*kinds)

importlib.import_module(sys.argv[2]).run(main())
"""


async def run_program(text: str, *arguments: str) -> tuple[int, list[str], str]:
    """Its exit status, the lines that it printed, and what it complained about."""
    command = [sys.executable, "-W", "error", "-c", text, *arguments]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


async def test_a_program_that_leaves_its_loops_ends_without_a_word(tmp_path: Path) -> None:
    assert await run_program(LEAVES, str(tmp_path / "chats.db")) == (0, ["closed"], "")


async def test_a_program_that_leaves_its_loops_over_http_ends_without_a_word(harness: AppHarness) -> None:
    server = await harness.start_server("demo")
    assert await run_program(LEAVES, server.url) == (0, ["closed"], "")


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
async def test_a_server_that_relays_a_feed_ends_on_its_signal_and_cuts_no_reply(number: str, tmp_path: Path) -> None:
    printed = ["the feed has ended", "True", "the app is closed", "served"]
    status, lines, complaints = await run_program(SERVES, str(tmp_path / "chats.db"), number)
    assert (status, sorted(lines), complaints) == (0, sorted(printed), "")


async def test_a_program_with_a_handler_of_its_own_ends_while_a_feed_is_read(tmp_path: Path) -> None:
    assert await run_program(WAITS, str(tmp_path / "chats.db")) == (0, ["closed"], "")


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_a_signal_that_a_program_handles_in_its_loop_and_that_does_not_end_it_ends_no_feed(
    loop: str, tmp_path: Path
) -> None:
    printed = ["terminated", "snapshot chat"]
    assert await run_program(INTERRUPTS, str(tmp_path / "chats.db"), loop) == (0, printed, "")


async def test_ctrl_c_ends_a_program_that_reads_a_feed(tmp_path: Path) -> None:
    assert await run_program(INTERRUPTED, str(tmp_path / "chats.db")) == (0, ["left", "interrupted"], "")


@contextmanager
def handling(heard: list[int], *numbers: signal.Signals) -> Iterator[dict[signal.Signals, Any]]:
    """A handler for each of them, until the end of the block."""

    def make() -> Any:
        def handle(number: int, frame: FrameType | None) -> None:
            heard.append(number)

        return handle

    handlers = {number: make() for number in numbers}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield handlers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def test_feeds_end_by_the_signal_that_ends_a_program_and_by_no_other(database: str) -> None:
    heard: list[int] = []
    kinds: list[str] = []
    with handling(heard, signal.SIGTERM, signal.SIGINT) as handlers:
        async with indelible.open(database, model="demo") as app, deadline("the end of both feeds"):
            chat = await app.create_chat()
            async with asyncio.TaskGroup() as tasks, aclosing(app.events()) as lists:
                await anext(lists)
                joined = asyncio.Event()

                async def read() -> None:
                    async for event in chat.events():
                        kinds.append(event.kind)
                        joined.set()

                tasks.create_task(read())
                await joined.wait()
                signal.raise_signal(signal.SIGINT)
                await chat.update(title="Still here")
                assert heard == [signal.SIGINT]
                signal.raise_signal(signal.SIGTERM)
                assert [event.kind async for event in lists] in ([], ["chat"])
        assert heard == [signal.SIGINT, signal.SIGTERM]
        assert {number: signal.getsignal(number) for number in handlers} == handlers
    assert kinds[0] == "snapshot"


@pytest.mark.parametrize("is_called", [True, False], ids=["that calls the one before", "that is put back"])
async def test_between_two_feeds_a_program_may_change_its_handler(is_called: bool) -> None:
    heard: list[str] = []

    async def wait_forever() -> AsyncGenerator[None, None]:
        await asyncio.Event().wait()
        yield

    def handle(name: str, before: Any = None) -> Any:
        def handler(number: int, frame: FrameType | None) -> None:
            heard.append(name)
            if before is not None:
                before(number, frame)

        return handler

    first = handle("first")
    with handling([], signal.SIGTERM):
        signal.signal(signal.SIGTERM, first)
        with until_process_ends(wait_forever()):
            chained = signal.getsignal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, handle("second", chained if is_called else None))
            with until_process_ends(wait_forever()):
                if is_called:
                    signal.raise_signal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, chained)
            if not is_called:
                signal.raise_signal(signal.SIGTERM)
        assert heard == (["second", "first"] if is_called else ["first"])
        assert signal.getsignal(signal.SIGTERM) is first


async def test_a_task_that_is_cancelled_while_its_feed_ends_is_cancelled(database: str) -> None:
    with handling([], signal.SIGTERM):
        async with indelible.open(database, model="demo") as app:
            chat = await app.create_chat()
            joined = asyncio.Event()

            async def read() -> None:
                async for _ in chat.events():
                    joined.set()

            task = asyncio.create_task(read())
            await joined.wait()
            await asyncio.sleep(0)
            signal.raise_signal(signal.SIGTERM)
            asyncio.get_running_loop().call_soon(task.cancel)
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_a_task_that_was_given_its_feed_reads_on_until_the_app_is_closed(database: str) -> None:
    joined = asyncio.Event()

    async def read(events: AsyncGenerator[FeedEvent, None]) -> list[str]:
        kinds: list[str] = []
        async for event in events:
            kinds.append(event.kind)
            joined.set()
        return kinds

    async with indelible.open(database, model="demo") as app:
        task = asyncio.create_task(read((await app.create_chat()).events()))
        await joined.wait()
        unread = asyncio.create_task(read(app.events()))
    await wait_for_task(task, what="the reader")
    assert task.result() == ["snapshot", "end"]
    await wait_for_task(unread, what="the reader of the list")
    assert unread.result()[-1] == "end"


async def test_a_feed_whose_every_event_is_awaited_in_a_task_of_its_own_does_not_keep_an_app_open(
    database: str,
) -> None:
    async with indelible.open(database, model="demo") as app:
        events = (await app.create_chat()).events()
        assert (await asyncio.create_task(anext(events))).kind == "snapshot"
        waiting = asyncio.create_task(anext(events))
        await asyncio.sleep(0)
    await wait_for_task(waiting, what="the next event")
    assert waiting.result().kind == "end"


async def test_a_task_in_the_middle_of_a_reply_learns_that_its_app_was_closed(database: str) -> None:
    model = ScriptedModel([[parts.text_delta("1", "Well"), parts.hang()]])
    reading, may_go_on = asyncio.Event(), asyncio.Event()

    async def read(chat: indelible.Chat) -> None:
        async for _ in chat.send("Talk"):
            reading.set()
            await may_go_on.wait()

    async with indelible.open(database, model=model) as app:
        task = asyncio.create_task(read(await app.create_chat()))
        await reading.wait()
    may_go_on.set()
    with pytest.raises(Shutdown):
        await task


async def test_a_loop_that_ended_in_an_error_is_not_kept_until_the_app_closes(database: str) -> None:
    async with indelible.open(database, model="demo") as app:
        chat = await app.create_chat()

        async def read() -> None:
            events = chat.events()
            async for _ in events:
                raise LookupError

        task = asyncio.create_task(read())
        await wait_for_task(task, what="the reader")
        assert isinstance(task.exception(), LookupError)
        del task
        gc.collect()
        assert len(app.service.readings._open) == 0
