"""How the cost of a long chat and of a hostile text grows: four times as much may cost four times as much, not sixteen.

Long chats are long_chats.py: a token in a reply of 1 MB, a message in a chat of 10,000, a list of 100,000 chats.

Whatever a model, a provider or a user sends is read by code of ours that searches, splits and redacts, and a text that
is made for it must not cost the square of its length. That is a promise about time, and a test that measures time fails
on a busy machine, so it is judged here: `make bench ARGS=growth` fails if one case is missed. The texts stand in the
tests, which check that they are answered rightly: tests/loop/test_thinking.py, tests/models/test_failure_text.py,
tests/redaction/test_patterns.py and tests/redaction/test_bodies.py.

CPU time is counted, and the best of some rounds, so that another process can make a case only dearer, never cheaper.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Final

from rich.console import Console
from rich.table import Table
from tests.loop.test_thinking import LONG_TEXTS, RUNS, cut, repeat
from tests.models.test_failure_text import HUGE
from tests.redaction import test_bodies, test_patterns

from bench.findings import tabulate
from bench.long_chats import measure_long_chats
from bench.options import write_json
from indelible.loop.thinking import ThinkingSplitter
from indelible.models.failures.classify import classify, classify_response
from indelible.models.http.sse import SseDecoder
from indelible.redaction.redact import redact_addresses, redact_body, redact_json
from indelible.redaction.secrets import redact_keys

_ROUNDS: Final = 3
_LIMIT: Final = 8.0
_LONGEST_SHARE: Final = 1 / 4
_SEARCHED: Final = ("://", "password: ", "eyJ", "words and more words ")
_SSE_CHUNKS: Final = 100_000

Prepare = Callable[[int], Callable[[], object]]
"""Given a length, what is to be measured; what comes before it is not."""


async def measure() -> None:
    table = Table(title=f"Growth: the cost of four times the text, best of {_ROUNDS} rounds")
    for column in ("text", "a quarter", "all of it", "growth", "aim"):
        table.add_column(column, justify="left" if column == "text" else "right")
    missed = 0
    for name, length, prepare in _list_cases():
        quarter_s = min(_measure_cpu_s(prepare(length // 4)) for _ in range(_ROUNDS))
        whole_s = min(_measure_cpu_s(prepare(length)) for _ in range(_ROUNDS))
        is_reached = whole_s < _LIMIT * quarter_s
        missed += not is_reached
        shown = f"{quarter_s * 1e3:.1f} ms", f"{whole_s * 1e3:.1f} ms", f"{whole_s / quarter_s:.1f} ×"
        table.add_row(name, *shown, f"< {_LIMIT:.0f} ×: {'reached' if is_reached else 'MISSED'}")
    Console().print(table)
    for piece in _SEARCHED:
        share = min(_measure_longest_share(piece) for _ in range(_ROUNDS))
        is_reached = share < _LONGEST_SHARE
        missed += not is_reached
        print(f"longest call of redacting {piece!r}: {share:.1%} of all ({'reached' if is_reached else 'MISSED'})")
    console = Console(width=140)
    with console.status("starting PostgreSQL") as status:
        found = await measure_long_chats(status.update)
    console.print(tabulate("Growth: long chats", found))
    console.print(f"Written: {write_json('growth', found)}.")
    if missed:
        sys.exit(f"{missed} cases grow faster than they may.")


def _measure_cpu_s(work: Callable[[], object]) -> float:
    gc.collect()
    gc.disable()  # what earlier cases left is not this one's cost
    try:
        started = time.process_time()
        work()
        return time.process_time() - started
    finally:
        gc.enable()


def _list_cases() -> Iterator[tuple[str, int, Prepare]]:
    for name, length, size in RUNS:
        yield f"thinking: {name}, in pieces of {size:,}", length, partial(_split, name, size)
    for name, body in HUGE.items():
        yield f"failure: {name}", len(body), partial(_classify, body)
    yield "event stream: one line in many chunks", _SSE_CHUNKS, _decode
    for name, piece in test_patterns.HOSTILE.items():
        yield f"redaction of a text: {name}", test_patterns.LENGTH, partial(_redact_text, piece)
    for name, (content_type, piece) in test_bodies.HOSTILE.items():
        yield f"redaction of a body: {name}", test_bodies.LENGTH, partial(_redact_body, content_type, piece)


def _split(name: str, size: int, length: int) -> Callable[[], object]:
    assert name in LONG_TEXTS
    chunks = cut(repeat(name, length), size)
    splitter = ThinkingSplitter()

    def work() -> None:
        for chunk in chunks:
            splitter.feed(chunk)
        splitter.finish()

    return work


def _classify(body: str, length: int) -> Callable[[], object]:
    text = body[:length]
    sent = text.encode()

    def work() -> None:
        classify_response(provider="openai", status=500, body=sent)
        classify(RuntimeError(text), provider="openai")

    return work


def _decode(chunks: int) -> Callable[[], object]:
    decoder = SseDecoder()

    def work() -> None:
        for _ in range(chunks):
            decoder.feed(b"x" * 64)

    return work


def _redact_text(piece: str, length: int) -> Callable[[], object]:
    text = "secret " + piece * (length // len(piece))

    def work() -> None:
        redact_keys(text)
        redact_addresses(text)

    return work


def _redact_body(content_type: str, piece: str, length: int) -> Callable[[], object]:
    whole = test_bodies.repeat(content_type, piece, length)

    def work() -> None:
        redact_body(whole, content_type)
        redact_body(whole, content_type, whole, 1)
        redact_json([whole.decode()])

    return work


def _measure_longest_share(piece: str) -> float:
    """The longest time without a call from Python, as a share: the engine of expressions lets no other thread run."""
    text = piece * (60_000 // len(piece))
    times_s: list[float] = []

    def note_call(_frame: object, _event: str, _of: object) -> None:
        times_s.append(time.thread_time())

    sys.setprofile(note_call)
    redact_keys(text)
    sys.setprofile(None)
    return max(after - before for before, after in pairwise(times_s)) / (times_s[-1] - times_s[0])
