"""Column types that behave the same on SQLite and PostgreSQL.

* `Id`: one of our ids (ids.py); `Word`: one of a fixed list of words. On PostgreSQL both have the
  collation "C", so that their order is the order of the bytes on every server, and no index on them breaks
  when the server's locale library is upgraded. A foreign id that a database would reject is repaired, and
  then matches no row.
* `UtcTime`: an aware datetime goes in, an aware datetime in UTC comes out. PostgreSQL has `timestamptz`.
  SQLite has no such type, so it gets text of fixed width, `2026-11-15T09:59:32.120000Z`: it sorts by time, and
  both SQLite's date functions and people can read it.
* `Json`: bytes of UTF-8 JSON. Not a JSON type, because PostgreSQL rejects U+0000 in `jsonb` and in `text`,
  and everything that a model or a person writes must be stored (R6).
* `Label`: text that is shown, searched or compared, but never quoted: titles, names of models and
  tools, providers' ids. Characters that a database cannot hold become U+FFFD, so that no label can make
  a write fail.

Must stay true (tests/store/test_types.py): what goes in comes out, the order of times and ids is kept, and
no text is refused. The stored form may not change without a migration.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from sqlalchemy import DateTime, Dialect, LargeBinary, Text, TypeDecorator
from sqlalchemy.types import TypeEngine

from indelible.store.database.transaction import clean_label, format_time, to_utc

Json: Final = LargeBinary()


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
