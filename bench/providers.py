"""What reading a provider's stream costs: the CPU per token of each adapter, beside the official SDK.

A process that does nothing but read is asked for the CPU it spent while all of its streams spoke, at 50 tokens per
second each; imports, connecting and first words do not count. The provider is a process of its own (SimulatedProvider,
real HTTP; at 300 streams it takes well below one core). Our adapter is read part by part, as the catalog gives it,
and once more through the whole loop; the SDK is read event by event. Nothing is done with what comes.

All readers get the very same pieces: one token each. A reader that fell behind would find many tokens in a piece, and
each would cost it less; the busier the machine, the less they would differ. So a stream holds its next token back until
the last one was read. Whoever keeps up does not notice; for whoever does not, the table says how fast it was.

The readers of one wire take turns, and a ratio is taken within each round, so that a machine that is busy for a while
is busy for all of them. If the aim lies among the ratios of the rounds, the machine was too busy to tell, and the bench
says that instead.

The second table is the reader alone, without a network or an event loop: what is left if all else were free. Beside it
stands `json.loads` of the same events, which makes no parts of them.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import json
import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.console import Console
from rich.status import Status
from rich.table import Column, Table

from bench.options import IS_FULL
from indelible.content import Message, Part, Text, TextDelta, TextStart
from indelible.loop import TurnHost, run
from indelible.models import Call, Model, PromptMessage
from indelible.models.catalog import Catalog, make_wire_format
from indelible.models.http.sse import SseDecoder
from indelible.models.profile import Profile
from indelible.settings import load_settings
from indelible.testing import SimulatedProvider, write_reply
from indelible.testing.provider import WireName

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

_STREAMS: Final = (1, 100, 300) if IS_FULL else (1, 100)
_ROUNDS: Final = 2
_MEASURED_S: Final = 1.6
_FIRST_TOKENS: Final = 5
_TOKENS_PER_S: Final = 50
_KEPT_UP: Final = 0.9
_WORD: Final = "word "
_KEY_VARIABLE: Final = "KEY_OF_THE_BENCH"
_MAX_TOKENS: Final = 1000
_EVENTS: Final = 20_000
_AIMS: Final[dict[WireName, float]] = {"anthropic": 1 / 2, "openai": 1 / 3, "openai-chat": 1 / 3}
_SDK_CALLS: Final[dict[WireName, tuple[str, ...]]] = {
    "anthropic": ("messages.create", "messages.stream"),
    "openai": ("responses.create",),
    "openai-chat": ("chat.completions",),
}


class Cost(NamedTuple):
    """Of reading: the CPU per token, and how many tokens per second came in each stream."""

    token_us: float
    rate: float


# How many tokens each stream has read: written by the reader, read by the provider.
Counts = ctypes.Array[ctypes.c_uint32]
# Reads so many streams in a process of its own.
Measure = Callable[[int], Cost]
# Called for each token.
OnToken = Callable[[], None]
# Reads one stream of a client.
Read = Callable[[Any, str, OnToken], Coroutine[Any, Any, None]]
# Makes a client that talks to this address.
Open = Callable[[WireName, str], AbstractAsyncContextManager[Any]]


async def measure() -> None:
    console = Console()
    counts = multiprocessing.get_context("spawn").RawArray(ctypes.c_uint32, max(_STREAMS))
    costs = Table(
        *("wire, streams", "adapter", "in loop", Column("official SDK", no_wrap=True), "ratio", "aim"),
        title=f"CPU per token of a reader; {_TOKENS_PER_S} tokens/s in every stream, or as many as it managed",
        show_lines=True,
    )
    alone = Table("wire", "cut events", "make parts", "both", "json.loads", title="The reader alone, CPU per event")
    with console.status("starting the simulated provider") as status, _start_provider(counts) as addresses:
        for wire, address in addresses.items():
            _measure_costs(wire, address, counts, costs, status)
            status.update(f"{wire}: the reader alone")
            _measure_alone(wire, alone)
    for table in (costs, alone):
        console.print(table)


def _measure_costs(wire: WireName, address: str, counts: Counts, table: Table, status: Status) -> None:
    names = ("adapter", "loop", *_SDK_CALLS[wire])
    with ExitStack() as stack:
        readers = {name: stack.enter_context(_start_reader(name, wire, address, counts)) for name in names}
        for streams in _STREAMS:
            rounds: dict[str, list[Cost]] = {name: [] for name in names}
            for number in range(_ROUNDS):
                for name, measure_streams in readers.items():
                    status.update(f"{wire}: {streams} streams, round {number + 1} of {_ROUNDS}: {name}")
                    rounds[name].append(measure_streams(streams))
            for sdk_call in _SDK_CALLS[wire]:
                pairs = zip(rounds["adapter"], rounds[sdk_call], strict=True)
                ratios = [ours.token_us / theirs.token_us for ours, theirs in pairs]
                table.add_row(
                    f"{wire}\n{streams}",
                    *(_show(rounds["adapter"]), _show(rounds["loop"]), f"{sdk_call}\n{_show(rounds[sdk_call])}"),
                    *(f"{statistics.mean(ratios):.2f}", f"≤ {_AIMS[wire]:.2f}\n{_judge(ratios, _AIMS[wire])}"),
                )


def _show(costs: Sequence[Cost]) -> str:
    token_us = statistics.mean(cost.token_us for cost in costs)
    rate = statistics.mean(cost.rate for cost in costs)
    return f"{token_us:.0f} µs" if rate > _KEPT_UP * _TOKENS_PER_S else f"{token_us:.0f} µs\nat {rate:.0f}/s"


def _judge(ratios: Sequence[float], aim: float) -> str:
    if min(ratios) <= aim < max(ratios):
        return "too noisy to tell"
    return "reached" if max(ratios) <= aim else "MISSED"


# --- the provider --------------------------------------------------------------------------


class Speaker:
    """Speaks at 50 tokens per second, until nobody listens.

    The prompt says which stream it is, and with how many to begin together, each at its own moment of the interval.
    """

    provider: Final = "bench"
    name: Final = "bench"
    context_limit: Final = None

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._gates: dict[int, asyncio.Barrier] = {}

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        yield TextStart("1")
        prompt = call.messages[-1].blocks[-1]
        assert isinstance(prompt, Text)
        at, streams = map(int, prompt.text.split(" of "))
        await self._gates.setdefault(streams, asyncio.Barrier(streams)).wait()
        began = time.perf_counter() + at / streams / _TOKENS_PER_S
        sent = 0
        for tick in itertools.count(1):
            await asyncio.sleep(max(0, began + tick / _TOKENS_PER_S - time.perf_counter()))
            if self._counts[at] == sent:
                sent += 1
                yield TextDelta("1", _WORD)


@contextmanager
def _start_provider(counts: Counts) -> Iterator[dict[WireName, str]]:
    """The address of each wire."""
    with _start_process(_provide, counts) as pipe:
        yield pipe.recv()


def _provide(counts: Counts, pipe: Connection) -> None:
    asyncio.run(_provide_for_ever(counts, pipe))


async def _provide_for_ever(counts: Counts, pipe: Connection) -> None:
    async with SimulatedProvider(Speaker(counts)) as provider:
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


@contextmanager
def _start_reader(name: str, wire: WireName, address: str, counts: Counts) -> Iterator[Measure]:
    with _start_process(_serve_reader, name, wire, address, counts) as pipe:

        def measure_streams(streams: int) -> Cost:
            pipe.send(streams)
            cost: Cost = pipe.recv()
            return cost

        yield measure_streams


def _serve_reader(name: str, wire: WireName, address: str, counts: Counts, pipe: Connection) -> None:
    open_client, read = _READERS[name]
    while True:
        counter = TokenCounter(counts, streams=pipe.recv())
        pipe.send(asyncio.run(_measure_streams(partial(open_client, wire, address), read, counter)))


class TokenCounter:
    """The tokens that have come; `all_speak` is set when every stream has said its first few."""

    def __init__(self, counts: Counts, *, streams: int) -> None:
        self.streams = streams
        self.tokens = 0
        self.all_speak = asyncio.Event()
        self._silent = streams
        self._counts = counts
        for at in range(streams):
            counts[at] = 0

    def add(self, at: int) -> None:
        self.tokens += 1
        self._counts[at] += 1
        if self._counts[at] == _FIRST_TOKENS:
            self._silent -= 1
            if not self._silent:
                self.all_speak.set()


async def _measure_streams(
    open_client: Callable[[], AbstractAsyncContextManager[Any]], read: Read, counter: TokenCounter
) -> Cost:
    """What the tokens cost while all streams speak."""
    streams = counter.streams
    async with open_client() as client, asyncio.TaskGroup() as group:
        reading = [
            group.create_task(read(client, f"{at} of {streams}", partial(counter.add, at))) for at in range(streams)
        ]
        await counter.all_speak.wait()
        gc.collect()
        tokens, cpu_s, started = counter.tokens, time.process_time(), time.perf_counter()
        await asyncio.sleep(_MEASURED_S)
        tokens, cpu_s = counter.tokens - tokens, time.process_time() - cpu_s
        rate = tokens / streams / (time.perf_counter() - started)
        for task in reading:
            task.cancel()
    return Cost(cpu_s / tokens * 1e6, rate)


@asynccontextmanager
async def _open_model(wire: WireName, address: str) -> AsyncIterator[Model]:
    settings = load_settings(model=f"{wire}:bench@{address}", base_urls={address: _KEY_VARIABLE})
    catalog = Catalog(settings, environment={_KEY_VARIABLE: "key"})
    try:
        yield catalog.find(settings.model)
    finally:
        await catalog.aclose()


async def _read_adapter(model: Model, prompt: str, on_token: OnToken) -> None:
    async for part in model.stream(Call(messages=[PromptMessage(role="user", blocks=[Text(prompt)])])):
        if type(part) is TextDelta:
            on_token()


async def _read_loop(model: Model, prompt: str, on_token: OnToken) -> None:
    class Host(TurnHost):
        def publish(self, part: Part) -> None:
            if type(part) is TextDelta:
                on_token()

    await run(model, [Message(role="user", blocks=[Text(prompt)])], Host())


# An SDK is imported only where it reads, so that no other process is larger for it.


@asynccontextmanager
async def _open_anthropic(wire: WireName, address: str) -> AsyncIterator[AsyncAnthropic]:
    from anthropic import AsyncAnthropic  # noqa: PLC0415

    async with AsyncAnthropic(base_url=address, api_key="key", max_retries=0) as client:
        yield client


async def _read_messages_create(client: AsyncAnthropic, prompt: str, on_token: OnToken) -> None:
    events = await client.messages.create(
        model="bench", max_tokens=_MAX_TOKENS, messages=[{"role": "user", "content": prompt}], stream=True
    )
    async for event in events:
        if event.type == "content_block_delta":
            on_token()


async def _read_messages_stream(client: AsyncAnthropic, prompt: str, on_token: OnToken) -> None:
    async with client.messages.stream(
        model="bench", max_tokens=_MAX_TOKENS, messages=[{"role": "user", "content": prompt}]
    ) as events:
        async for event in events:
            if event.type == "content_block_delta":
                on_token()


@asynccontextmanager
async def _open_openai(wire: WireName, address: str) -> AsyncIterator[AsyncOpenAI]:
    from openai import AsyncOpenAI  # noqa: PLC0415

    async with AsyncOpenAI(base_url=address, api_key="key", max_retries=0) as client:
        yield client


async def _read_responses_create(client: AsyncOpenAI, prompt: str, on_token: OnToken) -> None:
    async for event in await client.responses.create(model="bench", input=prompt, stream=True):
        if event.type == "response.output_text.delta":
            on_token()


async def _read_chat_create(client: AsyncOpenAI, prompt: str, on_token: OnToken) -> None:
    chunks = await client.chat.completions.create(
        model="bench", messages=[{"role": "user", "content": prompt}], stream=True
    )
    async for chunk in chunks:
        if chunk.choices and chunk.choices[0].delta.content:
            on_token()


_READERS: Final[dict[str, tuple[Open, Read]]] = {
    "adapter": (_open_model, _read_adapter),
    "loop": (_open_model, _read_loop),
    "messages.create": (_open_anthropic, _read_messages_create),
    "messages.stream": (_open_anthropic, _read_messages_stream),
    "responses.create": (_open_openai, _read_responses_create),
    "chat.completions": (_open_openai, _read_chat_create),
}


# --- the reader alone ----------------------------------------------------------------------


def _measure_alone(wire: WireName, table: Table) -> None:
    chunks = write_reply(wire, [TextStart("1"), *[TextDelta("1", _WORD)] * _EVENTS])[-_EVENTS:]
    decoder = SseDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    profile = Profile()
    cutting_us = min(_time_each(SseDecoder().feed, chunks) for _ in range(_ROUNDS))
    making_us = min(
        _time_each(make_wire_format(wire, official=False).open_reader(Call(messages=[]), profile).read, events)
        for _ in range(_ROUNDS)
    )
    loads_us = min(_time_each(json.loads, [event.data for event in events]) for _ in range(_ROUNDS))
    table.add_row(wire, *(f"{cost_us:.2f} µs" for cost_us in (cutting_us, making_us, cutting_us + making_us, loads_us)))


def _time_each(work: Callable[[Any], object], given: Sequence[Any]) -> float:
    """Microseconds of CPU for each."""
    started = time.process_time()
    for each in given:
        work(each)
    return (time.process_time() - started) / len(given) * 1e6
