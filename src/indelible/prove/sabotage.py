"""Three builds that are broken on purpose, to see whether `prove` would notice.

Each takes away one promise in the server process that `prove` starts, and nowhere else:

    tell_first    readers are told of what is said before it is committed (P1)
    no_fencing    a worker that lost its lease goes on, and the store takes what it writes (P4)
    no_ledger     nobody writes down that a tool has begun (P5)

There is no option for it on the command line. The tests ask for each of them, and expect to be told FAIL
(tests/prove/test_broken_builds.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from indelible.content import ToolStarted
from indelible.machine.decide import decide
from indelible.store.journal import append
from indelible.store.journal.append import Appended, JournalRow
from indelible.store.journal.writer import Journal, RowStore
from indelible.store.queries.open_turn import Held
from indelible.tools.tool import ToolCallRecord
from indelible.worker.chat_runner import ChatRunner
from indelible.worker.ledger import JournalLedger

Sabotage = Literal["tell_first", "no_fencing", "no_ledger"]


def commit(sabotage: Sabotage) -> None:
    """Break this process. There is no way back."""
    _SABOTAGES[sabotage]()


class _Hasty:
    """A store for the journal that tells readers first."""

    def __init__(self, store: RowStore, tell: Callable[[Sequence[JournalRow]], None]) -> None:
        self._store = store
        self._tell = tell

    async def append(self, rows: Sequence[JournalRow]) -> Appended:
        self._tell(rows)
        return await self._store.append(rows)


def _tell_first() -> None:
    make = Journal.__init__

    def make_hasty(self: Journal, store: RowStore, **more: Any) -> None:
        make(self, _Hasty(store, more["on_committed"]), **more)

    _put(Journal, "__init__", make_hasty)


def _no_fencing() -> None:
    notice = ChatRunner.notice

    def notice_only_stops(self: ChatRunner, held: Held | None) -> None:
        if held is not None:
            notice(self, held)

    _put(ChatRunner, "notice", notice_only_stops)
    _put(sys.modules[decide.__module__], "_check_worker", lambda _snapshot, _command: None)
    _put(append, "_INSERT_POSTGRES", append._INSERT_POSTGRES.replace("WHERE is_open", ""))


def _no_ledger() -> None:
    async def forget(self: JournalLedger, call: ToolCallRecord) -> None:
        self._recorded.add((ToolStarted, call.id))

    _put(JournalLedger, "starting", forget)


def _put(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


_SABOTAGES: Final[dict[Sabotage, Callable[[], None]]] = {
    "tell_first": _tell_first,
    "no_fencing": _no_fencing,
    "no_ledger": _no_ledger,
}
