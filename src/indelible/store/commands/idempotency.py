"""Requests that may be repeated: the same key gets the same answer, and the work is done once (SPEC 3.5).

The key's row is written first, in the transaction that does the work and stores its answer. So a second
request with the key waits at that row until the first has committed, and then finds the answer; and if the
first fails, its key is gone with everything else, and the second does the work. There is no time at which a
key exists without its answer, or work without its key.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from indelible.errors import Invalid
from indelible.store.database.dialect import upsert
from indelible.store.database.tables import idempotency_keys
from indelible.store.database.types import clean_label

KEPT: Final = timedelta(hours=24)
MAX_KEY_LENGTH: Final = 255


class Request(NamedTuple):
    """Who asks, under which key, for what: `route` and `body_hash` must be the same when it is repeated."""

    user_id: str
    key: str
    route: str
    body_hash: bytes


class StoredResponse(NamedTuple):
    status: int
    body: bytes


async def claim(connection: AsyncConnection, request: Request, now: datetime) -> StoredResponse | None:
    """The answer that this request was given before, or None: then its key is ours to settle."""
    if not 0 < len(request.key) <= MAX_KEY_LENGTH:
        raise Invalid(f"An idempotency key must have 1 to {MAX_KEY_LENGTH} characters.")
    request = request._replace(key=clean_label(request.key), route=clean_label(request.route))
    values = {**request._asdict(), "status": 0, "body": b"", "expires_at": now + KEPT}
    claimed = await connection.execute(
        upsert(connection.dialect.name, idempotency_keys).values(**values).on_conflict_do_nothing()
    )
    if claimed.rowcount:
        return None
    row = (await connection.execute(select(idempotency_keys).where(_is_key_of(request)))).one()
    if (row.route, row.body_hash) != (request.route, request.body_hash):
        raise Invalid("This idempotency key was used for another request. Use a new key for every request.")
    return StoredResponse(row.status, row.body)


async def settle(connection: AsyncConnection, request: Request, answer: StoredResponse, chat_id: str | None) -> None:
    """Keep the answer. It goes with the chat that it tells of (P10)."""
    values = {**answer._asdict(), "chat_id": chat_id}
    await connection.execute(update(idempotency_keys).where(_is_key_of(request)).values(**values))


async def forget_expired(connection: AsyncConnection, now: datetime) -> None:
    await connection.execute(delete(idempotency_keys).where(idempotency_keys.c.expires_at <= now))


def _is_key_of(request: Request) -> Any:
    return (idempotency_keys.c.user_id == request.user_id) & (idempotency_keys.c.key == request.key)
