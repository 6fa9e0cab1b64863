"""What `decide` returns, and the pieces that several decisions share.

A piece is a short list of effects that always belong together, such as closing what is open. It reads the snapshot
only for facts that every command may read, so that no command needs a fact because of a piece that it does not use.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from indelible.content import PartialReason
from indelible.errors import NotAllowed, describe_not_allowed
from indelible.machine.commands import Command
from indelible.machine.effects import (
    AddNotice,
    AnswerOpenCalls,
    AnswerReason,
    AttemptOutcome,
    ClearError,
    ClearHolder,
    CloseAttempt,
    CloseTurn,
    Effect,
    SetStatus,
    StartQueued,
    TurnOutcome,
)
from indelible.machine.states import Snapshot, Status


class Decision(NamedTuple):
    """The effects to apply. `effective` is False for a command with nothing to do."""

    effects: tuple[Effect, ...] = ()
    effective: bool = True


NOTHING: Final = Decision(effective=False)


def refuse(snapshot: Snapshot, command: Command, why: str | None = None) -> NotAllowed:
    if why is None and snapshot.archived:
        why = describe_not_allowed(command.name, "archived")
    return NotAllowed(command=command.name, state=snapshot.status, detail=why)


def is_turn(snapshot: Snapshot, turn_id: str) -> bool:
    return snapshot.turn is not None and snapshot.turn.id == turn_id


def close_attempt(snapshot: Snapshot, outcome: AttemptOutcome, reason: PartialReason | None = None) -> list[Effect]:
    return [CloseAttempt(outcome=outcome, reason=reason)] if snapshot.attempt is not None else []


def close_turn(snapshot: Snapshot, outcome: TurnOutcome) -> list[Effect]:
    return [CloseTurn(outcome=outcome)] if snapshot.turn is not None else []


def answer_calls(snapshot: Snapshot, reason: AnswerReason) -> list[Effect]:
    return [AnswerOpenCalls(reason=reason)] if snapshot.awaiting else []


def clear_error(snapshot: Snapshot) -> list[Effect]:
    return [ClearError()] if snapshot.status is Status.ERROR else []


def continue_with_queue(snapshot: Snapshot) -> list[Effect]:
    """After a turn: start the front of the queue under the same holder, or become idle."""
    if snapshot.queue:
        return [StartQueued(), SetStatus(status=Status.RUNNING)]
    return [ClearHolder(), SetStatus(status=Status.IDLE)]


def end_stopped(snapshot: Snapshot, *closing: Effect) -> Decision:
    """The end of a turn that the user stopped, for every command that can end it."""
    ended = (*closing, CloseTurn(outcome="interrupted"), AddNotice(kind="stopped"))
    return Decision((*ended, *continue_with_queue(snapshot)))
