"""Constraints and indexes that several tables have: a column with a fixed list of words, an index on some of the rows.

The words come from the type that the code uses (enumerations.py, machine/), so that the database and the code cannot
drift apart. The condition of an index is given once, for both databases.

Must stay true (tests/store/test_schema.py, tests/store/test_migrations.py): a column holds no other word; the
migrations build exactly these. chats.py, accounts.py, files.py and lists.py use them.
"""

from __future__ import annotations

from typing import Any, get_args

from sqlalchemy import CheckConstraint, Column, Index, text


def check_one_of(column: str, values: Any) -> CheckConstraint:
    """`column` is one of the values of a Literal or an enumeration, or is null."""
    listed = ", ".join(f"'{value}'" for value in get_args(values) or list(values))
    return CheckConstraint(f'"{column}" IN ({listed})', name=column)


def index_where(name: str, *columns: str | Column[Any], where: str, unique: bool = False) -> Index:
    """An index on the rows that meet the condition."""
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))
