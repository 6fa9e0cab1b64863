"""Column types that behave the same on SQLite and PostgreSQL.

* `Id`: one of ours (ids.py); `Word`: one of a fixed list of our own words. On PostgreSQL both have the
  collation "C", so that their order is the order of the bytes on every server, and no index on them breaks
  when the server's locale library is upgraded. An id from outside that a database would refuse is repaired, and
  then matches no row.
* `UtcTime`: an aware datetime goes in, an aware datetime in UTC comes out. PostgreSQL has `timestamptz`.
  SQLite has no time, so it gets text of fixed width, `2026-11-15T09:59:32.120000Z`: it sorts as the time
  does, SQLite's own date functions read it, and so do people.
* `Json`: bytes of UTF-8 JSON. Not a JSON type, because PostgreSQL refuses U+0000 in `jsonb` and in `text`,
  and everything that a model or a person writes must be stored (R6).
* `Label`: text that is shown, searched or compared, but quoted to nobody: titles, names of models and
  tools, ids that providers gave. What a database cannot hold becomes U+FFFD, so that none of it can make
  a write fail.

Must stay true (tests/store/test_types.py): what goes in comes out, the order of times and ids is kept, and
no text is refused. What is stored may not change without a migration.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import DateTime, Dialect, LargeBinary, Text, TypeDecorator
from sqlalchemy.types import TypeEngine

from indelible.content.unicode import clean_text

Json: Final = LargeBinary()


def format_time(moment: datetime) -> str:
    """A time as SQLite stores it, for code that calls the driver directly."""
    return f"{to_utc(moment).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def to_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone.")
    return moment.astimezone(UTC)


def clean_label(value: str) -> str:
    """As a `Label` column keeps it."""
    return clean_text(value).replace("\0", "\ufffd")


class Name(TypeDecorator[str]):
    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002  (SQLAlchemy's)
        return None if value is None else clean_label(value)


Id: Final = Name().with_variant(Name(collation="C"), "postgresql")
Word: Final = Id


class UtcTime(TypeDecorator[datetime]):
    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        return format_time(value) if dialect.name == "sqlite" else to_utc(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return datetime.fromisoformat(value) if dialect.name == "sqlite" else to_utc(value)


class Label(TypeDecorator[str]):
    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002  (SQLAlchemy's)
        return None if value is None else clean_label(value)
