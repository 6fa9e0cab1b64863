"""What recording costs: the CPU per token of whole replies, with the mode `all` beside `off`.

Replies come from a provider in a process of its own (SimulatedProvider, real HTTP), at 100 tokens per second in every
stream, and are read by another process through the adapter and the loop. Everything that recording does is counted:
keeping what passes, and in the end redacting it and writing it to a SQLite file. The modes take turns in the same
process, which has done all of it once before, and a ratio is taken within each round, so that a machine that is busy
for a while is busy for both. The median of the ratios is judged; their spread tells how much to believe it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

import indelible
from indelible.clock import SystemClock
from indelible.content import Finish, Message, Part, Text, TextDelta, Usage
from indelible.debug.recorder import Recorder
from indelible.loop import run
from indelible.models import Call, Model
from indelible.models.catalog import Catalog
from indelible.settings import load_settings
from indelible.store.tables import DebugMode
from indelible.testing import SimulatedProvider

_STREAMS: Final = (1, 50)
_ROUNDS: Final = 5
_TOKENS: Final = 400
_TOKEN_INTERVAL_S: Final = 0.01
_AIM: Final = 1.25
_WIRE: Final = "openai-chat"


class Speaker:
    """Says as many words as it is asked for, one at a time."""

    provider: Final = "bench"
    name: Final = "bench"
    context_limit: Final = None

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        prompt = call.messages[-1].blocks[-1]
        assert isinstance(prompt, Text)
        due = time.perf_counter()
        for number in range(int(prompt.text)):
            due += _TOKEN_INTERVAL_S
            await asyncio.sleep(max(0, due - time.perf_counter()))
            yield TextDelta("1", f"word{number} ")
        yield Finish("stop", usage=Usage(input_tokens=10, output_tokens=_TOKENS))


async def measure() -> None:
    console = Console()
    table = Table(
        *("streams", "off", "all", "all ÷ off", "aim"),
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
        for streams in _STREAMS:
            costs_us: dict[DebugMode, list[float]] = {"off": [], "all": []}
            for number in range(_ROUNDS):
                for mode, measured_us in costs_us.items():
                    status.update(f"{streams} streams, round {number + 1} of {_ROUNDS}: {mode}")
                    measured_us.append(await loop.run_in_executor(reader, measure_replies, streams, mode))
            ratios = [all_us / off_us for off_us, all_us in zip(*costs_us.values(), strict=True)]
            shown = [f"{statistics.median(measured_us):.0f} µs" for measured_us in costs_us.values()]
            ratio = statistics.median(ratios)
            spread = f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            table.add_row(f"{streams}", *shown, spread, f"≤ {_AIM}: {'reached' if ratio <= _AIM else 'MISSED'}")
    console.print(table)


# --- the provider --------------------------------------------------------------------------


@contextmanager
def _start_provider() -> Iterator[str]:
    """Its address."""
    context = multiprocessing.get_context("spawn")
    told, telling = context.Pipe(duplex=False)
    process = context.Process(target=_provide, args=(telling,), daemon=True)
    process.start()
    telling.close()
    try:
        yield told.recv()
    finally:
        process.kill()
        process.join()


def _provide(telling: Connection) -> None:
    async def provide_for_ever() -> None:
        async with SimulatedProvider(Speaker()) as provider:
            telling.send(provider.base_url(_WIRE))
            await asyncio.Event().wait()

    asyncio.run(provide_for_ever())


# --- the reader ----------------------------------------------------------------------------


def _measure_replies(address: str, directory: str, streams: int, mode: DebugMode) -> float:
    """Microseconds of CPU per token of so many replies at once."""
    return asyncio.run(_read_replies(address, Path(directory) / "bench.db", streams, mode))


async def _read_replies(address: str, database: Path, streams: int, mode: DebugMode) -> float:
    settings = load_settings(model=f"{_WIRE}:bench@{address}")
    catalog = Catalog(settings)
    model = catalog.find(settings.model)
    async with indelible.open(database, work=False) as app:
        chat = await app.create()
        recorder = Recorder(app.store.records, mode=mode, kept_s=3600, dead_after_s=8, clock=SystemClock())
        writing = asyncio.create_task(recorder.run())
        await _read_reply(model, recorder, chat.id, tokens=1)
        await recorder.drain()
        started_s = time.process_time()
        await asyncio.gather(*(_read_reply(model, recorder, chat.id, tokens=_TOKENS) for _ in range(streams)))
        await recorder.drain()
        cpu_s = time.process_time() - started_s
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        await _check_records(app, chat.id, 1 + streams if mode == "all" else 0)
    await catalog.aclose()
    return cpu_s / (streams * _TOKENS) * 1e6


async def _read_reply(model: Model, recorder: Recorder, chat_id: str, *, tokens: int) -> None:
    heard: list[Part] = []
    with recorder.record(chat_id=chat_id, turn_id=None, kind="title", model=None, worker_id="bench") as record:
        record.begin_step(1)
        messages = [Message(role="user", blocks=[Text(f"{tokens}")])]
        await run(model=model, messages=messages, persist_step=lambda step, scope: None, publish=heard.append)
        record.end("completed")
    assert sum(isinstance(part, TextDelta) for part in heard) == tokens, "not every token was heard"


async def _check_records(app: indelible.App, chat_id: str, count: int) -> None:
    runs = await app.store.records.list_runs(chat_id, limit=1000)
    assert sum(run.attempt_count for run in runs) == count, "what was to be recorded was not"
