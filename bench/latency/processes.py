"""Processes: how long they take to start, and how soon a reply continues after `kill -9`.

The restart: the only server is killed while ten replies stream, and started again at once. What is timed is from its
ready line to the first part of each chat's next attempt, on a feed that was opened again with the reader's last cursor.

The takeover (PostgreSQL): a second worker is alive, and the readers are on a third process, which is not killed. What
is timed is from the kill to the first part of the next attempt; most of it passes until a process has found the lock of
the dead one free, twice (worker/presence.py). Then the second worker is the one to kill, and a new one the second.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Final

from bench.findings import Finding, quantile
from bench.options import IS_FULL
from bench.over_http.contenders import INDELIBLE, count_cpu_s, start_indelible, start_provider, start_worker
from bench.over_http.load import WORD
from bench.over_http.wire import Client, Events

_STARTS: Final = 7 if IS_FULL else 3
_CHATS: Final = 10
_KILLS: Final = 50 if IS_FULL else 5
_TOKENS: Final = 100_000
_RATE: Final = 50
_TIMEOUT_S: Final = 60.0
_COMMANDS: Final = {
    "python alone": (sys.executable, "-c", "pass"),
    "import indelible": (sys.executable, "-c", "import indelible"),
    "indelible --help": (*INDELIBLE, "--help"),
}


def measure_commands() -> list[Finding]:
    """Wall time and CPU of commands that end by themselves."""
    found: list[Finding] = []
    for what, command in _COMMANDS.items():
        walls_s, cpus_s = zip(*[_time(command) for _ in range(_STARTS)], strict=True)
        found.append(Finding(what=f"{what}, time", value=statistics.median(walls_s) * 1e3, unit="ms"))
        found.append(Finding(what=f"{what}, CPU", value=statistics.median(cpus_s) * 1e3, unit="ms"))
    return found


def _time(command: tuple[str, ...]) -> tuple[float, float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_start(name: str, address: str, place: Path) -> list[Finding]:
    """From the start of the process to its ready line, on a database that is up to date."""
    elapsed_s: list[float] = []
    cpu_s: list[float] = []
    with start_provider(1, 0) as port:
        for _ in range(_STARTS):
            started = time.perf_counter()
            with start_indelible(port, address, place) as server:
                elapsed_s.append(time.perf_counter() - started)
                cpu_s.append(count_cpu_s(server.pid))
    what = "indelible serve, to its ready line"
    return [
        Finding(what=f"{what}, time", database=name, value=statistics.median(elapsed_s), unit="s"),
        Finding(what=f"{what}, CPU", database=name, value=statistics.median(cpu_s), unit="s"),
    ]


async def measure_restart(name: str, address: str, place: Path) -> list[Finding]:
    with start_provider(_TOKENS, _RATE) as port:
        with start_indelible(port, address, place) as server:
            client = Client(server.url)
            chat_ids, cursors = await _start_replies(client)
            os.kill(server.pid, signal.SIGKILL)
            client.close()
        killed = time.perf_counter()
        with start_indelible(port, address, place) as server:
            ready = time.perf_counter()
            client = Client(server.url)
            came = await asyncio.gather(
                *(_wait_for_next(client, chat_id, cursor) for chat_id, cursor in zip(chat_ids, cursors, strict=True))
            )
            await _stop(client, chat_ids)
    what = f"kill -9 and restart, {_CHATS} replies"
    return [
        Finding(what=f"{what}: ready line to first new token", database=name, value=min(came) - ready, unit="s"),
        Finding(what=f"{what}: ready line to last chat's", database=name, value=max(came) - ready, unit="s"),
        Finding(what=f"{what}: from the kill to last chat's", database=name, value=max(came) - killed, unit="s"),
    ]


async def measure_takeover(name: str, address: str, place: Path) -> list[Finding]:
    """On PostgreSQL, where another worker can take over: kill the one that answers, again and again."""
    first_s: list[float] = []
    each_s: list[float] = []
    with ExitStack() as stack:
        port = stack.enter_context(start_provider(_TOKENS, _RATE))
        server = stack.enter_context(start_indelible(port, address, place, "--no-worker"))
        client = Client(server.url)
        answering = stack.enter_context(ExitStack())
        pid = answering.enter_context(start_worker(port, address, place))
        for _ in range(_KILLS):
            chat_ids, _ = await _start_replies(client)
            other = stack.enter_context(ExitStack())
            next_pid = other.enter_context(start_worker(port, address, place))
            came_s = await _kill_and_wait(client, chat_ids, pid)
            first_s.append(min(came_s))
            each_s += came_s
            for chat_id in chat_ids:
                await client.post(f"/api/v1/chats/{chat_id}/interrupt", {"wait_s": 10})
            answering.close()
            answering, pid = other, next_pid
        client.close()
    what = f"kill -9 beside another worker, {_KILLS} times {_CHATS} replies: from the kill to"
    return [
        Finding(what=f"{what} the first new token, p50", database=name, value=quantile(first_s, 0.5), unit="s", aim=1),
        Finding(what=f"{what} the next token of a chat, p50", database=name, value=quantile(each_s, 0.5), unit="s"),
        Finding(what=f"{what} the next token of a chat, p99", database=name, value=quantile(each_s, 0.99), unit="s"),
        Finding(what=f"{what} the next token, longest", database=name, value=max(each_s), unit="s", aim=3),
    ]


async def _kill_and_wait(client: Client, chat_ids: list[str], pid: int) -> list[float]:
    """Seconds from the kill to the first part of each chat's next attempt."""
    async with AsyncExitStack() as feeds:
        opened = [await feeds.enter_async_context(client.open_feed(chat_id)) for chat_id in chat_ids]
        for events in opened:
            await events.wait_for(b"event: part")
        os.kill(pid, signal.SIGKILL)
        killed = time.perf_counter()
        came = await asyncio.gather(*(_wait_for_attempt(events) for events in opened))
    return [at - killed for at in came]


async def _start_replies(client: Client) -> tuple[list[str], list[str]]:
    """Chats whose replies run, and how far a reader of each has come."""
    chat_ids = [(await client.post("/api/v1/chats", {"message": "Speak."}))["id"] for _ in range(_CHATS)]
    cursors: list[str] = []
    for chat_id in chat_ids:
        async with client.open_feed(chat_id) as events:
            await events.wait_for(WORD)
            await events.wait_for(b"event: part")
            assert events.cursor is not None
            cursors.append(events.cursor)
    return chat_ids, cursors


async def _wait_for_next(client: Client, chat_id: str, cursor: str) -> float:
    async with client.open_feed(chat_id, cursor) as events:
        return await _wait_for_attempt(events)


async def _wait_for_attempt(events: Events) -> float:
    """When the first part of the next attempt comes."""
    async with asyncio.timeout(_TIMEOUT_S):
        has_begun = False
        async for came in events:
            for event in came:
                has_begun = has_begun or b"event: attempt" in event
                if has_begun and b"event: part" in event:
                    return time.perf_counter()
    raise RuntimeError("The feed ended too soon.")


async def _stop(client: Client, chat_ids: list[str]) -> None:
    for chat_id in chat_ids:
        await client.post(f"/api/v1/chats/{chat_id}/interrupt", {"wait_s": 10})
    client.close()
