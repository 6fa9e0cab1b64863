"""PostgreSQL itself goes away under two workers and comes back, once in good order and once as in a power cut.

Nobody is killed here: workers, and the readers of another process, wait for the database and go on. What a client was
told is safe before it went away is answered after it came back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.faults.checked_reader import CheckedReader, reading, wait_for_words
from tests.log_records import DATABASE_AWAY
from tests.store.test_broken_databases import crash
from tests.support.counting_model import ask_to_count
from tests.support.engine import open_engine
from tests.support.process_harness import SHORT_LEASES, SLOWLY, ProcessHarness

import indelible
from indelible.errors import StoreFailed
from indelible.store.database.migrate import migrate

pytestmark = pytest.mark.may_log(*DATABASE_AWAY)

CHATS = 3


@pytest.fixture
async def own_engine(own_server: Any) -> AsyncIterator[AsyncEngine]:
    address = f"postgresql://postgres@/postgres?host={own_server.pgdata}"
    await migrate(address)
    engine = await open_engine(address)
    yield engine
    await engine.dispose()


async def test_chats_go_on_when_the_database_comes_back(
    own_server: Any, own_engine: AsyncEngine, tmp_path: Path
) -> None:
    address = f"postgresql://postgres@/postgres?host={own_server.pgdata}"
    async with ProcessHarness(address, tmp_path).opened() as harness, indelible.open(address, worker=False) as app:
        await harness.start_worker(**SHORT_LEASES)
        await harness.start_worker(**SHORT_LEASES)
        readers = [CheckedReader(await app.create_chat(SLOWLY)) for _ in range(CHATS)]
        async with reading(*readers):
            for go_away in (own_server.stop, lambda: crash(own_server)):
                await wait_for_words(readers, 5)
                for reader in readers:
                    await reader.chat.post(SLOWLY)
                await asyncio.to_thread(go_away)
                with pytest.raises(StoreFailed):
                    await readers[0].chat.post(ask_to_count(999))
                await asyncio.to_thread(own_server.ensure_postgres_running)
            harness.finish_replies()
            for reader in readers:
                await reader.wait_for_ends(3)
        await harness.engine.dispose()  # its connections were cut with everybody's
        for reader in readers:
            stored = await reader.check(harness.engine)
            assert [turn.outcome for turn in stored.turns] == ["complete"] * 3
        assert all(process.is_alive() for process in harness.workers)
