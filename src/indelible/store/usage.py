"""What a user's chats use, by day and model.

The sums are written in the transaction that ends an attempt, with the usage that it stores, so they cannot drift from
it: a stopped, failed or retried attempt counts with what the provider had reported. They stay when a chat is deleted:
the tokens were paid for. A day is one of UTC, and an attempt belongs to the day on which it ended.

A user's turns may end at the same moment in many chats, and a row can only be written by one transaction at a time,
until its commit is on disk. So a day has `SHARDS` rows, chosen by the chat; whoever reads adds them up.

A chat's own totals are the sum over all its messages, of every branch (rule 10.7). They are in the chat's row and
written in the transaction that writes the message, so a list or a snapshot reads them at no cost. A reply that another
process ended from the journal may get its numbers later, from the worker that knows them; they are added at that time.
A fork has copies of messages, and their sum. What is not known does not count:
a total is None only if nothing is known.

Must stay true (tests/store/test_usage_by_day.py): the sums of the days are the sums of the attempts.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from typing import Any, Final, NamedTuple, Self
from zlib import crc32

import msgspec

from indelible.api.inputs import LONGEST_USER_NAME
from indelible.api.shapes import UsageDay
from indelible.content import Usage, encode
from indelible.errors import NotFound
from indelible.store.database.transaction import Row, Transaction, clean_label, to_utc, update

SHARDS: Final = 8
_NANO: Final = 1_000_000_000
_ADD: Final = """
    INSERT INTO usage_days (user_id, day, model, shard, input_tokens, output_tokens, cost_nanousd, turns)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT (user_id, day, model, shard) DO UPDATE SET
        input_tokens = usage_days.input_tokens + excluded.input_tokens,
        output_tokens = usage_days.output_tokens + excluded.output_tokens,
        cost_nanousd = usage_days.cost_nanousd + excluded.cost_nanousd,
        turns = usage_days.turns + excluded.turns
    """
_SUMS: Final = """
    CAST(sum(u.input_tokens) AS BIGINT) AS input_tokens, CAST(sum(u.output_tokens) AS BIGINT) AS output_tokens,
    CAST(sum(u.cost_nanousd) AS BIGINT) AS cost_nanousd, CAST(sum(u.turns) AS BIGINT) AS turns
    """
_OF_USER: Final = f"""
    SELECT u.day, u.model, NULL AS name, {_SUMS} FROM usage_days AS u
    WHERE u.user_id = $1 AND u.day >= $2 AND u.day <= $3 GROUP BY u.day, u.model ORDER BY u.day, u.model
    """
_OF_ALL: Final = f"""
    SELECT u.day, u.model, users.name, {_SUMS} FROM usage_days AS u JOIN users ON users.id = u.user_id
    WHERE u.day >= $1 AND u.day <= $2 GROUP BY u.day, u.model, users.name ORDER BY u.day, users.name, u.model
    """

_OF_NAMED: Final = f"""
    SELECT u.day, u.model, users.name, {_SUMS}
    FROM users LEFT JOIN usage_days AS u ON u.user_id = users.id AND u.day >= $2 AND u.day <= $3
    WHERE users.name = $1 GROUP BY u.day, u.model, users.name ORDER BY u.day, u.model
    """
"""A user who used nothing is one row without a day; a user who does not exist is none."""


class Used(NamedTuple):
    """What one attempt used. `begins_turn`: it is the first of its turn."""

    model: str | None
    usage: Usage | None
    cost_nanousd: int | None
    begins_turn: bool = False


async def add_usage(transaction: Transaction, user_id: str, chat_id: str, used: Used, now: datetime) -> None:
    """Add what an attempt used to its day. One statement, or none if there is nothing to add."""
    if used.usage is None and not used.cost_nanousd and not used.begins_turn:
        return
    usage = used.usage or Usage()
    tokens = (usage.input_tokens, usage.output_tokens, used.cost_nanousd or 0, int(used.begins_turn))
    shard = crc32(chat_id.encode()) % SHARDS
    await transaction.defer(_ADD, user_id, to_utc(now).date().isoformat(), used.model or "", shard, *tokens)


async def load_usage(
    transaction: Transaction, user_id: str | None, since: date, until: date, *, name: str | None = None
) -> list[UsageDay]:
    """The days of a user, by id or by name, or of all users, from `since` to `until`, both included."""
    days = (since.isoformat(), until.isoformat())
    if user_id is not None:
        rows = await transaction.all(_OF_USER, user_id, *days)
    elif name is not None:
        rows = await transaction.all(_OF_NAMED, clean_label(name), *days)
        if not rows:
            raise NotFound(f"There is no user named {name[:LONGEST_USER_NAME]}.")
    else:
        rows = await transaction.all(_OF_ALL, *days)
    return [
        UsageDay(
            day=row["day"],
            model=row["model"] or None,
            input_tokens=row["input_tokens"],
            output_tokens=row["output_tokens"],
            cost=_to_dollars(row["cost_nanousd"], row["input_tokens"] + row["output_tokens"]),
            turns=row["turns"],
            user=row["name"] or msgspec.UNSET,
        )
        for row in rows
        if row["day"] is not None
    ]


def _to_dollars(cost_nanousd: int, tokens: int) -> float | None:
    """A sum of 0 for tokens is a sum of unknown costs, or of a model whose price is 0: a sum does not tell which."""
    return None if tokens and not cost_nanousd else cost_nanousd / _NANO


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
