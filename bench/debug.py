"""What recording costs: the CPU per token of whole replies, with the mode `all` beside `off`.

Replies come from a provider in a process of its own (SimulatedProvider, real HTTP), at 100 tokens per second in every
stream. Another process hears them in two ways: *whole*, as a program does that has opened Indelible on a SQLite file
(worker, journal, feed); and *loop*, through the adapter and the loop alone, beside which recording weighs most. What
they answer is short, or 100 KB of source code, which is full of words that might name a secret. Everything that
recording does is counted: keeping what passes, and in the end redacting it and writing it to a SQLite file.

The modes take turns in the same process, which has done all of it once before, and a ratio is taken within each round,
so that a machine that is busy for a while is busy for both. The median of the ratios is judged; their spread tells how
much to believe it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

import indelible
from bench.options import IS_FULL
from indelible.api.shapes import DebugMode
from indelible.clock import SystemClock
from indelible.content import Finish, Message, Part, Text, TextDelta, Usage
from indelible.loop import TurnHost, run
from indelible.models import Call, Model
from indelible.models.catalog import Catalog
from indelible.recording.recorder import DebugRecorder
from indelible.settings import load_settings
from indelible.testing import SimulatedProvider

_ROUNDS: Final = 5 if IS_FULL else 2
_TOKENS: Final = 400
_TOKEN_INTERVAL_S: Final = 0.01
_AIM: Final = 1.25
_TIMEOUT_S: Final = 120.0
_WIRE: Final = "openai-chat"


class Case(NamedTuple):
    way: Literal["whole", "loop"]
    prompt_chars: int
    streams: int

    def __str__(self) -> str:
        prompt = f"{self.prompt_chars // 1000} KB of code" if self.prompt_chars else "a short prompt"
        return f"{self.way}, {prompt}, {self.streams} at once"


_CASES: Final = (
    *(Case("whole", 100_000, 1), Case("whole", 100_000, 50)),
    *(Case("loop", 0, 1), Case("loop", 0, 50), Case("loop", 100_000, 1), Case("loop", 100_000, 50)),
)


class Speaker:
    """Says as many words as it is asked for, one at a time."""

    provider: Final = "bench"
    name: Final = "bench"
    context_limit: Final = None

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        prompt = call.messages[-1].blocks[-1]
        assert isinstance(prompt, Text)
        due = time.perf_counter()
        for number in range(int(prompt.text.partition("\n")[0])):
            due += _TOKEN_INTERVAL_S
            await asyncio.sleep(max(0, due - time.perf_counter()))
            yield TextDelta("1", f"word{number} ")
        yield Finish("stop", usage=Usage(input_tokens=10, output_tokens=_TOKENS))


async def measure() -> None:
    console = Console()
    table = Table(
        *("replies", "off", "all", "all ÷ off", "aim"),
        title=f"Recording: CPU per token of replies of {_TOKENS} tokens, median of {_ROUNDS} rounds",
    )
    context = multiprocessing.get_context("spawn")
    with (
        console.status("starting the simulated provider") as status,
        tempfile.TemporaryDirectory() as directory,
        _start_provider() as address,
        ProcessPoolExecutor(1, mp_context=context) as reader,
    ):
        measure_replies = partial(_measure_replies, address, directory)
        loop = asyncio.get_running_loop()
        for case in _CASES:
            costs_us: dict[DebugMode, list[float]] = {"off": [], "all": []}
            for number in range(_ROUNDS):
                for mode, measured_us in costs_us.items():
                    status.update(f"{case}, round {number + 1} of {_ROUNDS}: {mode}")
                    measured_us.append(await loop.run_in_executor(reader, measure_replies, case, mode))
            ratios = [all_us / off_us for off_us, all_us in zip(*costs_us.values(), strict=True)]
            shown = [f"{statistics.median(measured_us):.0f} µs" for measured_us in costs_us.values()]
            ratio = statistics.median(ratios)
            spread = f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            judgement = f"≤ {_AIM}: {'reached' if ratio <= _AIM else 'MISSED'}"
            table.add_row(str(case), *shown, spread, judgement)
    console.print(table)


# --- the provider --------------------------------------------------------------------------


@contextmanager
def _start_provider() -> Iterator[str]:
    """Its address."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_provide, args=(sender,), daemon=True)
    process.start()
    sender.close()
    try:
        yield receiver.recv()
    finally:
        process.kill()
        process.join()


