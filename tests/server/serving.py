"""A real server in the test's own process: uvicorn on a free port, with a model that says what the test wrote down.

It is the process that `indelible serve` runs (`server.serve.Process`), without a process around it. When it has ended,
nobody reads any more: a reader that was left behind fails the test that left it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from indelible.client.wire import ServerEvent, WireClient
from indelible.clock import SystemClock
from indelible.models.protocol import Model
from indelible.server.app import Server
from indelible.server.process import Process
from indelible.server.sse import DEFAULT_PACE, Pace
from indelible.settings import load_settings
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Step
from indelible.tools.toolset import AnyTool

PATIENCE_S = 100.0
LOOK_EVERY_S = 0.005
API = "/api/v1"
QUICK: Mapping[str, Any] = {"auto_titles": False, "retry_base_s": 0, "tool_grace_s": 0.05, "lease_timeout_s": 3600}
"""Nobody is taken for dead because the machine stalled."""


@dataclass
class Here:
    """A server that runs, and a client of it."""

    url: str
    client: WireClient
    server: Server
    process: Process

    @asynccontextmanager
    async def ask(self, method: str, path: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request as it is, without a client's help. A path begins with the prefix, or with two slashes."""
        url = self.url + (path[1:] if path.startswith("//") else API + path)
        async with aiohttp.ClientSession() as session, session.request(method, url, **more) as response:
            yield response

    async def read_metric(self, name: str, **labels: str) -> float:
        async with self.ask("GET", "//metrics") as response:
            return read_metric(await response.text(), name, **labels)

    async def wait_for_readers(self, count: int) -> None:
        async def is_so() -> bool:
            return await self.read_metric("indelible_feed_readers") == count

        await wait_until(is_so)


def read_metric(page: str, name: str, **labels: str) -> float:
    """The sum of all samples of this name that have these labels."""
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    found = [sample for sample in samples if sample.name == name and labels.items() <= sample.labels.items()]
    assert found, f"there is no {name} with {labels}"
    return sum(sample.value for sample in found)


@asynccontextmanager
async def serve_here(
    database: str,
    model: Model | None = None,
    *,
    tools: Sequence[AnyTool] = (),
    client_tools: Sequence[AnyTool] = (),
    worker: bool = True,
    client_token: str | None = None,
    pace: Pace = DEFAULT_PACE,
    **settings: Any,
) -> AsyncIterator[Here]:
    """Serve until the end of the block; then leave in good order."""
    chosen = load_settings(**{**QUICK, "model": "scripted", "database": database, "port": 0, **settings})
    models = {"scripted": model or ScriptedModel()}
    server = Server(chosen, models=models, tools=tools, client_tools=client_tools, worker=worker, pace=pace)
    async with run_server(server) as (url, process), WireClient(url, token=client_token) as client:
        yield Here(url, client, server, process)


@asynccontextmanager
async def run_server(server: Server) -> AsyncIterator[tuple[str, Process]]:
    ready = asyncio.Event()
    urls: list[str] = []

    def note(url: str) -> None:
        urls.append(url)
        ready.set()

    process = Process(server, on_ready=note)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(process.serve(), name="serving")
        await ready.wait()
        try:
            yield urls[0], process
        finally:
            process.shut_down()
            await asyncio.wait([serving])


# --- what a model says ---


def say(text: str) -> list[Step]:
    """A whole reply."""
    return [*say_half(text)[:-1], parts.text_end("1"), parts.finish()]


def say_half(*pieces: str) -> list[Step]:
    """The beginning of a reply that then hangs."""
    return [parts.text_start("1"), *(parts.text_delta("1", piece) for piece in pieces), parts.hang()]


# --- reading along ---


async def read_until(
    client: WireClient, chat_id: str, is_enough: Callable[[list[ServerEvent]], bool], *, after: str | None = None
) -> list[ServerEvent]:
    """What the feed tells until it is enough."""
    events: list[ServerEvent] = []
    async with asyncio.timeout(PATIENCE_S), aclosing(client.stream_events(chat_id, after=after)) as feed:
        async for event in feed:
            events.append(event)
            if is_enough(events):
                return events
    raise AssertionError("the feed came to its end")


def has_said(text: str) -> Callable[[list[ServerEvent]], bool]:
    """Whether this much can be read: in parts, and in a snapshot's running reply."""
    return lambda events: text in read_text(events)


def has_ended(events: list[ServerEvent]) -> bool:
    """Whether a turn has ended, or none was running to begin with."""
    last = events[-1]
    if last.kind == "snapshot":
        return last.data["turn"] is None
    return last.kind == "status" and last.data.get("ended") is not None


def read_text(events: Sequence[ServerEvent]) -> str:
    """All text that was shown, of a running reply in a snapshot and in parts."""
    said = ""
    for event in events:
        if event.kind == "snapshot" and event.data["live"] is not None:
            said += "".join(block.get("text", "") for block in event.data["live"]["blocks"] if block["type"] == "text")
        elif event.kind == "part":
            said += "".join(part["delta"] for part in event.data["parts"] if part["type"] == "text_delta")
    return said


def text_of(message: Mapping[str, Any]) -> str:
    """The visible text of a message."""
    return "".join(block["text"] for block in message["blocks"] if block["type"] == "text")


async def wait_until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not await is_so():
            await SystemClock().sleep(LOOK_EVERY_S)  # spinning would keep the server from answering


async def wait_until_idle(client: WireClient, chat_id: str) -> None:
    await read_until(client, chat_id, lambda events: events[-1].kind in ("snapshot", "status") and has_ended(events))
