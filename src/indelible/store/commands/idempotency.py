"""Idempotent requests: the same key gets the same response, and the work is done once (rule 3.5).

The key's row is written first, in the transaction that does the work and stores the response. So a second
request with the key waits on that row until the first has committed, and then finds the response; if the
first fails, its key is rolled back with everything else, and the second does the work. A key never exists
without its response, nor work without its key.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from indelible.errors import Invalid
from indelible.store.database.transaction import Transaction, clean_label, update

KEPT: Final = timedelta(hours=24)
MAX_KEY_LENGTH: Final = 255


class Request(NamedTuple):
    """The user, the key and the request: `route` and `body_hash` must be the same in a repeated request."""

    user_id: str
    key: str
    route: str
    body_hash: bytes


class StoredResponse(NamedTuple):
    status: int
    body: bytes


class RequestRepeated(Exception):
    """The request was made before: nothing is done again, and `response` is what it got."""

    def __init__(self, response: StoredResponse) -> None:
        super().__init__("The request was made before.")
        self.response = response


_CLAIM: Final = """
INSERT INTO idempotency_keys (user_id, key, route, body_hash, status, body, expires_at)
VALUES ($1, $2, $3, $4, 0, $5, $6) ON CONFLICT (user_id, key) DO NOTHING
"""
_FIND: Final = "SELECT route, body_hash, status, body FROM idempotency_keys WHERE user_id = $1 AND key = $2"


async def claim(transaction: Transaction, request: Request, now: datetime) -> StoredResponse | None:
    """Claim the key. Returns the response to an earlier request with it; None: the caller must now `settle` the key."""
    _check_key(request)
    if await transaction.run(_CLAIM, *request, b"", now + KEPT):
        return None
    return await find_response(transaction, request)


async def find_response(transaction: Transaction, request: Request) -> StoredResponse | None:
    """The response that this request got before, if it was made before. Nothing is claimed."""
    _check_key(request)
    row = await transaction.one(_FIND, request.user_id, request.key)
    if row is None:
        return None
    if (row["route"], row["body_hash"]) != (clean_label(request.route), request.body_hash):
        raise Invalid("This idempotency key was used for another request. Use a new key for every request.")
    return StoredResponse(row["status"], row["body"])


def _check_key(request: Request) -> None:
    if not 0 < len(request.key) <= MAX_KEY_LENGTH:
        raise Invalid(f"An idempotency key must have 1 to {MAX_KEY_LENGTH} characters.")


async def settle(transaction: Transaction, request: Request, answer: StoredResponse, chat_id: str | None) -> None:
    """Store the response. It is deleted together with the chat it describes (P10)."""
    values = {**answer._asdict(), "chat_id": chat_id}
    await update(transaction, "idempotency_keys", values, user_id=request.user_id, key=request.key)


async def forget_expired(transaction: Transaction, now: datetime) -> None:
    await transaction.run("DELETE FROM idempotency_keys WHERE expires_at <= $1", now)
