"""SQLite for an engine of SQLAlchemy without a thread: each statement is carried out where the event loop runs.

aiosqlite hands every cursor, statement, fetch and commit to a thread and waits for it. Tests look at rows so often that
this was a third of the time of the store's suite. Here the calls of aiosqlite (as far as SQLAlchemy's dialect makes
them) are answered at once, which blocks the loop for microseconds. Only the write lock may be held by somebody for
long, perhaps by a task of the same loop: if it is not free, it is waited for in a thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any, Self

BUSY_S = 5.0


class InlineCursor:
    def __init__(self, connection: InlineConnection) -> None:
        self._connection = connection
        self._cursor = connection._connection.cursor()

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, statement: str, parameters: Any = ()) -> None:
        if statement == "BEGIN IMMEDIATE":
            await self._connection.take_write_lock()
        else:
            self._cursor.execute(statement, parameters)

    async def executemany(self, statement: str, parameters: Any) -> None:
        self._cursor.executemany(statement, parameters)

    async def fetchall(self) -> list[Any]:
        return self._cursor.fetchall()

    async def close(self) -> None:
        self._cursor.close()

    @property
    def description(self) -> Any:
        return self._cursor.description

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    @property
    def lastrowid(self) -> int | None:
        return self._cursor.lastrowid


class InlineConnection:
    """Commits by itself, except between BEGIN and COMMIT."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        self.isolation_level = None

    def cursor(self) -> InlineCursor:
        return InlineCursor(self)

    async def take_write_lock(self) -> None:
        try:
            self._set_patience(0)
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            self._set_patience(BUSY_S)
            await asyncio.shield(asyncio.to_thread(self._connection.execute, "BEGIN IMMEDIATE"))
        finally:
            self._set_patience(BUSY_S)

    def _set_patience(self, seconds: float) -> None:
        self._connection.execute(f"PRAGMA busy_timeout={round(seconds * 1000)}").close()

    async def create_function(self, name: str, count: int, function: Callable[..., Any], **options: Any) -> None:
        self._connection.create_function(name, count, function, **options)

    async def commit(self) -> None:
        self._connection.commit()

    async def rollback(self) -> None:
        self._connection.rollback()

    async def close(self) -> None:
        self._connection.close()

    def stop(self) -> None:
        self._connection.close()


async def connect_inline(path: str) -> InlineConnection:
    return InlineConnection(path)
