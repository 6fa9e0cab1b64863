"""What a chat has used and cost: the sum over all its messages, of every branch (rule 10.7).

The sum is kept in the chat's row and written in the transaction that writes the message, so a list or a snapshot reads
it at no cost. Only replies have usage. A reply that another process ended from the journal may get its numbers later,
from the worker that knows them (finish_attempt.py); they are added at that time. A fork has copies of messages, and
their sum.

What is not known does not count: a total is None only if nothing is known.

Must stay true (testing/invariants.py, tests/store/test_totals.py): the totals of a chat are the sums of its messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Self

import msgspec

from indelible.content import Usage, encode
from indelible.store.database.transaction import Row, Transaction, update

_NANO: Final = 1_000_000_000


class Totals(NamedTuple):
    """The columns `usage` and `cost_nanousd`, of one message or of all of them together."""

    usage: Usage | None = None
    cost_nanousd: int | None = None

    @classmethod
    def read(cls, row: Row | dict[str, Any]) -> Self:
        usage = row["usage"]
        return cls(None if usage is None else msgspec.json.decode(usage, type=Usage), row["cost_nanousd"])

    @property
    def cost_usd(self) -> float | None:
        return None if self.cost_nanousd is None else self.cost_nanousd / _NANO

    def plus(self, usage: Usage | None, cost_nanousd: int | None) -> Totals:
        total = self.usage if usage is None or self.usage is None else self.usage + usage
        cost = self.cost_nanousd if cost_nanousd is None else (self.cost_nanousd or 0) + cost_nanousd
        return Totals(total or usage, cost)

    def to_columns(self) -> dict[str, Any]:
        return {"usage": None if self.usage is None else encode(self.usage), "cost_nanousd": self.cost_nanousd}


def add_up(rows: Iterable[Row | dict[str, Any]]) -> Totals:
    """The totals of these messages."""
    totals = Totals()
    for row in rows:
        totals = totals.plus(*Totals.read(row))
    return totals


async def add_to_chat(transaction: Transaction, chat_id: str, usage: Usage | None, cost_nanousd: int | None) -> None:
    """Add to the totals of a chat whose row is locked, outside a change."""
    row = await transaction.one("SELECT usage, cost_nanousd FROM chats WHERE id = $1", chat_id)
    await update(transaction, "chats", Totals.read(row).plus(usage, cost_nanousd).to_columns(), id=chat_id)
