"""What reading a provider's stream costs: the CPU per token of each adapter, beside the official SDK.

A process that does nothing but read is asked for the CPU it spent on a stretch in which all of its streams speak, at
50 tokens per second each; imports, connecting and the first words lie before it. The provider is a process of its own
(SimulatedProvider, over real HTTP: at 300 streams it needs about a third of a core), so that its work is nobody's
here. Our adapter is read part by part, as the catalog gives it, and once more through the whole loop; the SDK is read
event by event. Nothing is done with what comes but to count the tokens.

The readers of one wire take turns, and a ratio is taken within each round, so that a machine that is busy for a while
is busy for all of them. If the aim lies among the ratios of the rounds, the machine was too busy to tell, and the bench
says that instead. A reader that can not keep up finds more tokens in every piece that it reads, which makes them
cheaper; at 300 streams this favours the SDKs.

The second table is the reader alone, without a network or an event loop: what is left if all else were free. Beside it
stands `json.loads` of the same events, which makes no parts of them.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final

from rich.console import Console
from rich.status import Status
from rich.table import Table

from indelible.content import Finish, Message, Part, Text, TextDelta, TextEnd, TextStart
from indelible.errors import Interrupted
from indelible.loop import run
from indelible.models import Call
from indelible.models.catalog import Catalog
from indelible.models.port import Model, PromptMessage
from indelible.models.profile import Profile
from indelible.models.sse import SseDecoder
from indelible.models.wires import make_wire
from indelible.scope import Scope
from indelible.settings import load_settings
from indelible.testing import SimulatedProvider, write_reply
from indelible.testing.provider import WireName

_STREAMS: Final = (1, 100, 300)
_ROUNDS: Final = 3
_MEASURED_S: Final = 1.2
_TOKEN_INTERVAL_S: Final = 0.02
_FIRST_TOKENS: Final = 5
_WORD: Final = "word "
_PROMPT: Final = "Speak."
_KEY_VARIABLE: Final = "KEY_OF_THE_BENCH"
_MAX_TOKENS: Final = 100_000
_EVENTS: Final = 20_000
_AIMS: Final[dict[WireName, float]] = {"anthropic": 1 / 2, "openai": 1 / 3, "openai-chat": 1 / 3}
_SDK_CALLS: Final[dict[WireName, tuple[str, ...]]] = {
    "anthropic": ("messages.create", "messages.stream"),
    "openai": ("responses.create",),
    "openai-chat": ("chat.completions.create",),
}

# Reads one stream, and tells of each token.
Read = Callable[[Callable[[], None]], Awaitable[None]]
# Gets ready to read from this address.
Open = Callable[[WireName, str], AbstractAsyncContextManager[Read]]
# Reads so many streams in a process of its own. Gives the microseconds of CPU per token.
Reader = Callable[[int], float]


async def measure() -> None:
    console = Console()
    costs = Table(
        *("wire", "streams", "adapter", "in the loop", "official SDK", "its cost", "adapter ÷ SDK", "aim"),
        title=f"CPU per token of a reader, {1 / _TOKEN_INTERVAL_S:.0f} tokens/s in every stream, "
        f"median of {_ROUNDS} rounds",
    )
    alone = Table(
        *("wire", "cutting into events", "making parts", "both", "json.loads"), title="The reader alone, per event"
    )
    with console.status("starting the simulated provider") as status, _start_provider() as addresses:
        for wire, address in addresses.items():
            _measure_costs(wire, address, costs, status)
            status.update(f"{wire}: the reader alone")
            _measure_alone(wire, alone)
    for table in (costs, alone):
        console.print(table)


def _measure_costs(wire: WireName, address: str, table: Table, status: Status) -> None:
    names = ("adapter", "loop", *_SDK_CALLS[wire])
    with ExitStack() as stack:
        readers = {name: stack.enter_context(_start_reader(name, wire, address)) for name in names}
        for streams in _STREAMS:
            rounds: dict[str, list[float]] = {name: [] for name in names}
            for number in range(_ROUNDS):
                for name, read in readers.items():
                    status.update(f"{wire}: {streams} streams, round {number + 1} of {_ROUNDS}: {name}")
                    rounds[name].append(read(streams))
            for sdk_call in _SDK_CALLS[wire]:
                ratios = [ours / theirs for ours, theirs in zip(rounds["adapter"], rounds[sdk_call], strict=True)]
                costs_us = {name: statistics.median(costs) for name, costs in rounds.items()}
                table.add_row(
                    *(wire, f"{streams}", f"{costs_us['adapter']:.0f} µs", f"{costs_us['loop']:.0f} µs"),
                    *(sdk_call, f"{costs_us[sdk_call]:.0f} µs", f"{statistics.median(ratios):.2f}"),
                    f"≤ {_AIMS[wire]:.2f}: {_judge(ratios, _AIMS[wire])}",
                )


def _judge(ratios: Sequence[float], aim: float) -> str:
    if min(ratios) <= aim < max(ratios):
        return "too noisy to tell"
    return "reached" if max(ratios) <= aim else "MISSED"


# --- the provider --------------------------------------------------------------------------


class Speaker:
    """Speaks at 50 tokens per second, until nobody listens."""

    provider: Final = "bench"
    name: Final = "bench"
    context_limit: Final = None

    async def stream(self, _call: Call) -> AsyncIterator[Part]:
        yield TextStart("1")
        due = time.perf_counter()
        while True:
            due += _TOKEN_INTERVAL_S
            await asyncio.sleep(max(0, due - time.perf_counter()))
            yield TextDelta("1", _WORD)


@contextmanager
def _start_provider() -> Iterator[dict[WireName, str]]:
    """The address of each wire."""
    with _start_process(_provide) as pipe:
        yield pipe.recv()


def _provide(pipe: Connection) -> None:
    asyncio.run(_provide_for_ever(pipe))


async def _provide_for_ever(pipe: Connection) -> None:
    async with SimulatedProvider(Speaker()) as provider:
        pipe.send({wire: provider.base_url(wire) for wire in _AIMS})
        await asyncio.Event().wait()


@contextmanager
def _start_process(target: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """A process with a pipe to it. It ends with the block."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


