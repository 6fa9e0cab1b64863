"""The databases of tests/databases.py, a fleet of worker processes on one of them, and the test's own way in.

`app` answers nothing (`worker=False`): it sends and reads, as a server would that has its workers elsewhere.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.faults.fleet import Fleet, open_fleet

import indelible


@pytest.fixture
async def fleet(database: str, engine: AsyncEngine, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with open_fleet(database, engine, tmp_path) as opened:
        yield opened


@pytest.fixture
async def app(database: str) -> AsyncIterator[indelible.App]:
    async with indelible.open(database, worker=False) as opened:
        yield opened