def _provide(sender: Connection) -> None:
    async def provide_for_ever() -> None:
        async with SimulatedProvider(Speaker()) as provider:
            sender.send(provider.base_url(_WIRE))
            await asyncio.Event().wait()

    asyncio.run(provide_for_ever())


# --- the reader ----------------------------------------------------------------------------


def _measure_replies(address: str, directory: str, case: Case, mode: DebugMode) -> float:
    """Microseconds of CPU per token of so many replies at once."""
    read = _read_whole if case.way == "whole" else _read_loop
    model = f"{_WIRE}:bench@{address}"
    database = Path(directory) / f"{case.way}.db"
    cpu_s = asyncio.run(read(model, database, _read_code(case.prompt_chars), case.streams, mode))
    return cpu_s / (case.streams * _TOKENS) * 1e6


def _read_code(size_chars: int) -> str:
    """Our own, from all over."""
    files = sorted(Path(indelible.__file__).parent.rglob("*.py"))
    return "".join(file.read_text() for file in files)[:size_chars]


def _write_prompt(tokens: int, code: str, number: int) -> str:
    """No two are the same."""
    return f"{tokens}\n{code[number:]}{code[:number]}"


async def _read_whole(model: str, database: Path, code: str, streams: int, mode: DebugMode) -> float:
    """The CPU time of replies in chats, from the sending to a database that is closed."""
    settings = load_settings(model=model, debug=mode, auto_titles=False, user_max_chats=streams + 1)
    async with indelible.open(database, settings=settings) as app:
        chats = [await app.create_chat() for _ in range(streams)]
        await chats[0].send(_write_prompt(1, code, 0))
        started_s = time.process_time()
        replies = [chat.send(_write_prompt(_TOKENS, code, number)) for number, chat in enumerate(chats)]
        for reply in await asyncio.gather(*replies):
            assert reply.text.endswith(f"word{_TOKENS - 1} "), "some tokens are missing"
    cpu_s = time.process_time() - started_s
    async with indelible.open(database, worker=False) as app:
        await _check_records(app, [chat.id for chat in chats], exchanges=1 + streams if mode == "all" else 0)
    return cpu_s


async def _read_loop(model_name: str, database: Path, code: str, streams: int, mode: DebugMode) -> float:
    catalog = Catalog(load_settings(model=model_name))
    model = catalog.find(model_name)
    async with indelible.open(database, worker=False) as app:
        chat_ids = [(await app.create_chat()).id for _ in range(streams)]
        recorder = DebugRecorder(app.records, mode=mode, retention_s=3600, lease_timeout_s=8, clock=SystemClock())
        writing = asyncio.create_task(recorder.run())
        await _read_reply(model, recorder, chat_ids[0], _write_prompt(1, code, 0), tokens=1)
        await recorder.drain()
        started_s = time.process_time()
        replies = [
            _read_reply(model, recorder, chat_id, _write_prompt(_TOKENS, code, number), tokens=_TOKENS)
            for number, chat_id in enumerate(chat_ids)
        ]
        await asyncio.gather(*replies)
        await recorder.drain(limit_s=_TIMEOUT_S)
        cpu_s = time.process_time() - started_s
        await _check_records(app, chat_ids, exchanges=1 + streams if mode == "all" else 0)
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
    await catalog.aclose()
    return cpu_s


async def _read_reply(model: Model, recorder: DebugRecorder, chat_id: str, prompt: str, *, tokens: int) -> None:
    published: list[Part] = []

    class Host(TurnHost):
        def publish(self, part: Part) -> None:
            published.append(part)

    with recorder.record(chat_id=chat_id, turn_id=None, kind="turn", model=None, worker_id="bench") as record:
        record.begin_step(1)
        messages = [Message(role="user", blocks=[Text(prompt)])]
        await run(model, messages, Host())
        record.end("completed")
    words = sum(part.delta.count("word") for part in published if isinstance(part, TextDelta))
    assert words == tokens, "some tokens are missing"


async def _check_records(app: indelible.App, chat_ids: Sequence[str], *, exchanges: int) -> None:
    runs = [run for chat_id in chat_ids for run in await app.records.list_runs(chat_id)]
    assert sum(run.attempt_count for run in runs) == exchanges, "what was to be recorded was not"
