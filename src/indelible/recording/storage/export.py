"""A recorded run as a JSON document, written piece by piece.

The result is the JSON of a `WholeRun`, but it is never all in memory: the tree of the run is loaded first, and its
exchanges one by one. So a run of any length takes the memory of one exchange, and a slow reader holds nothing open in
the database.

If the run is deleted meanwhile, writing raises `NotFound` at that point, and the pieces so far are not a complete
document: a reader that asks again gets a 404.

Must stay true (tests/recording/test_reading_records.py): the pieces together are the run, and no more than an exchange
or two of it is in memory. server/routes.py and terminal/debugging.py send them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from msgspec.structs import replace

from indelible.api.records import AttemptRecord, AttemptSummary, RunTree
from indelible.content import encode
from indelible.errors import NotFound
from indelible.recording.storage.protocol import RecordStore

_OPEN_END: Final = len("]}")
"""The end of a run and of a step, after their empty list of children. Without it, children can be appended."""


async def load_exchange(records: RecordStore, line: AttemptSummary) -> AttemptRecord:
    """The content of an exchange in a tree. Raises `NotFound` if the run was deleted meanwhile."""
    attempt = await records.load_attempt(line.chat_id, line.run_id, line.step, line.number)
    if attempt is None:
        raise NotFound("The run was deleted while it was read.")
    return attempt


async def write_run(records: RecordStore, run: RunTree) -> AsyncIterator[bytes]:
    """The run with all its content: a line for itself, for each step and for each exchange."""
    yield encode(replace(run, steps=[]))[:-_OPEN_END]
    for place, step in enumerate(run.steps):
        yield (b",\n" if place else b"\n") + encode(replace(step, attempts=[]))[:-_OPEN_END]
        for number, line in enumerate(step.attempts):
            yield (b",\n" if number else b"\n") + encode(await load_exchange(records, line))
        yield b"]}"
    yield b"]}\n"
