"""Running replies: how soon a stop is durable, what it costs to read a long reply again, and to show one to many.

A stop is timed from `POST …/interrupt` with `wait_s` to its 200, while 100 replies run, each with a reader: by then the
partial reply is committed, and the response names its message. Whoever was stopped sends the next message, so it is
100 all the time.

The reply of 100 kB is read from `after=start` and from a cursor in its middle, to the end of the turn. It was written
at 2,000 tokens per second, so its journal has some hundred rows, as that of a slow reply would. CPU is the server's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from bench.findings import Finding, quantile
from bench.options import IS_FULL
from bench.over_http.contenders import Contender, count_cpu_s, start_indelible, start_provider
from bench.over_http.load import WORD
from bench.over_http.wire import Client, Events

RUNNING: Final = 100
_STOPS: Final = 300 if IS_FULL else 100
_ENDLESS: Final = 100_000
_RATE: Final = 50
_REPLY_TOKENS: Final = 11_112  # of nine bytes
_REPLY_RATE: Final = 2_000
_READINGS: Final = 30 if IS_FULL else 10
_READERS: Final = (1, 10, 100)
_MEASURED_S: Final = 5.0 if IS_FULL else 3.0


async def measure_replies(name: str, address: str, place: Path) -> list[Finding]:
    found: list[Finding] = []
    with start_provider(_ENDLESS, _RATE) as port, start_indelible(port, address, place) as server:
        found += await _measure_stops(name, server)
        for readers in _READERS:
            found += await _measure_fan_out(name, server, readers)
    with start_provider(_REPLY_TOKENS, _REPLY_RATE) as port, start_indelible(port, address, place) as server:
        found += await _measure_reading(name, server)
    return found


# --- stops -----------------------------------------------------------------------------------


async def _measure_stops(name: str, server: Contender) -> list[Finding]:
    client = Client(server.url)
    elapsed_ms: list[float] = []
    async with _running(server, RUNNING) as chat_ids:
        for number in range(_STOPS):
            chat_id = chat_ids[number % RUNNING]
            started = time.perf_counter()
            stopped = await client.post(f"/api/v1/chats/{chat_id}/interrupt", {"wait_s": 10})
            elapsed_ms.append((time.perf_counter() - started) * 1e3)
            if not (stopped["stopped"] and stopped["message_id"] and stopped["status"] == "idle"):
                raise RuntimeError(f"A running reply was not stopped: {stopped}")
            async with client.open_feed(chat_id) as events:
                await client.post(f"/api/v1/chats/{chat_id}/messages", {"text": "Go on."})
                await events.wait_for(b"event: part")
        for chat_id in chat_ids:
            await client.post(f"/api/v1/chats/{chat_id}/interrupt", {})
    client.close()
    what = f"interrupt to durable partial, {RUNNING} running chats"
    return [
        Finding(what=f"{what}, p50", database=name, value=quantile(elapsed_ms, 0.5), unit="ms", aim=50),
        Finding(what=f"{what}, p99", database=name, value=quantile(elapsed_ms, 0.99), unit="ms", aim=250),
    ]


@asynccontextmanager
async def _running(server: Contender, count: int) -> AsyncIterator[list[str]]:
    """So many chats whose replies run, each with a reader."""
    client = Client(server.url)
    async with AsyncExitStack() as feeds, asyncio.TaskGroup() as group:
        chat_ids: list[str] = []
        reading: list[asyncio.Task[None]] = []
        for _ in range(count):
            chat_ids.append((await client.post("/api/v1/chats", {"message": "Speak."}))["id"])
            events = await feeds.enter_async_context(client.open_feed(chat_ids[-1]))
            await events.wait_for(WORD)
            reading.append(group.create_task(_read_on(events)))
        yield chat_ids
        for task in reading:
            task.cancel()
    client.close()


async def _read_on(events: Events) -> None:
    async for _ in events:
        pass


# --- one reply, many readers -----------------------------------------------------------------


async def _measure_fan_out(name: str, server: Contender, readers: int) -> list[Finding]:
    client = Client(server.url)
    chat_id = (await client.post("/api/v1/chats", {"message": "Speak."}))["id"]
    gaps_s: list[float] = []
    words = 0
    is_measuring = False

    async def read(events: Events) -> None:
        nonlocal words
        last: float | None = None
        async for came in events:
            found = sum(event.count(WORD) for event in came)
            now = time.perf_counter()
            if found and is_measuring:
                words += found
                if last is not None:
                    gaps_s.append(now - last)
            last = now

    async with AsyncExitStack() as feeds, asyncio.TaskGroup() as group:
        opened = [await feeds.enter_async_context(client.open_feed(chat_id)) for _ in range(readers)]
        for events in opened:
            await events.wait_for(WORD)
        reading = [group.create_task(read(events)) for events in opened]
        cpu_s, is_measuring = count_cpu_s(server.pid), True
        await asyncio.sleep(_MEASURED_S)
        cpu_s, is_measuring = count_cpu_s(server.pid) - cpu_s, False
        for task in reading:
            task.cancel()
    await client.post(f"/api/v1/chats/{chat_id}/interrupt", {"wait_s": 10})
    client.close()
    who = f"{readers} reader{'s' if readers > 1 else ''}"
    return [
        Finding(
            what=f"one reply to {who}, CPU per delivered token", database=name, value=cpu_s / words * 1e6, unit="µs"
        ),
        Finding(what=f"one reply to {who}, gap p99", database=name, value=quantile(gaps_s, 0.99) * 1e3, unit="ms"),
    ]


# --- reading again ---------------------------------------------------------------------------


async def _measure_reading(name: str, server: Contender) -> list[Finding]:
    client = Client(server.url)
    chat_id = (await client.post("/api/v1/chats", {"message": "Speak."}))["id"]
    async with client.open_feed(chat_id) as events:
        await events.wait_for(b'"status":"idle"')
    middle: str | None = None
    async with client.open_feed(chat_id, "start") as events:
        words = 0
        async for came in events:
            words += sum(event.count(WORD) for event in came if b"event: part" in event)
            if middle is None and words > _REPLY_TOKENS // 2:
                middle = events.cursor
            if any(b'"status":"idle"' in event for event in came):
                break
    if words != _REPLY_TOKENS or middle is None:
        raise RuntimeError(f"{words} of {_REPLY_TOKENS} words are in the feed.")
    found: list[Finding] = []
    for where, after in (("its start", "start"), ("its middle", middle)):
        cpu_s = count_cpu_s(server.pid)
        elapsed_ms: list[float] = []
        for _ in range(_READINGS):
            started = time.perf_counter()
            async with client.open_feed(chat_id, after) as events:
                await events.wait_for(b'"status":"idle"')
            elapsed_ms.append((time.perf_counter() - started) * 1e3)
        cpu_ms = (count_cpu_s(server.pid) - cpu_s) / _READINGS * 1e3
        what = f"read a 100 kB reply from {where}"
        found.append(Finding(what=f"{what}, p50", database=name, value=quantile(elapsed_ms, 0.5), unit="ms"))
        found.append(Finding(what=f"{what}, CPU", database=name, value=cpu_ms, unit="ms"))
    client.close()
    return found
