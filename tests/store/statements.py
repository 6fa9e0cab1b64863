"""Counting what a database is asked: every statement that an engine sends, without BEGIN and the like."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

_OF_TRANSACTIONS = ("BEGIN", "COMMIT", "ROLLBACK", "SET ", "PRAGMA")


@contextmanager
def counted(engine: AsyncEngine) -> Iterator[list[str]]:
    """The statements of this engine, as they are sent, until the end of the block."""
    sent: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not statement.lstrip().upper().startswith(_OF_TRANSACTIONS):
            sent.append(statement)

    event.listen(engine.sync_engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", note)