# --- readers -------------------------------------------------------------------------------


class Heard:
    """The tokens that have come; `all_speak` is set when every stream has said its first few."""

    def __init__(self, streams: int) -> None:
        self.tokens = 0
        self.all_speak = asyncio.Event()
        self._to_come = [_FIRST_TOKENS] * streams
        self._silent = streams

    def add(self, stream: int) -> None:
        self.tokens += 1
        if self._to_come[stream]:
            self._to_come[stream] -= 1
            if not self._to_come[stream]:
                self._silent -= 1
                if not self._silent:
                    self.all_speak.set()


@contextmanager
def _start_reader(name: str, wire: WireName, address: str) -> Iterator[Reader]:
    with _start_process(_serve_reader, name, wire, address) as pipe:

        def read(streams: int) -> float:
            pipe.send(streams)
            cost_us: float = pipe.recv()
            return cost_us

        yield read


def _serve_reader(name: str, wire: WireName, address: str, pipe: Connection) -> None:
    while True:
        pipe.send(asyncio.run(_measure_reader(_OPEN[name], wire, address, streams=pipe.recv())))


async def _measure_reader(open_: Open, wire: WireName, address: str, *, streams: int) -> float:
    """Microseconds of CPU per token, while all streams speak."""
    heard = Heard(streams)
    async with open_(wire, address) as read, asyncio.TaskGroup() as group:
        reading = [group.create_task(_read_on(read, partial(heard.add, at))) for at in range(streams)]
        await heard.all_speak.wait()
        tokens, started = heard.tokens, time.process_time()
        await asyncio.sleep(_MEASURED_S)
        cost_us = (time.process_time() - started) / (heard.tokens - tokens) * 1e6
        for task in reading:
            task.cancel()
    return cost_us


async def _read_on(read: Read, tell: Callable[[], None]) -> None:
    await read(tell)
    raise AssertionError("a stream ended by itself")


@asynccontextmanager
async def _open_adapter(wire: WireName, address: str) -> AsyncIterator[Read]:
    async with _open_model(wire, address) as model:
        call = Call(messages=[PromptMessage(role="user", blocks=[Text(_PROMPT)])])

        async def read(tell: Callable[[], None]) -> None:
            async for part in model.stream(call):
                if type(part) is TextDelta:
                    tell()

        yield read


