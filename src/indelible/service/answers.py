"""What the answers to commands have in common: the cursor after one, and how an answer is stored with its key."""

from __future__ import annotations

from collections.abc import Callable

from indelible.content import encode
from indelible.feed import Cursors
from indelible.machine.events import Position
from indelible.service.results import CreatedChat
from indelible.store.commands.idempotency import StoredResponse
from indelible.store.protocol import Outcome


def store_answer(answer: Callable[[Outcome], object]) -> Callable[[Outcome], StoredResponse]:
    """The response as it is stored with a key. The route knows the status."""
    return lambda outcome: StoredResponse(200, encode(answer(outcome)))


def write_cursor(outcome: Outcome) -> str:
    """The cursor right after a command: everything that follows from it can be read from there."""
    return Cursors(outcome.chat_id).write(Position(seq=outcome.seq, attempt=outcome.live_id))


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
