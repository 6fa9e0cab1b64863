"""The tables, for tests that read and write rows by hand through an engine of SQLAlchemy (engine.py).

They are read from a SQLite database in memory that the files of the schema built, so nothing here repeats a column or a
rule. SQLite does not know which columns are times or words of the search index; the files say so.

What goes into a column has the form in which the store writes it: a time is aware, text is what a database can hold.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    BLOB,
    INTEGER,
    TEXT,
    BigInteger,
    DateTime,
    Dialect,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    create_engine,
    event,
)
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.types import TypeEngine

from indelible.store.database.migrate import VERSION_TABLE, read_scripts, translate_for_sqlite
from indelible.store.database.transaction import clean_label, format_time, to_utc


class Time(TypeDecorator[datetime]):
    """An aware datetime, in UTC; on SQLite text of fixed width."""

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
    """Text without the characters that a database cannot hold."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else clean_label(value)


def _read_tables() -> MetaData:
    found = MetaData()
    times, words = (
        {name for script in read_scripts().values() for name in re.findall(rf"(\w+) {kind}", script)}
        for kind in ("TIMESTAMPTZ", "TSVECTOR")
    )

    def name_type(_inspector: Any, _table: Any, column: Any) -> None:
        if column["name"] in times:
            column["type"] = Time()
        elif column["name"] in words:
            column["type"] = Text().with_variant(TSVECTOR(), "postgresql")
        elif isinstance(column["type"], INTEGER):
            column["type"] = BigInteger()
        elif isinstance(column["type"], TEXT):
            column["type"] = Label()
        elif isinstance(column["type"], BLOB):
            column["type"] = LargeBinary()

    event.listen(found, "column_reflect", name_type)
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        for script in read_scripts().values():
            for statement in translate_for_sqlite(script):
                connection.exec_driver_sql(statement)
        found.reflect(connection, only=lambda name, _: name != VERSION_TABLE and not name.startswith("search_index"))
    engine.dispose()
    return found


metadata: Final = _read_tables()


def _get(name: str) -> Table:
    return metadata.tables[name]


attempts: Final = _get("attempts")
chat_labels: Final = _get("chat_labels")
chats: Final = _get("chats")
debug_attempts: Final = _get("debug_attempts")
debug_runs: Final = _get("debug_runs")
debug_steps: Final = _get("debug_steps")
drafts: Final = _get("drafts")
ephemeral_chats: Final = _get("ephemeral_chats")
events: Final = _get("events")
file_chunks: Final = _get("file_chunks")
file_uses: Final = _get("file_uses")
files: Final = _get("files")
idempotency_keys: Final = _get("idempotency_keys")
journal: Final = _get("journal")
messages: Final = _get("messages")
new_drafts: Final = _get("new_drafts")
queue: Final = _get("queue")
search_entries: Final = _get("search_entries")
sessions: Final = _get("sessions")
shares: Final = _get("shares")
tokens: Final = _get("tokens")
tool_runs: Final = _get("tool_runs")
turns: Final = _get("turns")
usage_days: Final = _get("usage_days")
users: Final = _get("users")
workers: Final = _get("workers")
