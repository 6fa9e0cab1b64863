"""A transaction on a connection of PostgreSQL, in as few round trips as its statements allow.

A round trip costs more CPU than most of our statements, on both sides (docs/decisions/0021). So the transaction begins
with its first statement, and if that one locks a row by its id, both are sent at once. A statement whose result nobody
needs waits for the next one that has a result, or for the commit (`defer`). Those that have waited are sent as one,
each but the last as a part of its WITH clause.

Such parts see the database as it was before the statement, and run in any order. That is safe because they only write,
and each to a table of its own: a second write to a table sends first what waits. Foreign keys are checked at the end
of the statement. What is judged after a lock is never in the statement that locks (R1).

Only a text without parameters can be several statements. So the lock that is sent with BEGIN is a prepared statement
of the session, executed with a plain id.

Must stay true (tests/store/test_postgres.py): a statement sees all writes before it in its transaction; what waits is
committed, or undone, with everything else.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Self

from indelible.store.database.transaction import Dialect, Row, bind, clean_label, clean_list, to_utc

_TABLE: Final = re.compile(r"\s*(?:INSERT INTO|UPDATE|DELETE FROM)\s+(\w+)")
_VALUE: Final = re.compile(r"\$(\d+)")
_PLAIN: Final = re.compile(r"\w{1,200}", re.ASCII)
_MOST_VALUES: Final = 2_000
"""The protocol allows for 32,767, but a text so long is not worth keeping."""


class Lock(NamedTuple):
    """A row to lock as the transaction begins, by a statement that is prepared under this name."""

    name: str
    sql: str
    id: str

    @property
    def preparation(self) -> str:
        return f"PREPARE {self.name} (text) AS {self.sql}"

    def __str__(self) -> str:
        return f"EXECUTE {self.name}('{self.id}')"


Begin = Callable[[Lock | None], Awaitable[tuple[Any, bool]]]
"""Begin on a connection that works; returns it, and whether the row is locked."""


class PostgresTransaction:
    """See transaction.py. It begins with its first statement."""

    dialect: Final[Dialect] = "postgresql"

    def __init__(self, begin: Begin, observe: Callable[[str], object] | None) -> None:
        self.driver: Any = None
        """The connection, once the transaction has begun."""
        self._begin = begin
        self._observe = observe
        self._waiting: dict[str, tuple[str, Sequence[Any]]] = {}
        self._values = 0

    @classmethod
    def within(cls, driver: Any) -> Self:
        """For work in a transaction of somebody else's, who commits it after `flush`."""

        async def begin(_lock: Lock | None) -> tuple[Any, bool]:
            return driver, False

        transaction = cls(begin, None)
        transaction.driver = driver
        return transaction

    async def run(self, sql: str, *values: Any) -> int:
        driver = await self._catch_up(sql)
        status: str = await driver.execute(sql, *_bind(values))
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def one(self, sql: str, *values: Any) -> Row:
        return await (await self._catch_up(sql)).fetchrow(sql, *_bind(values))

    async def all(self, sql: str, *values: Any) -> list[Row]:
        rows: list[Row] = await (await self._catch_up(sql)).fetch(sql, *_bind(values))
        return rows

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> int | None:
        driver = await self._catch_up(sql)
        await driver.executemany(sql, [_bind(row) for row in rows])
        return None

    async def defer(self, sql: str, *values: Any) -> None:
        table = _find_table(sql)
        if table in self._waiting or self._values + len(values) > _MOST_VALUES:
            await self.flush()
        self._waiting[table] = (sql, values)
        self._values += len(values)

    async def lock(self, sql: str, *values: Any) -> bool:
        if self.driver is not None or self._waiting or len(values) != 1 or not _PLAIN.fullmatch(values[0]):
            return await self.one(sql, *values) is not None
        self.driver, is_locked = await self._begin(Lock(_name(sql), sql, values[0]))
        self._note(sql)
        return is_locked

    async def now(self) -> datetime:
        row = await self.one("SELECT clock_timestamp() AS now")
        now: datetime = row["now"]
        return now

    async def flush(self) -> None:
        """Send what waits."""
        if not self._waiting:
            return
        waiting = list(self._waiting.values())
        self._waiting.clear()
        self._values = 0
        sql = _combine(tuple(sql for sql, _ in waiting))
        driver = await self._catch_up(sql)
        await driver.execute(sql, *_bind([value for _, values in waiting for value in values]))

    async def _catch_up(self, sql: str) -> Any:
        """The connection, on which this statement is the next."""
        if self._waiting:
            await self.flush()
        if self.driver is None:
            self.driver, _ = await self._begin(None)
        self._note(sql)
        return self.driver

    def _note(self, sql: str) -> None:
        if self._observe is not None:
            self._observe(sql)


@lru_cache(maxsize=512)
def _find_table(sql: str) -> str:
    """The table that a statement writes to."""
    found = _TABLE.match(sql)
    if found is None:
        raise ValueError(f"Only a write can be deferred: {sql}")
    return found[1]


@lru_cache(maxsize=512)
def _combine(statements: tuple[str, ...]) -> str:
    """These writes as one statement, its values in their order."""
    parts: list[str] = []
    first = 0
    for sql in statements:
        numbers = [int(number) for number in _VALUE.findall(sql)]
        parts.append(_renumber(sql, first))
        first += max(numbers, default=0)
    if len(parts) == 1:
        return parts[0]
    before = ", ".join(f"part{place} AS ({part})" for place, part in enumerate(parts[:-1], 1))
    return f"WITH {before} {parts[-1]}"


def _renumber(sql: str, by: int) -> str:
    return _VALUE.sub(lambda found: f"${int(found[1]) + by}", sql).strip()


@lru_cache(maxsize=64)
def _name(sql: str) -> str:
    return f"indelible_{blake2b(sql.encode(), digest_size=8).hexdigest()}"


def _bind(values: Sequence[Any]) -> list[Any]:
    return bind(values, _BINDERS)


_BINDERS: Final[dict[type, Callable[[Any], Any]]] = {
    str: clean_label,
    datetime: to_utc,
    list: clean_list,
    tuple: clean_list,
}