@asynccontextmanager
async def _open_loop(wire: WireName, address: str) -> AsyncIterator[Read]:
    async with _open_model(wire, address) as model:
        messages = [Message(role="user", blocks=[Text(_PROMPT)])]

        async def read(tell: Callable[[], None]) -> None:
            def publish(part: Part) -> None:
                if type(part) is TextDelta:
                    tell()

            await run(model=model, messages=messages, persist_step=lambda step, scope: None, publish=publish)

        yield read


@asynccontextmanager
async def _open_model(wire: WireName, address: str) -> AsyncIterator[Model]:
    settings = load_settings(model=f"{wire}:bench@{address}", base_urls={address: _KEY_VARIABLE})
    catalog = Catalog(settings, environment={_KEY_VARIABLE: "key"})
    try:
        yield catalog.find(settings.model)
    finally:
        await catalog.aclose()


# The SDKs are imported where they are read, so that nobody else's process is larger for them.


@asynccontextmanager
async def _open_messages_create(wire: WireName, address: str) -> AsyncIterator[Read]:
    from anthropic import AsyncAnthropic  # noqa: PLC0415

    async with AsyncAnthropic(base_url=address, api_key="key", max_retries=0) as client:

        async def read(tell: Callable[[], None]) -> None:
            stream = await client.messages.create(
                model="bench", max_tokens=_MAX_TOKENS, messages=[{"role": "user", "content": _PROMPT}], stream=True
            )
            async for event in stream:
                if event.type == "content_block_delta":
                    tell()

        yield read


@asynccontextmanager
async def _open_messages_stream(wire: WireName, address: str) -> AsyncIterator[Read]:
    from anthropic import AsyncAnthropic  # noqa: PLC0415

    async with AsyncAnthropic(base_url=address, api_key="key", max_retries=0) as client:

        async def read(tell: Callable[[], None]) -> None:
            async with client.messages.stream(
                model="bench", max_tokens=_MAX_TOKENS, messages=[{"role": "user", "content": _PROMPT}]
            ) as stream:
                async for event in stream:
                    if event.type == "content_block_delta":
                        tell()

        yield read


@asynccontextmanager
async def _open_responses_create(wire: WireName, address: str) -> AsyncIterator[Read]:
    from openai import AsyncOpenAI  # noqa: PLC0415

    async with AsyncOpenAI(base_url=address, api_key="key", max_retries=0) as client:

        async def read(tell: Callable[[], None]) -> None:
            stream = await client.responses.create(model="bench", input=_PROMPT, stream=True)
            async for event in stream:
                if event.type == "response.output_text.delta":
                    tell()

        yield read


@asynccontextmanager
async def _open_chat_create(wire: WireName, address: str) -> AsyncIterator[Read]:
    from openai import AsyncOpenAI  # noqa: PLC0415

    async with AsyncOpenAI(base_url=address, api_key="key", max_retries=0) as client:

        async def read(tell: Callable[[], None]) -> None:
            stream = await client.chat.completions.create(
                model="bench", messages=[{"role": "user", "content": _PROMPT}], stream=True
            )
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    tell()

        yield read


_OPEN: Final[dict[str, Open]] = {
    "adapter": _open_adapter,
    "loop": _open_loop,
    "messages.create": _open_messages_create,
    "messages.stream": _open_messages_stream,
    "responses.create": _open_responses_create,
    "chat.completions.create": _open_chat_create,
}


# --- the reader alone ----------------------------------------------------------------------


def _measure_alone(wire: WireName, table: Table) -> None:
    said = [TextStart("1"), *[TextDelta("1", _WORD)] * _EVENTS, TextEnd("1"), Finish("stop")]
    chunks = write_reply(wire, said)
    decoder = SseDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    tokens = [event.data for event in events if _WORD.encode() in event.data][:_EVENTS]
    cutting_us = min(_time_each(SseDecoder().feed, chunks) for _ in range(_ROUNDS))
    making_us = min(
        _time_each(make_wire(wire, official=False).open_reader(Call(messages=[]), Profile()).read, events)
        for _ in range(_ROUNDS)
    )
    loads_us = min(_time_each(json.loads, tokens) for _ in range(_ROUNDS))
    both_us = cutting_us + making_us
    table.add_row(wire, *(f"{cost_us:.2f} µs" for cost_us in (cutting_us, making_us, both_us, loads_us)))


def _time_each(work: Callable[[Any], object], given: Sequence[Any]) -> float:
    """Microseconds of CPU for each."""
    started = time.process_time()
    for each in given:
        work(each)
    return (time.process_time() - started) / len(given) * 1e6
