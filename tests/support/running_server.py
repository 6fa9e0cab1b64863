"""`RunningServer`: a real server in the test's own process, with a client of it, and how a test reads along.

It is the process that `indelible serve` runs (`server.process.Process`) on a free port, without a process around it.
`serve_app` and `AppHarness.start_server` (app_harness.py) start one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from tests.support.json_client import JsonClient
from tests.support.waiting import deadline, describe, poll_until, wait_for_task

from indelible.api.events import FeedEvent
from indelible.app.app import App
from indelible.client.client import RemoteService
from indelible.server.app import Server
from indelible.server.process import Process
from indelible.testing import parts
from indelible.testing.model import Step

API = "/api/v1"


class RunningServer(NamedTuple):
    url: str
    client: JsonClient
    server: Server
    process: Process

    @property
    def service(self) -> RemoteService:
        """The client with types, on the same connections."""
        return RemoteService(self.client)

    @property
    def app(self) -> App:
        assert self.server.server_state is not None
        return self.server.server_state.app

    @asynccontextmanager
    async def request(self, method: str, path: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request as it is, without a client's help. A path begins with the prefix, or with two slashes."""
        url = self.url + (path[1:] if path.startswith("//") else API + path)
        async with aiohttp.ClientSession() as session, session.request(method, url, **more) as response:
            yield response

    async def read_metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of this name that have these labels."""
        async with self.request("GET", "//metrics") as response:
            page = await response.text()
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
        found = [sample for sample in samples if sample.name == name and labels.items() <= sample.labels.items()]
        assert found, f"there is no {name} with {labels}"
        return sum(sample.value for sample in found)

    async def wait_for_readers(self, count: int) -> None:
        async def are_there() -> bool:
            return await self.read_metric("indelible_feed_readers") == count

        await poll_until(are_there, what=f"{count} readers")


@asynccontextmanager
async def run_server(server: Server, *, client_token: str | None = None) -> AsyncIterator[RunningServer]:
    """Serve until the end of the block; then shut down gracefully. If the server fails, so does the block."""
    ready = asyncio.Event()
    urls: list[str] = []

    def note(url: str) -> None:
        urls.append(url)
        ready.set()

    process = Process(server, on_ready=note)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(process.serve(), name="serving")
        async with deadline("a server that is ready"):
            await ready.wait()
        try:
            async with JsonClient(urls[0], token=client_token) as client:
                yield RunningServer(urls[0], client, server, process)
        finally:
            process.shut_down()
            await wait_for_task(serving, what="the server")


# --- scripts of a model ---


def say(text: str) -> list[Step]:
    """A whole reply."""
    return [*say_half(text)[:-1], parts.text_end("1"), parts.finish()]


def say_half(*pieces: str) -> list[Step]:
    """The beginning of a reply that then hangs."""
    return [parts.text_start("1"), *(parts.text_delta("1", piece) for piece in pieces), parts.hang()]


# --- reading along ---


async def read_until(
    client: JsonClient, chat_id: str, is_enough: Callable[[list[FeedEvent]], bool], *, after: str | None = None
) -> list[FeedEvent]:
    """The events of the feed until they are enough."""
    events: list[FeedEvent] = []
    async with deadline(describe(is_enough)), aclosing(client.stream_events(chat_id, after=after)) as feed:
        async for event in feed:
            events.append(event)
            if is_enough(events):
                return events
    raise AssertionError("the feed ended too early")


def list_contents(events: Sequence[FeedEvent]) -> list[tuple[str, str | None, bytes]]:
    """What two readers' events have in common: the body of each event is an object of its own."""
    return [(event.kind, event.cursor, event.json) for event in events]


async def wait_until_idle(client: JsonClient, chat_id: str) -> None:
    await read_until(client, chat_id, lambda events: events[-1].kind in ("snapshot", "status") and has_ended(events))


def has_text(text: str) -> Callable[[list[FeedEvent]], bool]:
    """Whether this much can be read: in parts, and in a snapshot's running reply."""
    return lambda events: text in read_text(events)


def has_ended(events: list[FeedEvent]) -> bool:
    """Whether a turn has ended, or none was running to begin with."""
    last = events[-1]
    if last.kind == "snapshot":
        return last.data["turn"] is None
    return last.kind == "status" and last.data.get("ended") is not None


def read_text(events: Sequence[FeedEvent]) -> str:
    """All text that was shown, of a running reply in a snapshot and in parts."""
    text = ""
    for event in events:
        if event.kind == "snapshot" and event.data["live"] is not None:
            text += "".join(block.get("text", "") for block in event.data["live"]["blocks"] if block["type"] == "text")
        elif event.kind == "part":
            text += "".join(part["delta"] for part in event.data["parts"] if part["type"] == "text_delta")
    return text


def text_of(message: Mapping[str, Any]) -> str:
    """The visible text of a message."""
    return "".join(block["text"] for block in message["blocks"] if block["type"] == "text")
