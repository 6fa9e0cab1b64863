"""Counting what a database is asked: every statement that the store sends, and its transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.engine import OpenDatabase

_OF_TRANSACTIONS = ("BEGIN", "COMMIT", "ROLLBACK", "SET ", "PRAGMA")


@contextmanager
def counted(database: OpenDatabase) -> Iterator[list[str]]:
    """The statements of this database, as they are sent, without BEGIN and the like, until the end of the block."""
    sent: list[str] = []

    def note(statement: str) -> None:
        if not is_of_transaction(statement):
            sent.append(statement)

    with _observe(database, note):
        yield sent


@contextmanager
def observed(database: OpenDatabase) -> Iterator[list[str]]:
    """All that is sent, BEGIN and COMMIT included."""
    sent: list[str] = []
    with _observe(database, sent.append):
        yield sent


def is_of_transaction(statement: str) -> bool:
    return statement.lstrip().upper().startswith(_OF_TRANSACTIONS)


@contextmanager
def _observe(database: OpenDatabase, note: Callable[[str], object]) -> Iterator[None]:
    database.observe = note
    try:
        yield
    finally:
        database.observe = None
