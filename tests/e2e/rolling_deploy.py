"""A rolling deploy under load: two servers on one PostgreSQL behind a real nginx, and every kind of client.

    python -m tests.e2e.rolling_deploy --streams 50 --drain 1

Both servers are replaced at their ports with SIGTERM, one after the other, while every stream is in the middle of its
reply. Each stream must then be whole, or its client must have raised: a *silent half* is what this looks for. With a
`--drain` that is long enough nobody may raise at all. Clients that can resume have to end with the whole reply in any
case: `indelible.Client`, and `useChat` after it has loaded its messages again (docs/ai-sdk.md).

The replies do not end before the last server is replaced, however slow the machine is (counting_model.PatientModel).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import openai
from compat.running import CLIENTS
from tests.server.test_nginx import listens, run_nginx
from tests.support.counting_model import ask_to_count, count
from tests.support.node import run_module
from tests.support.process_harness import ENDLESS_LEASES, ProcessHarness, choose_port
from tests.support.waiting import poll_until

import indelible
from indelible.models.http.sse import SseDecoder

WORDS: Final = 300
QUESTION: Final = ask_to_count(WORDS, pace_ms=0)
MODEL: Final = "counting"
LONG_S: Final = 3600
NPM_KINDS: Final = ("completions", "responses", "ai-7", "ai-6")
RESUMING: Final = ("native", "ai-7", "ai-6")


class Ended(NamedTuple):
    """How a stream ended, for its client. `recovered` is the text after the client resumed, if it can."""

    kind: str
    text: str
    raised: str | None
    recovered: str | None = None

    @property
    def is_silent_half(self) -> bool:
        return self.raised is None and self.text != count(WORDS)


class Deploy(NamedTuple):
    ended: list[Ended]
    statuses: list[int | None]
    """Of the servers that were replaced."""

    @property
    def faults(self) -> list[Ended]:
        whole = count(WORDS)
        return [
            each
            for each in self.ended
            if each.is_silent_half or (each.kind in RESUMING and whole not in (each.text, each.recovered))
        ]


# --- clients ---


async def read_natively(url: str) -> AsyncIterator[str]:
    """`indelible.Client`: it reconnects by itself."""
    async with indelible.Client(url, retry_for_s=LONG_S) as user:
        chat = await user.create_chat()
        async with chat.stream(QUESTION) as reply:
            async for part in reply:
                yield part.text


async def read_response(url: str) -> AsyncIterator[str]:
    """The reply in the response of the command, by a program that knows no cursors."""
    request: dict[str, Any] = {"json": {"message": QUESTION}, "headers": {"Accept": "text/event-stream"}}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/api/v1/chats", **request) as response:
        decoder = SseDecoder()
        async for chunk in response.content.iter_any():
            for event in decoder.feed(chunk):
                if event.event == "end":
                    raise ConnectionError("the server has said that it leaves")
                parts = json.loads(event.data)["parts"] if event.event == "part" else []
                yield "".join(part["delta"] for part in parts if part["type"] == "text_delta")


async def read_completion(url: str) -> AsyncIterator[str]:
    async with open_openai(url) as client:
        asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "stream": True}
        async for chunk in await client.chat.completions.create(**asked):
            yield chunk.choices[0].delta.content or "" if chunk.choices else ""


async def read_openai_response(url: str) -> AsyncIterator[str]:
    async with open_openai(url) as client:
        async for event in await client.responses.create(model=MODEL, input=QUESTION, stream=True):
            yield event.delta if event.type == "response.output_text.delta" else ""


def open_openai(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=LONG_S)


PYTHON_KINDS: Final[dict[str, Callable[[str], AsyncIterator[str]]]] = {
    "native": read_natively,
    "native response": read_response,
    "completions (Python)": read_completion,
    "responses (Python)": read_openai_response,
}


async def read(kind: str, url: str, begun: asyncio.Event) -> Ended:
    text = ""
    try:
        async for piece in PYTHON_KINDS[kind](url):
            text += piece
            if text:
                begun.set()
    except (openai.OpenAIError, aiohttp.ClientError, OSError) as error:
        return Ended(kind, text, repr(error))
    finally:
        begun.set()
    return Ended(kind, text, None)


async def read_in_node(url: str, begun: Path, streams: int) -> list[Ended]:
    """The streams of the SDKs from npm, so many of each kind."""
    given = (MODEL, str(begun), QUESTION, str(streams), "resume", *NPM_KINDS)
    status, printed = await run_module(CLIENTS / "streams.mjs", url, *given)
    assert status == 0, printed
    return [Ended(**json.loads(line)) for line in printed.splitlines()]


# --- the deploy ---


async def deploy(database: str, place: Path, *, streams: int, drain_s: float) -> Deploy:
    """Replace both servers under at least so many streams."""
    each = -(-streams // (len(PYTHON_KINDS) + len(NPM_KINDS)))
    ports = [choose_port(), choose_port()]
    settings = {**ENDLESS_LEASES, "drain_s": drain_s}
    async with ProcessHarness(database, place).opened() as processes:
        old = [await processes.start_server(port=port, **settings) for port in ports]
        async with run_nginx(place, ports) as url, asyncio.TaskGroup() as group:
            begun = [asyncio.Event() for _ in range(each * len(PYTHON_KINDS))]
            kinds = [kind for kind in PYTHON_KINDS for _ in range(each)]
            reading = [group.create_task(read(kind, url, event)) for kind, event in zip(kinds, begun, strict=True)]
            in_node = group.create_task(read_in_node(url, place / "begun", each))
            for event in begun:
                await event.wait()
            await poll_until(lambda: (place / "begun").exists() or in_node.done(), what="every stream in node")
            assert not in_node.done()

            statuses: list[int | None] = []
            for port, leaving in zip(ports, old, strict=True):
                leaving.send_signal(signal.SIGTERM)
                await poll_until(lambda port=port: not listens(port), what="the old server's port")  # type: ignore[misc]
                await processes.start_server(port=port, **settings)
                if drain_s < LONG_S:  # its streams do not end before it goes
                    statuses.append(await leaving.wait())
            processes.finish_replies()
            statuses += [await leaving.wait() for leaving in old] if drain_s >= LONG_S else []
        ended = [task.result() for task in reading] + in_node.result()
    return Deploy(ended, statuses)


def report(done: Deploy) -> str:
    """A line per kind of client, and the verdict."""
    lines = []
    for kind in dict.fromkeys(each.kind for each in done.ended):
        of_kind = [each for each in done.ended if each.kind == kind]
        whole = sum(each.raised is None and not each.is_silent_half for each in of_kind)
        raised = Counter(each.raised for each in of_kind if each.raised is not None)
        recovered = sum(each.raised is not None and each.recovered == count(WORDS) for each in of_kind)
        halves = sum(each.is_silent_half for each in of_kind)
        lines.append(
            f"{kind:<21} {len(of_kind):>3} streams: {whole} whole, {raised.total()} raised ({recovered} then resumed "
            f"to the whole), {halves} silent halves  {', '.join(raised)[:70]}"
        )
    halves = sum(each.is_silent_half for each in done.ended)
    verdict = f"{len(done.ended)} streams, {halves} silent halves; the replaced servers exited with {done.statuses}"
    return "\n".join([*lines, verdict])


async def _run(streams: int, drain_s: float) -> int:
    from bench.databases import start_databases  # noqa: PLC0415  (the test has its own)

    with tempfile.TemporaryDirectory(prefix="indelible-deploy-") as place:
        async with start_databases() as addresses:
            done = await deploy(addresses["PostgreSQL"], Path(place), streams=streams, drain_s=drain_s)
    print(report(done))  # noqa: T201
    return 1 if done.faults else 0


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="A rolling deploy under load: no silent half.")
    arguments.add_argument("--streams", type=int, default=50)
    arguments.add_argument("--drain", type=float, default=1, help=f"drain_s; {LONG_S}: until every reply has ended")
    chosen = arguments.parse_args()
    sys.exit(asyncio.run(_run(chosen.streams, chosen.drain)))
