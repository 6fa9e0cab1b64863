"""The databases of tests/databases.py, a process harness on one of them, and the test's own way in.

`app` answers nothing (`worker=False`): it sends and reads, as a server would that has its workers elsewhere.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.process_harness import ProcessHarness

import indelible


@pytest.fixture
async def harness(database: str, tmp_path: Path) -> AsyncIterator[ProcessHarness]:
    async with ProcessHarness(database, tmp_path).opened() as opened:
        yield opened


@pytest.fixture
async def app(database: str) -> AsyncIterator[indelible.App]:
    async with indelible.open(database, worker=False) as opened:
        yield opened
