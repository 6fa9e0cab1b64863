"""A transaction, as the store's commands and queries see it: SQL text in, rows out, and nothing else to await.

A command is one `async def` over a `Transaction`. It may await the methods below and functions built on them, and
nothing else: on SQLite it runs from its first statement to its last in one visit to a thread, where there is no event
loop (sqlite.py); on PostgreSQL each statement is a round trip on the event loop (postgres.py).

The SQL has one spelling, the subset of PostgreSQL's that SQLite knows too: `$1` for a value, `ON CONFLICT`, row values,
`TRUE`. SQLite spells three things differently, which `translate_statement` translates, once per text: values, which are
nameless (`?`) because Python's sqlite3 module warns of numbered ones in 3.12.0 to 3.12.3; `= ANY($1)` for a list; and
row locks, which it does not need, because a write transaction locks the whole file. Where more differs, the code checks
`dialect` and says why.

Values match the columns of tables/: ids, words and labels are `str`, and characters that a database cannot hold in
them become U+FFFD; JSON and everything that a person or a model wrote is `bytes`; a time is an aware `datetime`.
Rows are indexed by name. Read a time with `to_time`, and a boolean with `bool`: SQLite has neither type.

Must stay true: the same statement means the same on both databases (tests/store/test_transaction.py); using an open
database in another process or loop, or after it was closed, fails at once and changes nothing
(tests/app/test_misuse.py).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, overload

from indelible.content.unicode import clean_text
from indelible.errors import StoreFailed

T = TypeVar("T")
Dialect = Literal["sqlite", "postgresql"]
Row = Any
"""A row: `row["name"]`."""

_VALUE: Final = re.compile(r"\$(\d+)")
_ANY: Final = re.compile(r"= ANY\(\$(\d+)\)")
_LOCK: Final = re.compile(r"\s+FOR (NO KEY UPDATE|UPDATE|SHARE|KEY SHARE)( OF \w+)?( SKIP LOCKED)?\s*$")


class Transaction(Protocol):
    """What a command may do. Database errors are the driver's own here; `Database` translates them."""

    @property
    def dialect(self) -> Dialect: ...

    async def run(self, sql: str, *values: Any) -> int:
        """Execute a statement; returns how many rows it changed."""

    async def one(self, sql: str, *values: Any) -> Row:
        """The first row; None if there is none."""

    async def all(self, sql: str, *values: Any) -> list[Row]: ...

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> int | None:
        """Execute a statement once for each row of values.

        Returns the total number of rows changed, if the database counts them; PostgreSQL does not.
        """

    async def defer(self, sql: str, *values: Any) -> None:
        """Execute a write whose result nobody needs, before the next statement with a result or at the commit."""

    async def lock(self, sql: str, *values: Any) -> bool:
        """Lock the row that this statement selects; False if there is none that it can lock.

        SQLite says True without asking: a transaction that writes has locked the whole file.
        """

    async def now(self) -> datetime:
        """The database's clock, which all workers share. SQLite's is this machine's."""


Work = Callable[[Transaction], Coroutine[Any, Any, T]]


class Database(Protocol):
    """An open database. A cancelled caller waits for the end of its transaction."""

    @property
    def dialect(self) -> Dialect: ...

    async def write(
        self,
        work: Work[T],
        *,
        urgent: bool = False,
        slow: bool = False,
        single: bool = False,
        on_committed: Callable[[T], object] | None = None,
    ) -> T:
        """Run `work` in a transaction that may write; when this returns, it is durable.

        If `work` raises, nothing is written. It may run more than once before it is committed, so it must change
        nothing but the database. `on_committed` receives its result after the commit, in the event loop, even if
        the caller was cancelled meanwhile.

        `urgent` work goes before other users' work: the journal, a heartbeat. `slow` work may take many
        milliseconds, so it shares its commit with no other. `single` promises that it is one statement, which needs no
        BEGIN and no COMMIT.

        A failing database raises a `StoreFailed`; an error about the data is the driver's own.
        """

    async def read(self, work: Work[T], *, urgent: bool = False, single: bool = False) -> T:
        """Run `work` in a read-only transaction that sees one snapshot of the database."""

    async def close(self) -> None:
        """Wait for submitted work, then close every connection."""


# --- values --------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def format_time(moment: datetime) -> str:
    """A time as SQLite stores it: readable text of fixed width, so that it sorts by time.

    One command writes the same time many times.
    """
    return f"{to_utc(moment).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def to_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone.")
    return moment.astimezone(UTC)


@overload
def to_time(value: str | datetime) -> datetime: ...
@overload
def to_time(value: str | datetime | None) -> datetime | None: ...
def to_time(value: str | datetime | None) -> datetime | None:
    """A time read from a row. Infinity comes from asyncpg as the end of the calendar, without a zone."""
    if value is None:
        return None
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def clean_label(value: str) -> str:
    """The text as a database stores an id, a word or a label."""
    if value.isascii() and "\0" not in value:
        return value
    return clean_text(value).replace("\0", "\ufffd")


