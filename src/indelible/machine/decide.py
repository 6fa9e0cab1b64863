"""What a command does to a chat: `decide(snapshot, command)`, a pure function.

It returns the effects to apply, or raises: `NotAllowed` where the table has no entry, `ChatNotFound` without a chat,
`NotFound` for an id that is not in this chat, `Invalid` for a command that makes no sense, `LeaseLost` for a worker
whose epoch is over, `Interrupted` for a worker that tries to start something in a chat that is being
stopped. A refused command has changed nothing, because nothing was written yet.

A worker's command is checked in this order: its epoch (a worker that lost the chat changes nothing), then
whether its turn and attempt are still open (if not, they have already ended: success, and nothing to do), then
the table. That makes every ending safe to repeat when its response was lost. Starting an attempt is not an
ending: it needs a running turn and a worker that holds the chat, else it raises, because the output of a model
that is called without an attempt would be lost. A worker that released a chat keeps its epoch until another
worker acquires the chat; until then it may only write the rest of an attempt that is still open.

Must stay true (tests/machine/test_transitions.py, tests/machine/test_random_walk.py): every pair of state and
command has a case; the state after the effects is one that the table names; whatever the history, every
message and every turn is accounted for exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from indelible.errors import ChatNotFound, Interrupted, LeaseLost
from indelible.machine import commands
from indelible.machine.decide_user import DECIDE_USER, create
from indelible.machine.decide_worker import DECIDE_WORKER
from indelible.machine.decision import NOTHING, Decision, is_turn, refuse
from indelible.machine.states import Snapshot, Status
from indelible.machine.transitions import TABLE

_BEGINNINGS: Final = (commands.StartAttempt, commands.AnnounceRetry, commands.KeepSummary)
_DECIDE: Final[dict[type[commands.Command], Callable[[Snapshot, Any], Decision]]] = {**DECIDE_USER, **DECIDE_WORKER}


def decide(snapshot: Snapshot | None, command: commands.Command) -> Decision:
    """The decision for this command; a snapshot of None means that the chat does not exist."""
    if snapshot is None:
        if isinstance(command, commands.Create):
            return create(command)
        if isinstance(command, commands.WorkerCommand):
            raise LeaseLost("The chat was deleted.")
        raise ChatNotFound
    if isinstance(command, commands.WorkerCommand):
        settled = _check_worker(snapshot, command)
        if settled is not None:
            return settled
    if isinstance(command, commands.ActionExpired) and not is_turn(snapshot, command.turn_id):
        return NOTHING
    targets = TABLE[command.name].get(snapshot.state)
    if targets is None:
        raise refuse(snapshot, command)
    if not targets:
        return NOTHING
    return _DECIDE[type(command)](snapshot, command)


def _check_worker(snapshot: Snapshot, command: commands.WorkerCommand) -> Decision | None:
    if command.epoch != snapshot.epoch:
        raise LeaseLost(f"The lease of epoch {command.epoch} is over; the chat is at {snapshot.epoch}.")
    if isinstance(command, commands.Release):
        return NOTHING if snapshot.holder is None else None
    if isinstance(command, _BEGINNINGS):
        _check_holder(snapshot)
        if snapshot.status is Status.INTERRUPTING or not is_turn(snapshot, command.turn_id):
            raise Interrupted  # under one epoch only a stop ends the turn
        return None
    turn_id = getattr(command, "turn_id", None)
    attempt_id = getattr(command, "attempt_id", None)
    if turn_id is not None and not is_turn(snapshot, turn_id):
        return NOTHING
    if attempt_id is None:
        _check_holder(snapshot)
    elif snapshot.attempt is None or snapshot.attempt.id != attempt_id:
        return NOTHING
    return None


def _check_holder(snapshot: Snapshot) -> None:
    """Raise `LeaseLost` if the chat was released. It keeps its epoch, but only an open attempt may still be written."""
    if snapshot.holder is None:
        raise LeaseLost("The worker no longer holds the chat.")
