"""The results of commands, made from what the store reports about them (`Outcome`).

Each function here describes one kind of write for its caller. `write_cursor` is in every result that starts or changes
something to read: a reader that begins there misses nothing that follows from the command.

Must stay true (tests/server/test_idempotency_over_http.py): a result depends on its outcome alone, because the one that
is stored with an idempotency key is made inside the transaction (idempotency.py).

api/shapes.py has the types, stop.py the result of a stop.
"""

from __future__ import annotations

from indelible.api.events import Position
from indelible.api.shapes import Accepted, CreatedChat, UpdatedChat
from indelible.feed import Cursors
from indelible.store.protocol import Outcome


def write_cursor(outcome: Outcome) -> str:
    """The cursor right after a command: everything that follows from it can be read from there."""
    return Cursors(outcome.chat_id).write(Position(seq=outcome.seq, attempt=outcome.live_id))


def describe_accepted(outcome: Outcome) -> Accepted:
    """The sent message may be queued while an older queued one enters history: then it is not `message`."""
    sent = next((message.id for message in reversed(outcome.messages) if message.role == "user"), None)
    return Accepted(
        status=str(outcome.status),
        turn=outcome.turn_id,
        cursor=write_cursor(outcome),
        message=sent if outcome.queued_id is None else None,
        queued=outcome.queued_id,
    )


def describe_updated(outcome: Outcome) -> UpdatedChat:
    chat = outcome.summary
    assert chat is not None
    return UpdatedChat(
        id=chat.id,
        status=chat.status,
        cursor=write_cursor(outcome),
        title=chat.title,
        model=chat.model,
        labels=chat.labels,
        pinned=chat.pinned,
        archived=chat.archived,
        debug=chat.debug,
    )


def describe_copy(outcome: Outcome) -> CreatedChat:
    chat = outcome.summary
    assert chat is not None
    return CreatedChat(
        id=chat.id,
        status=chat.status,
        turn=outcome.turn_id,
        cursor=write_cursor(outcome),
        title=chat.title,
        model=chat.model,
    )


def describe_nothing(_outcome: Outcome) -> None:
    """The result of a write that has none."""
