"""What the compatible APIs ask about a turn: what it answers, how it does, and what its request was. One statement.

A turn is named by its chat and an event: the last one of the transaction that began it, or resumed it with results
(service/turns.py). What came before that event says what it answers, what comes after says how it ended: at the first
status with an end, or at the first wait for results. Parts of replies are not read, nor is any message's content.

`turns.request` has what an API repeats about a request, with the event at which it was written; a turn that waited for
results has one for each time. It belongs to the chat's owner: no guest reads a turn, and no copy and no export has one.

Must stay true (tests/store/test_turn_facts.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final

import msgspec

from indelible.errors import ChatNotFound, NotFound
from indelible.ids import is_id
from indelible.store.database.transaction import Dialect, Row, Transaction, to_time
from indelible.store.queries.history import load_ancestors
from indelible.store.queries.liveness import bind_ago, build_status

_NEAR: Final = 16
"""Between the message that starts a turn and the last event of its transaction stand a title and a status."""
_EVENTS_AT_ONCE: Final = 200


class TurnFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A turn from the event that names it on, and its chat now.

    `asked_id` is the last message that came with the request, at `asked_at`; `model` is to answer it. `outcome` is
    `waiting` if the turn waits, or waited, for results of the calls `awaited`; None while it runs. `last_id` is its
    last reply, result or notice that people see, `end_id` the last message of the active path. `status` is the chat's,
    as people see it, and `client_tools` are the names of its own tools, which its client runs.
    """

    owner_id: str
    status: str
    has_queue: bool
    end_id: str | None
    asked_id: str
    asked_at: datetime
    model: str | None = None
    turn_id: str | None = None
    request: Any = None
    outcome: str | None = None
    last_id: str | None = None
    awaited: list[dict[str, Any]] = []
    client_tools: frozenset[str] = frozenset()


class _Named(msgspec.Struct):
    name: str


@cache
def _build_facts(dialect: Dialect) -> str:
    return f"""
        SELECT c.owner_id, c.tools, {build_status(dialect, 4)} AS shown_status,
            c.head_id, h.visibility AS head_visibility,
            EXISTS (SELECT id FROM queue WHERE chat_id = $1) AS has_queue, e.seq, e.kind, e.ref, e.payload,
            m.role, m.visibility, m.model, m.created_at, t.request
        FROM chats AS c
        LEFT JOIN messages AS h ON h.chat_id = c.id AND h.id = c.head_id
        LEFT JOIN (
            SELECT seq, kind, ref, payload FROM events
            WHERE chat_id = $1 AND seq > $2 AND kind IN ('message', 'status', 'action') ORDER BY seq LIMIT $3
        ) AS e ON TRUE
        LEFT JOIN messages AS m ON m.chat_id = c.id AND m.id = e.ref AND e.kind = 'message'
        LEFT JOIN turns AS t ON t.chat_id = c.id AND t.id = e.ref AND e.kind = 'status'
        WHERE c.id = $1 ORDER BY e.seq
        """


async def load_turn_facts(transaction: Transaction, chat_id: str, seq: int, *, lease_timeout_s: float) -> TurnFacts:
    """Raises `NotFound` if there is no such chat, or nothing was said in it up to this event."""
    sql, ago = _build_facts(transaction.dialect), bind_ago(transaction.dialect, lease_timeout_s)
    rows: list[Row] = []
    after = max(0, seq - _NEAR)
    while not rows or (rows[-1]["seq"] is not None and len(rows) % _EVENTS_AT_ONCE == 0 and not _has_end(rows, seq)):
        found = await transaction.all(sql, chat_id, after, _EVENTS_AT_ONCE, ago) if is_id(chat_id) else []
        if not found:
            raise ChatNotFound
        if found[0]["seq"] is None and rows:
            break
        rows += found
        after = rows[-1]["seq"]
    return await _describe(transaction, chat_id, seq, rows)


def _has_end(rows: Sequence[Row], seq: int) -> bool:
    return any(row["seq"] > seq and (row["kind"] == "action" or _find_end(row) is not None) for row in rows)


def _find_end(row: Row) -> str | None:
    """The outcome of the turn that ended with this status."""
    ended = msgspec.json.decode(row["payload"]).get("ended") if row["kind"] == "status" else None
    return None if ended is None else ended["outcome"]


async def _describe(transaction: Transaction, chat_id: str, seq: int, rows: Sequence[Row]) -> TurnFacts:
    chat = rows[0]
    above = [row for row in rows if row["seq"] is not None and row["seq"] <= seq]
    asked = [row for row in above if row["kind"] == "message" and row["visibility"] != "model"]
    begun = [row for row in above if row["kind"] == "status"]
    if not asked:
        raise NotFound("Response not found.")
    outcome: str | None = None
    last_id: str | None = None
    awaited: list[dict[str, Any]] = []
    for row in rows[len(above) :]:
        if row["kind"] == "message":
            is_of_turn = row["visibility"] != "model" and row["role"] != "user"  # a queued one stands before the end
            last_id = row["ref"] if is_of_turn else last_id
        elif row["kind"] == "action":
            outcome, awaited = "waiting", msgspec.json.decode(row["payload"])["calls"]
        else:
            outcome = _find_end(row)
        if outcome is not None:
            break
    return TurnFacts(
        owner_id=chat["owner_id"],
        status=chat["shown_status"],
        has_queue=bool(chat["has_queue"]),
        end_id=await _find_shown(transaction, chat_id, chat),
        asked_id=asked[-1]["ref"],
        asked_at=to_time(asked[-1]["created_at"]),
        model=asked[-1]["model"] or None,
        turn_id=begun[-1]["ref"] if begun else None,
        request=_find_request(begun[-1]["request"], seq) if begun else None,
        outcome=outcome,
        last_id=last_id,
        awaited=awaited,
        client_tools=frozenset(tool.name for tool in msgspec.json.decode(chat["tools"] or b"[]", type=list[_Named])),
    )


def _find_request(kept: bytes | None, seq: int) -> Any:
    requests = [] if kept is None else msgspec.json.decode(kept)
    return next((request for at, request in reversed(requests) if at <= seq), None)


async def _find_shown(transaction: Transaction, chat_id: str, chat: Row) -> str | None:
    """The end of the active path, as people see it."""
    head_id: str | None = chat["head_id"]
    if head_id is None or chat["head_visibility"] != "model":
        return head_id
    async for row in load_ancestors(transaction, chat_id, head_id):
        if row["visibility"] != "model":
            return str(row["id"])
    return None
