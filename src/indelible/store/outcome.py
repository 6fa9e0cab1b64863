"""What a command answers, and answering it once: the same idempotency key gets the same response (rule 3.5).

The key's row is written first, in the transaction that does the work and stores the response. So a second request with
the key waits on that row until the first has committed, and then finds the response; if the first fails, its key is
rolled back with everything else, and the second does the work. A key never exists without its response, nor work
without its key.

Must stay true (tests/store/test_idempotency.py): what `IdempotencyKey` promises, on both databases.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from indelible.api.shapes import ChatSummary
from indelible.content import Message
from indelible.errors import Invalid
from indelible.machine.states import Status
from indelible.store.database.transaction import Transaction, Work, clean_label, update
from indelible.store.queries.changes import Additions
from indelible.store.queries.open_turn import AttemptName, Begun

KEPT: Final = timedelta(hours=24)
MAX_KEY_LENGTH: Final = 255
_CLAIM: Final = """
INSERT INTO idempotency_keys (user_id, key, route, body_hash, status, body, expires_at)
VALUES ($1, $2, $3, $4, 0, $5, $6) ON CONFLICT (user_id, key) DO NOTHING
"""
_FIND: Final = "SELECT route, body_hash, status, body FROM idempotency_keys WHERE user_id = $1 AND key = $2"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a command. `effective` is False if there was nothing to do; then nothing was written.

    One thing may still be written later: the usage of an attempt that another process ended (rule 1.8).

    `seq` is the chat's last event, and `live_id` the attempt open at that moment. `messages` entered history, in
    order; `steers` are those of them that a running turn must receive. `vacant_s` is set when the chat was acquired
    from a dead worker: the seconds since that worker's last heartbeat; `takeovers` is how often that happened in this
    turn, and `in_tool` whether a tool was running. `wakes_readers` is whether there are new events, or a new chat.
    `wakes_workers` is whether a worker has to act now: the chat is runnable and nobody holds it, or its holder has to
    stop, or has lost it. `summary` is the chat's metadata after an update, or that of a new copy. `at` is the time of
    the change, by the database's clock. `additions` are its events as readers get them; None: they have to be read.
    `begun`: a worker has the chat already. Everything else but `additions` is as of before that.
    """

    chat_id: str
    effective: bool
    status: Status | None
    seq: int
    epoch: int
    messages: list[Message] = []
    steers: list[Message] = []
    queued_id: str | None = None
    turn_id: str | None = None
    attempt: AttemptName | None = None
    live_id: str | None = None
    wakes_readers: bool = True
    wakes_workers: bool = True
    vacant_s: float | None = None
    summary: ChatSummary | None = None
    takeovers: int = 0
    in_tool: bool = False
    at: datetime | None = None
    begun: Begun | None = None
    additions: Additions | None = None


class ForkPoint(NamedTuple):
    """Where a copy of a chat ends, and the id of the copy."""

    message_id: str
    new_chat_id: str


class StoredResponse(NamedTuple):
    status: int
    body: bytes


class RequestRepeated(Exception):
    """The request was made before: nothing is done again, and `response` is what it got."""

    def __init__(self, response: StoredResponse) -> None:
        super().__init__("The request was made before.")
        self.response = response


def respond_nothing(_outcome: Outcome) -> StoredResponse:
    return StoredResponse(200, b"null")


class IdempotencyKey(NamedTuple):
    """A request that may be repeated: whose it is, its key, and what has to be the same in a repeated request.

    `body_hash` is empty until the body was read. `respond` makes the response that is stored with the key.

    * The write, its response and the key are one transaction.
    * A repeated request writes nothing and raises `RequestRepeated`, which has the response to the first.
    * A concurrent request with the same key waits for the first.
    * The same key with another body or route is `Invalid`. A refused write leaves no key behind.
    """

    user_id: str
    key: str
    route: str
    body_hash: bytes = b""
    respond: Callable[[Outcome], StoredResponse] = respond_nothing


async def perform_once(transaction: Transaction, key: IdempotencyKey, work: Work[Outcome]) -> Outcome:
    """Do the work and store its response, in the transaction that claims the key."""
    given = await claim(transaction, key, await transaction.now())
    if given is not None:
        raise RequestRepeated(given)
    outcome = await work(transaction)
    await settle(transaction, key, key.respond(outcome), outcome.chat_id if outcome.status is not None else None)
    return outcome


async def claim(transaction: Transaction, key: IdempotencyKey, now: datetime) -> StoredResponse | None:
    """Claim the key. Returns the response to an earlier request with it; None: the caller must now `settle` the key."""
    _check_key(key)
    if await transaction.run(_CLAIM, *key[:4], b"", now + KEPT):
        return None
    return await find_response(transaction, key)


async def find_response(transaction: Transaction, key: IdempotencyKey) -> StoredResponse | None:
    """The response that this request got before, if it was made before. Nothing is claimed."""
    _check_key(key)
    row = await transaction.one(_FIND, key.user_id, key.key)
    if row is None:
        return None
    if (row["route"], row["body_hash"]) != (clean_label(key.route), key.body_hash):
        raise Invalid("This idempotency key was used for another request. Use a new key for every request.")
    return StoredResponse(row["status"], row["body"])


def _check_key(key: IdempotencyKey) -> None:
    if not 0 < len(key.key) <= MAX_KEY_LENGTH:
        raise Invalid(f"An idempotency key must have 1 to {MAX_KEY_LENGTH} characters.")


async def settle(transaction: Transaction, key: IdempotencyKey, answer: StoredResponse, chat_id: str | None) -> None:
    """Store the response. It is deleted together with the chat it describes (P10)."""
    values = {**answer._asdict(), "chat_id": chat_id}
    await update(transaction, "idempotency_keys", values, user_id=key.user_id, key=key.key)


async def forget_expired(transaction: Transaction, now: datetime) -> None:
    await transaction.run("DELETE FROM idempotency_keys WHERE expires_at <= $1", now)
