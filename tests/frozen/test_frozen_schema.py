"""A new database has the schema that is recorded, on both databases (tests/frozen/schema.*.txt)."""

from __future__ import annotations

from tests.frozen.recording import compare
from tests.frozen.schema import describe_database

from indelible.store.database.migrate import migrate


async def test_a_new_database_has_the_schema_that_is_recorded(new_database: str) -> None:
    await migrate(new_database)

    kind = "postgresql" if new_database.startswith("postgresql") else "sqlite"
    compare(f"schema.{kind}.txt", await describe_database(new_database))
