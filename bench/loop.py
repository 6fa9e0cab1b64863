"""CPU per part of the loop: scripted model → ingest → publish → collect.

Beside it, in the same run, stands the limit: the same generator read by a bare `async for` that appends
to a list. The aim is 10 µs per part or less.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from rich.console import Console
from rich.table import Table

from indelible.content import Finish, Part, ReasoningDelta, TextDelta, ToolInputDelta
from indelible.loop import TurnHost, run
from indelible.models import Call
from indelible.testing import ScriptedModel

_PARTS: Final = 100_000
_ROUNDS: Final = 5


class _Counting(TurnHost):
    def __init__(self) -> None:
        self.published: list[Part] = []

    def publish(self, part: Part) -> None:
        self.published.append(part)


Source = Callable[[Call], AsyncIterator[Part]]


async def _plain_text(call: Call) -> AsyncIterator[Part]:
    for _ in range(_PARTS):
        yield TextDelta("1", "token ")
    yield Finish("stop")


async def _markdown(call: Call) -> AsyncIterator[Part]:
    words = ["# A ", "title\n\n", "some `code` ", "and a < b ", "words ", "\n- item ", "```py\nx\n```\n", "ünïcödé "]
    for at in range(_PARTS):
        yield TextDelta("1", words[at % len(words)])
    yield Finish("stop")


async def _reasoning(call: Call) -> AsyncIterator[Part]:
    for _ in range(_PARTS):
        yield ReasoningDelta("1", "thought ")
    yield Finish("stop")


async def _arguments(call: Call) -> AsyncIterator[Part]:
    for _ in range(_PARTS):
        yield ToolInputDelta("1", "1,")
    yield Finish("length")


SOURCES: Final[dict[str, Source]] = {
    "plain text": _plain_text,
    "markdown": _markdown,
    "reasoning": _reasoning,
    "tool arguments": _arguments,
}


async def measure() -> None:
    table = Table(title=f"The loop: CPU per part, best of {_ROUNDS} rounds of {_PARTS:,} parts")
    for column in ("stream", "loop", "bare async for", "loop's own share", "aim"):
        table.add_column(column, justify="left" if column == "stream" else "right")
    for name, source in SOURCES.items():
        bare_us = min([await _measure(_read_bare, source) for _ in range(_ROUNDS)])
        loop_us = min([await _measure(_read_in_loop, source) for _ in range(_ROUNDS)])
        verdict = "≤ 10 µs: reached" if loop_us <= 10 else "≤ 10 µs: MISSED"
        table.add_row(name, f"{loop_us:.2f} µs", f"{bare_us:.2f} µs", f"{loop_us / bare_us:.1f} ×", verdict)
    Console().print(table)


async def _measure(read: Callable[[Source], Awaitable[int]], source: Source) -> float:
    started = time.process_time()
    count = await read(source)
    assert count >= _PARTS, f"only {count} parts came"
    return (time.process_time() - started) / _PARTS * 1e6


async def _read_bare(source: Source) -> int:
    return len([part async for part in source(Call(messages=[]))])


async def _read_in_loop(source: Source) -> int:
    host = _Counting()
    await run(ScriptedModel([source]), [], host)
    return len(host.published)
