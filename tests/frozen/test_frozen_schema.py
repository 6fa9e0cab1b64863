"""A new database has the schema that is recorded, on both databases (tests/frozen/schema.*.txt)."""

from __future__ import annotations

from pathlib import Path

from tests.frozen.recording import compare
from tests.frozen.schema import describe_postgres, describe_sqlite

from indelible.store.database.migrate import migrate


async def test_a_new_database_has_the_schema_that_is_recorded(new_database: str) -> None:
    await migrate(new_database)

    if new_database.startswith("postgresql"):
        compare("schema.postgresql.txt", await describe_postgres(new_database))
    else:
        compare("schema.sqlite.txt", describe_sqlite(Path(new_database)))
