"""The byte stores, and a store of files over each database."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import settle_in
from tests.support.engine import get_database

from indelible.files.bytes import DatabaseBytes
from indelible.files.store import FileStore
from indelible.store.database.transaction import Database


@pytest.fixture
async def opened(engine: AsyncEngine) -> Database:
    """A database with an owner."""
    await settle_in(engine)
    return get_database(engine)


@pytest.fixture
def files(opened: Database) -> FileStore:
    return FileStore(opened, [DatabaseBytes(opened)])
