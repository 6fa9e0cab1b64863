"""A turn that begins in the transaction of the command that asked for it: message, lease, work and first attempt.

A process that accepts a message may have a worker with room. It then keeps a `Place` for the turn, and the command
takes it to its transaction. Where the command has left the chat running and nobody holds it, the chat is acquired
there, its work is read, and the first attempt is opened: what would otherwise be four more transactions. Each is the
decision that the machine makes for that command by itself, about the facts that are known here anyway, and the chat's
row is written once, at the end. So the rows and the events are those that the commands leave one after the other
(tests/store/test_begin.py).

It goes as far as it can, and what is left is done by the worker, by a hint or under its lease:

    only the message    the user has too many running chats, or somebody holds the chat
    and the lease       the conversation is long: reading it would hold up the writer of SQLite
    and the work        the worker has to do something first: read a file, shorten the conversation, refuse the model
    and the attempt     the model can be asked at once

The outcome is that of the user's command, as of before all this: its response says where the turn begins, and that is
before its first attempt.

Must stay true: nothing here can make the user's command fail; a place is settled once, whatever becomes of the
transaction (tests/worker/test_at_once.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from msgspec import DecodeError
from msgspec.structs import replace

from indelible.errors import NotAllowed
from indelible.machine import Snapshot, commands, decide
from indelible.machine.effects import Effect
from indelible.machine.states import OpenTurn, QueuedRow, Status
from indelible.store.commands.change import ChatChange
from indelible.store.database.transaction import Row
from indelible.store.outcome import Outcome
from indelible.store.payloads import AttemptStart
from indelible.store.queries.open_turn import Begun, OpenWork, load_begun_turn, load_begun_work

_MOST_EVENTS: Final = 1000
"""A chat with more events is not looked at: it has too many messages, or nearly."""
_MOST_MESSAGES: Final = 100
_MOST_BYTES: Final = 256 * 1024


class Place(Protocol):
    """What a worker keeps free for a turn. One of the last three methods is called when its transaction has ended."""

    @property
    def worker_id(self) -> str: ...

    @property
    def per_user(self) -> int:
        """How many chats the user may have running, this one included."""

    def plan(self, work: OpenWork) -> AttemptStart | None:
        """How the first attempt is opened; None: the worker does that itself.

        It is called within the transaction, on SQLite in the writer's thread, and may be called again.
        """

    def fill(self, begun: Begun) -> None:
        """The transaction is committed, and the chat is the worker's."""

    def give_back(self) -> None:
        """The worker got nothing. After `fill` it does nothing."""

    def doubt(self) -> None:
        """Nobody knows whether the transaction was committed. After `fill` it does nothing."""


Reserve = Callable[[], Place | None]
"""Asked right before the transaction. It does not wait."""

Apply = Callable[[ChatChange, Sequence[Effect]], Awaitable[None]]


async def begin_turn(change: ChatChange, outcome: Outcome, place: Place, apply: Apply) -> Outcome:
    """Let the worker have the chat, if it is running and nobody holds it; `outcome` is that of the user's command."""
    if change.status is not Status.RUNNING or change.holder is not None or change.live_id is not None:
        return outcome
    row = await load_begun_turn(change.transaction, change.chat_id)
    if row["rivals"] >= place.per_user:
        return outcome
    try:
        await _decide(change, commands.Acquire(worker_id=place.worker_id), apply)
    except NotAllowed:
        return outcome
    assert change.turn_id is not None
    begun = Begun(epoch=change.epoch, turn_id=change.turn_id)
    work = await _load_work(change, row)
    if work is not None:
        begun = replace(begun, work=work)
        start = place.plan(work)
        if start is not None:
            change.payload = start
            await _decide(change, commands.StartAttempt(epoch=change.epoch, turn_id=change.turn_id), apply)
            begun = replace(begun, attempt=change.attempt, model=start.model, provider=start.provider)
    has_lost_it = change.snapshot.holder is not None
    return replace(outcome, begun=begun, wakes_workers=has_lost_it)


async def _decide(change: ChatChange, command: commands.Command, apply: Apply) -> None:
    await apply(change, decide(_describe(change), command).effects)


def _describe(change: ChatChange) -> Snapshot:
    """The chat as of now, in which no attempt is open."""
    before = change.snapshot
    assert change.turn_id is not None
    known = {row.id: row for row in before.queue}
    return Snapshot(
        chat_id=change.chat_id,
        status=change.status,
        archived=before.archived,
        epoch=change.epoch,
        holder=change.holder,
        head_id=change.head_id,
        queue=tuple(known.get(id_) or QueuedRow(id=id_, if_busy="queue") for id_ in change.queue_order),
        turn=OpenTurn(id=change.turn_id, kind=change.turn_kind),
    )


async def _load_work(change: ChatChange, row: Row) -> OpenWork | None:
    if change.seq > _MOST_EVENTS:
        return None
    most: dict[str, Any] = {"max_messages": _MOST_MESSAGES, "max_bytes": _MOST_BYTES}
    try:
        work = await load_begun_work(change.transaction, change.chat_id, change.head_id, row, **most)
    except (DecodeError, ValueError):  # the worker meets it, too, and fails the turn
        return None
    if work is None:
        return None
    is_titled = change.has_title or "title" in change.changes
    return replace(work, status=change.status, epoch=change.epoch, holder=change.holder, has_title=is_titled)
