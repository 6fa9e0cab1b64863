"""A provider with the model of a proof behind it, in the process of the test, and orders to servers that ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from indelible.prove.provider import ProofProvider
from indelible.prove.servers import Orders


@pytest.fixture
async def provider() -> AsyncIterator[ProofProvider]:
    async with ProofProvider() as provider:
        yield provider


@pytest.fixture
def orders(provider: ProofProvider, tmp_path: Path) -> Orders:
    """To a server on a new SQLite file. Whoever names no model gets the first one of the provider."""
    return provider.instruct(Orders(database=str(tmp_path / "chats.db"), directory=tmp_path))