def clean_list(values: Sequence[Any]) -> list[Any]:
    return [clean_label(value) if isinstance(value, str) else value for value in values]


def bind(values: Sequence[Any], binders: Mapping[type, Callable[[Any], Any]]) -> list[Any]:
    """The values as a driver takes them; `binders` convert the types that need it."""
    return [binders[type(value)](value) if type(value) in binders else value for value in values]


# --- SQL text -------------------------------------------------------------------------------


class SqliteStatement(NamedTuple):
    """`order`: for each `?` the place of its value; None if there is one for each value, in the same order."""

    sql: str
    order: tuple[int, ...] | None

    def arrange(self, values: Sequence[Any]) -> Sequence[Any]:
        return values if self.order is None else [values[place] for place in self.order]


@lru_cache(maxsize=1024)
def translate_statement(sql: str) -> SqliteStatement:
    """The statement in SQLite's spelling: a list is a JSON text, and there are no row locks."""
    listed = _ANY.sub(r"IN (SELECT value FROM json_each($\1))", _LOCK.sub("", sql))
    order = tuple(int(number) - 1 for number in _VALUE.findall(listed))
    is_plain = order == tuple(range(len(order)))
    return SqliteStatement(_VALUE.sub("?", listed), None if is_plain else order)


async def insert(transaction: Transaction, table: str, *rows: dict[str, Any]) -> None:
    """Insert rows with the same columns in one statement, which may be deferred."""
    values = [value for row in rows for value in row.values()]
    await transaction.defer(_build_insert(table, tuple(rows[0]), len(rows)), *values)


async def insert_new(transaction: Transaction, table: str, row: dict[str, Any]) -> bool:
    """Insert a row, unless there is one with its key, also one of another transaction that is just being committed."""
    statement = f"{_build_insert(table, tuple(row), 1)} ON CONFLICT DO NOTHING"
    return await transaction.run(statement, *row.values()) > 0


async def update(transaction: Transaction, table: str, changes: dict[str, Any], /, **key: Any) -> None:
    """Update the rows with this key, in a statement that may be deferred."""
    await transaction.defer(_build_update(table, tuple(changes), tuple(key)), *changes.values(), *key.values())


async def try_update(transaction: Transaction, table: str, changes: dict[str, Any], /, **key: Any) -> int:
    """Update the rows with this key; returns how many there were."""
    return await transaction.run(_build_update(table, tuple(changes), tuple(key)), *changes.values(), *key.values())


async def upsert(transaction: Transaction, table: str, values: dict[str, Any], /, **key: Any) -> None:
    """Insert the row with this key, or give it these values if it exists. `key` is unique in the table."""
    await transaction.defer(_build_upsert(table, tuple(values), tuple(key)), *values.values(), *key.values())


@lru_cache(maxsize=512)
def _build_insert(table: str, columns: tuple[str, ...], count: int) -> str:
    width = len(columns)
    rows = (", ".join(f"${row * width + n}" for n in range(1, width + 1)) for row in range(count))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join(f'({row})' for row in rows)}"


@lru_cache(maxsize=512)
def _build_update(table: str, columns: tuple[str, ...], key: tuple[str, ...]) -> str:
    numbered = [f"{name} = ${n}" for n, name in enumerate((*columns, *key), 1)]
    changes, matches = numbered[: len(columns)], numbered[len(columns) :]
    return f"UPDATE {table} SET {', '.join(changes)} WHERE {' AND '.join(matches)}"


@lru_cache(maxsize=512)
def _build_upsert(table: str, columns: tuple[str, ...], key: tuple[str, ...]) -> str:
    changes = ", ".join(f"{name} = excluded.{name}" for name in columns)
    return f"{_build_insert(table, (*columns, *key), 1)} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"


# --- who owns an open database -----------------------------------------------------------------


class Owner:
    """The process and the event loop that opened a database: nobody else can use it.

    Its threads and connections do not exist in a forked child, where a caller would wait for ever. In another event
    loop a commit would wake readers and workers from a thread that is not theirs. Both are mistakes of the program, and
    each gets an error that names the remedy.

    The owner is known from the first use on: a database may be created before its loop runs.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Raises `StoreFailed` in another process or event loop."""
        if os.getpid() != self._process:
            raise StoreFailed(
                f"{self._where} was opened before this process was forked. Open it again in this process."
            )
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if loop is not self._loop:
            raise StoreFailed(
                f"{self._where} was opened in another event loop. Use it in that loop only "
                "(asyncio.run_coroutine_threadsafe), or open it again in this one with worker=False."
            )


def make_closed(where: str) -> StoreFailed:
    """The error for a database that was closed."""
    return StoreFailed(f"{where} is closed. Use it inside its `async with` block, or open it again.")
