"""Three builds that are broken on purpose, to check that `prove` would notice.

Each function breaks one promise in the process that calls it. `Orders.prepare` has it called in the server process
that `prove` starts, and nowhere else:

    publish_first   readers receive a part before it is committed (P1)
    drop_fencing    a worker that lost its lease continues, and the store accepts its writes (P4)
    drop_ledger     the start of a tool is not written down (P5)

The product ships none of this. test_broken_builds.py asks for each of them and expects FAILED.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from indelible.content import ToolResult, ToolStarted
from indelible.machine.decide import decide
from indelible.store.journal import append
from indelible.store.journal.append import Appended, JournalRow
from indelible.store.journal.lane import RowStore
from indelible.store.journal.writer import Journal
from indelible.store.queries.open_turn import Held
from indelible.tools.tool import ToolCallRecord
from indelible.worker.chat_runner import ChatRunner
from indelible.worker.turn_writer import TurnWriter


class _HastyStore:
    """A store for the journal that publishes first."""

    def __init__(self, store: RowStore, publish: Callable[[Sequence[JournalRow]], None]) -> None:
        self._store = store
        self._publish = publish

    async def append(self, rows: Sequence[JournalRow]) -> Appended:
        self._publish(rows)
        return await self._store.append(rows)


def publish_first() -> None:
    make = Journal.__init__

    def make_hasty(self: Journal, store: RowStore, **more: Any) -> None:
        make(self, _HastyStore(store, more["on_committed"]), **more)

    _put(Journal, "__init__", make_hasty)


def drop_fencing() -> None:
    notice = ChatRunner.notice

    def notice_only_stops(self: ChatRunner, held: Held | None) -> None:
        if held is not None:
            notice(self, held)

    _put(ChatRunner, "notice", notice_only_stops)
    _put(sys.modules[decide.__module__], "_check_worker", lambda _snapshot, _command: None)
    _put(append, "_INSERT_POSTGRES", append._INSERT_POSTGRES.replace("WHERE is_open", ""))


def drop_ledger() -> None:
    record = TurnWriter.record

    async def forget_starts(self: TurnWriter, part: ToolStarted | ToolResult, call: ToolCallRecord) -> None:
        if isinstance(part, ToolResult):
            await record(self, part, call)

    _put(TurnWriter, "record", forget_starts)


def _put(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)
