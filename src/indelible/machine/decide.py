"""What a command does to a chat: `decide(snapshot, command)`, a pure function.

It answers with the effects to carry out, or raises: `NotAllowed` where the table has no entry, `NotFound`
for a name that is not in this chat, `Invalid` for a command that makes no sense, `LeaseLost` for a worker
whose epoch is over, `Interrupted` for a worker that wants to begin something in a chat that is being
stopped. A refused command has changed nothing, because nothing was written yet.

A worker's command is judged in this order: its epoch (whoever lost the chat changes nothing), then
whether its turn and attempt are still open (if not, somebody ended them already: success, and nothing
to do), then the table. That makes every ending safe to repeat when its answer was lost. Beginning an
attempt is no ending: it needs a turn that runs and a worker that holds the chat, else it raises, because
a model that is asked without an attempt would speak to nobody. A worker that let go of a chat keeps its
epoch until somebody takes it; only what was said in an attempt that is still open may come from it then.

Must stay true (tests/machine/test_transitions.py, tests/machine/test_random_walk.py): every pair of state and
command has a case; the state after the effects is one that the table names; whatever the history, every
message and every turn is accounted for exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from indelible.content import PartialReason
from indelible.errors import Interrupted, Invalid, LeaseLost, NotAllowed, NotFound
from indelible.machine.commands import (
    Acquire,
    ActionExpired,
    AnnounceRetry,
    Archive,
    AwaitAction,
    Command,
    CommitStep,
    Compact,
    Continue,
    Create,
    Delete,
    DeleteQueued,
    Edit,
    EditQueued,
    Fail,
    FinishInterruption,
    FinishTurn,
    Interrupt,
    KeepSummary,
    PromoteQueued,
    Regenerate,
    Release,
    ReorderQueue,
    Retry,
    Send,
    SendInterrupt,
    SendSteer,
    StartAttempt,
    SwitchBranch,
    ToolResults,
    Unarchive,
    UpdateChat,
    WorkerCommand,
)
from indelible.machine.effects import (
    AddInstruction,
    AddMessage,
    AddNotice,
    AddSummary,
    AddToolResults,
    AdoptAttempt,
    AnswerOpenCalls,
    AnswerReason,
    AttemptOutcome,
    BeginAttempt,
    BeginTurn,
    ClearError,
    ClearHolder,
    CloseAttempt,
    CloseTurn,
    DeleteChat,
    EditQueuedMessage,
    Effect,
    Enqueue,
    InsertSteers,
    LeaveAttempt,
    MoveHead,
    RaiseEpoch,
    RecordTakeover,
    RemoveQueued,
    ReorderQueueRows,
    ScheduleRetry,
    SetArchived,
    SetDeadline,
    SetError,
    SetStatus,
    StartQueued,
    TurnOutcome,
    UpdateMetadata,
)
from indelible.machine.states import OpenTurn, Snapshot, Status, Target, place_in_queue
from indelible.machine.transitions import TABLE

_IDLE: Final = (Status.IDLE, Status.ERROR)
_BUSY: Final = (Status.RUNNING, Status.INTERRUPTING)

MAX_TAKEOVERS: Final = 10
"""A turn that outlived this many crashes fails: whatever kills its workers may well be the turn itself."""

MAX_STALLED_TAKEOVERS: Final = 3
"""It fails sooner if none of this many in a row brought a part of an answer."""


class Decision(NamedTuple):
    """The effects to carry out. `effective` is False for a command that found nothing to do."""

    effects: tuple[Effect, ...] = ()
    effective: bool = True


_NOTHING: Final = Decision(effective=False)
_BEGINNINGS: Final = (StartAttempt, AnnounceRetry, KeepSummary)


def decide(snapshot: Snapshot | None, command: Command) -> Decision:
    """What to write for this command; None stands for a chat that does not exist."""
    if snapshot is None:
        if isinstance(command, Create):
            return _create(command)
        if isinstance(command, WorkerCommand):
            raise LeaseLost("The chat was deleted.")
        raise NotFound("There is no such chat.")
    if isinstance(command, WorkerCommand):
        settled = _check_worker(snapshot, command)
        if settled is not None:
            return settled
    if isinstance(command, ActionExpired) and not _is_turn(snapshot, command.turn_id):
        return _NOTHING
    targets = TABLE[command.name].get(snapshot.state)
    if targets is None:
        raise _refuse(snapshot, command)
    if not targets:
        return _NOTHING
    return _DECIDE[type(command)](snapshot, command)


def _refuse(snapshot: Snapshot, command: Command, why: str | None = None) -> NotAllowed:
    if why is None and snapshot.archived:
        why = f"{command.name} is not possible while the chat is archived."
    return NotAllowed(command=command.name, state=snapshot.status, detail=why)


def _check_worker(snapshot: Snapshot, command: WorkerCommand) -> Decision | None:
    if command.epoch != snapshot.epoch:
        raise LeaseLost(f"The lease of epoch {command.epoch} is over; the chat is at {snapshot.epoch}.")
    if isinstance(command, Release):
        return _NOTHING if snapshot.holder is None else None
    if isinstance(command, _BEGINNINGS):
        _check_holder(snapshot)
        if snapshot.status is Status.INTERRUPTING or not _is_turn(snapshot, command.turn_id):
            raise Interrupted  # under one epoch only a stop takes the turn away
        return None
    turn_id = getattr(command, "turn_id", None)
    attempt_id = getattr(command, "attempt_id", None)
    if turn_id is not None and not _is_turn(snapshot, turn_id):
        return _NOTHING
    if attempt_id is None:
        _check_holder(snapshot)
    elif snapshot.attempt is None or snapshot.attempt.id != attempt_id:
        return _NOTHING
    return None


def _check_holder(snapshot: Snapshot) -> None:
    """Letting go keeps the epoch until somebody else takes the chat; only an open attempt may still be kept then."""
    if snapshot.holder is None:
        raise LeaseLost("The worker does not hold the chat any more.")


def _is_turn(snapshot: Snapshot, turn_id: str) -> bool:
    return snapshot.turn is not None and snapshot.turn.id == turn_id


# --- pieces ---


def _close_attempt(snapshot: Snapshot, outcome: AttemptOutcome, reason: PartialReason | None = None) -> list[Effect]:
    return [CloseAttempt(outcome=outcome, reason=reason)] if snapshot.attempt is not None else []


def _close_turn(snapshot: Snapshot, outcome: TurnOutcome) -> list[Effect]:
    return [CloseTurn(outcome=outcome)] if snapshot.turn is not None else []


def _answer_calls(snapshot: Snapshot, reason: AnswerReason) -> list[Effect]:
    return [AnswerOpenCalls(reason=reason)] if snapshot.awaiting else []


def _clear_error(snapshot: Snapshot) -> list[Effect]:
    return [ClearError()] if snapshot.status is Status.ERROR else []


def _begin_stop(snapshot: Snapshot) -> list[Effect]:
    return [] if snapshot.status is Status.INTERRUPTING else [SetStatus(status=Status.INTERRUPTING)]


def _run_message(snapshot: Snapshot) -> list[Effect]:
    """The command's message enters history and is answered."""
    return [
        *_answer_calls(snapshot, "cancelled"),
        *_clear_error(snapshot),
        AddMessage(),
        BeginTurn(),
        SetStatus(status=Status.RUNNING),
    ]


def _go_on(snapshot: Snapshot) -> list[Effect]:
    """After a turn: the front of the queue is next, with the same holder, or nothing is."""
    if snapshot.queue:
        return [StartQueued(), SetStatus(status=Status.RUNNING)]
    return [ClearHolder(), SetStatus(status=Status.IDLE)]


def _end_stopped(snapshot: Snapshot, *closing: Effect) -> Decision:
    """The end of a turn that the user stopped, whoever ends it."""
    return Decision((*closing, CloseTurn(outcome="interrupted"), AddNotice(kind="stopped"), *_go_on(snapshot)))


def _require_target(snapshot: Snapshot, message_id: str) -> Target:
    if snapshot.target is None or snapshot.target.id != message_id:
        raise NotFound("There is no such message in this chat.")
    return snapshot.target


def _require_queued(snapshot: Snapshot, queued_id: str) -> None:
    if all(row.id != queued_id for row in snapshot.queue):
        raise NotFound("There is no such message in the queue.")


# --- of users ---


def _create(command: Create) -> Decision:
    if not command.with_message:
        return Decision((SetStatus(status=Status.IDLE),))
    return Decision((AddMessage(), BeginTurn(), SetStatus(status=Status.RUNNING)))


def _send(snapshot: Snapshot, command: Send | SendSteer | SendInterrupt) -> Decision:
    if snapshot.status not in _IDLE:
        return Decision((Enqueue(if_busy="queue"),))
    if not snapshot.queue:
        return Decision(tuple(_run_message(snapshot)))
    answers = _answer_calls(snapshot, "cancelled")
    run = (*answers, *_clear_error(snapshot), Enqueue(if_busy="queue"), StartQueued(), SetStatus(status=Status.RUNNING))
    return Decision(run)


def _send_steer(snapshot: Snapshot, command: SendSteer) -> Decision:
    """There is something to steer only while a turn runs; elsewhere it is a plain message."""
    if snapshot.status is Status.RUNNING:
        return Decision((Enqueue(if_busy="steer"),))
    return _send(snapshot, command)


def _send_interrupt(snapshot: Snapshot, command: SendInterrupt) -> Decision:
    if snapshot.status in _BUSY:
        return Decision((Enqueue(if_busy="interrupt"), *_begin_stop(snapshot)))
    if snapshot.status is Status.REQUIRES_ACTION:
        closing = (*_answer_calls(snapshot, "cancelled"), *_close_turn(snapshot, "interrupted"))
        return Decision((*closing, AddMessage(), BeginTurn(), SetStatus(status=Status.RUNNING)))
    return _send(snapshot, command)


def _fork(snapshot: Snapshot) -> list[Effect]:
    """Running work ends on the branch it was on, and nobody who did it can write any more."""
    return [
        *_close_attempt(snapshot, "edited", "edited"),
        *_answer_calls(snapshot, "cancelled"),
        *_close_turn(snapshot, "edited"),
        *_clear_error(snapshot),
        RaiseEpoch(),
    ]


def _edit(snapshot: Snapshot, command: Edit) -> Decision:
    target = _require_target(snapshot, command.message_id)
    if target.role != "user":
        raise Invalid("Only a message of the user can be edited.")
    effects = (MoveHead(message_id=target.parent_id), AddMessage(), BeginTurn(), SetStatus(status=Status.RUNNING))
    return Decision((*_fork(snapshot), *effects))


def _regenerate(snapshot: Snapshot, command: Regenerate) -> Decision:
    target = _require_target(snapshot, command.message_id)
    if target.role != "assistant" or target.user_above_id is None:
        raise Invalid("Only a reply to a message of the user can be written anew.")
    above = target.user_above_id
    effects = (MoveHead(message_id=above), BeginTurn(message_id=above), SetStatus(status=Status.RUNNING))
    return Decision((*_fork(snapshot), *effects))


def _switch_head(snapshot: Snapshot, command: SwitchBranch) -> Decision:
    return Decision((MoveHead(message_id=_require_target(snapshot, command.message_id).id),))


def _continue(snapshot: Snapshot, command: Continue) -> Decision:
    if not snapshot.last_is_partial:
        raise _refuse(snapshot, command, "The last reply is not a partial one.")
    return _answer_again(snapshot)


def _retry(snapshot: Snapshot, command: Retry) -> Decision:
    if snapshot.last_turn_kind == "compaction":
        return _compact(snapshot, command)
    if snapshot.last_user_id is None:
        raise _refuse(snapshot, command, "There is nothing to answer.")
    return _answer_again(snapshot)


def _answer_again(snapshot: Snapshot) -> Decision:
    """A new turn for the same message: it continues a visible partial, else it asks anew."""
    turn = BeginTurn(message_id=snapshot.last_user_id)
    effects = (*_answer_calls(snapshot, "cancelled"), *_clear_error(snapshot), AddInstruction(), turn)
    return Decision((*effects, SetStatus(status=Status.RUNNING)))


def _compact(snapshot: Snapshot, command: Compact | Retry) -> Decision:
    turn = BeginTurn(kind="compaction", message_id=snapshot.last_user_id)
    effects = (*_answer_calls(snapshot, "cancelled"), *_clear_error(snapshot), turn)
    return Decision((*effects, SetStatus(status=Status.RUNNING)))


def _delete(snapshot: Snapshot, command: Delete) -> Decision:
    closing = (*_close_attempt(snapshot, "edited", "edited"), *_close_turn(snapshot, "edited"))
    return Decision((RaiseEpoch(), *closing, DeleteChat()))


def _delete_queued(snapshot: Snapshot, command: DeleteQueued) -> Decision:
    _require_queued(snapshot, command.queued_id)
    return Decision((RemoveQueued(queued_id=command.queued_id),))


def _reorder_queue(snapshot: Snapshot, command: ReorderQueue) -> Decision:
    if sorted(command.queued_ids) != sorted(row.id for row in snapshot.queue):
        raise Invalid("A new order must name every message of the queue exactly once.")
    return Decision((ReorderQueueRows(queued_ids=command.queued_ids),))


def _edit_queued(snapshot: Snapshot, command: EditQueued) -> Decision:
    _require_queued(snapshot, command.queued_id)
    return Decision((EditQueuedMessage(queued_id=command.queued_id),))


def _promote_queued(snapshot: Snapshot, command: PromoteQueued) -> Decision:
    _require_queued(snapshot, command.queued_id)
    if snapshot.status in _BUSY:
        order = ReorderQueueRows(queued_ids=_bring_forward(snapshot, command.queued_id), promoted_id=command.queued_id)
        return Decision((order, *_begin_stop(snapshot)))
    closing = (*_answer_calls(snapshot, "cancelled"), *_close_turn(snapshot, "interrupted"), *_clear_error(snapshot))
    return Decision((*closing, StartQueued(queued_id=command.queued_id), SetStatus(status=Status.RUNNING)))


def _bring_forward(snapshot: Snapshot, queued_id: str) -> tuple[str, ...]:
    """The order with this row promoted: behind those that were before it, and never further back than it is."""
    ids = [row.id for row in snapshot.queue]
    others = [row for row in snapshot.queue if row.id != queued_id]
    place = min(ids.index(queued_id), place_in_queue(others, "promoted"))
    ids.remove(queued_id)
    ids.insert(place, queued_id)
    return tuple(ids)


def _interrupt(snapshot: Snapshot, command: Interrupt) -> Decision:
    if command.turn_id is not None and not _is_turn(snapshot, command.turn_id):
        return _NOTHING
    if snapshot.status is Status.REQUIRES_ACTION:
        return _end_stopped(snapshot, *_answer_calls(snapshot, "cancelled"))
    if not snapshot.holder_alive:
        return _end_stopped(snapshot, *_close_attempt(snapshot, "interrupted", "interrupted"), ClearHolder())
    return Decision(tuple(_begin_stop(snapshot)))


def _tool_results(snapshot: Snapshot, command: ToolResults) -> Decision:
    if sorted(command.call_ids) != sorted(snapshot.awaiting):
        raise Invalid("The results must answer every open call exactly once, and nothing else.")
    return Decision((AddToolResults(), SetStatus(status=Status.RUNNING)))


def _archive(snapshot: Snapshot, command: Archive | Unarchive) -> Decision:
    return Decision((SetArchived(archived=isinstance(command, Archive)),))


def _describe(snapshot: Snapshot, command: UpdateChat) -> Decision:
    if command.only_untitled and snapshot.titled:
        return _NOTHING
    return Decision((UpdateMetadata(),))


# --- of workers ---


def _acquire(snapshot: Snapshot, command: Acquire) -> Decision:
    """Whoever takes a chat closes first what another left open, unless only its tools are missing."""
    if snapshot.holder_alive or snapshot.holder == command.worker_id:
        raise _refuse(snapshot, command, "A live worker holds the chat.")
    taken = RaiseEpoch(holder=command.worker_id)
    if snapshot.status is Status.INTERRUPTING:
        return Decision((taken, *_close_attempt(snapshot, "interrupted", "interrupted")))
    count = _count_takeover(snapshot)
    if count is not None and (count.takeovers >= MAX_TAKEOVERS or count.stalled >= MAX_STALLED_TAKEOVERS):
        closing = (RaiseEpoch(), count, *_close_attempt(snapshot, "crashed", "crashed"), CloseTurn(outcome="failed"))
        told = (AddNotice(kind="crashed"), SetError(kind="crashed"), SetStatus(status=Status.ERROR))
        return Decision((*closing, *told))
    counted = [] if count is None else [count]
    if snapshot.attempt is not None and snapshot.attempt.finished:
        return Decision((taken, *counted, AdoptAttempt()))
    is_reply = snapshot.turn is not None and snapshot.turn.kind == "reply"
    instruction = [AddInstruction()] if is_reply else []
    return Decision((taken, *counted, *_close_attempt(snapshot, "crashed", "crashed"), *instruction))


def _count_takeover(snapshot: Snapshot) -> RecordTakeover | None:
    """Taking a chat from a dead worker counts; taking one that was handed over, or that nobody had, does not."""
    turn: OpenTurn | None = snapshot.turn
    if turn is None or snapshot.holder is None:
        return None
    stalled = turn.stalled_takeovers + 1 if turn.journal_rows == turn.journal_rows_at_takeover else 0
    return RecordTakeover(takeovers=turn.takeovers + 1, stalled=stalled, journal_rows=turn.journal_rows)


def _release(snapshot: Snapshot, command: Release) -> Decision:
    """A reply that is whole stays open: its tools may be missing, and whoever takes the chat runs them."""
    if snapshot.status is Status.RUNNING and snapshot.attempt is not None and snapshot.attempt.finished:
        return Decision((LeaveAttempt(), ClearHolder()))
    return Decision((*_close_attempt(snapshot, "handed_over", "handed_over"), ClearHolder()))


def _announce_retry(snapshot: Snapshot, command: AnnounceRetry) -> Decision:
    return Decision((ScheduleRetry(),))


def _keep_summary(snapshot: Snapshot, command: KeepSummary) -> Decision:
    return Decision((AddSummary(),))


def _start_attempt(snapshot: Snapshot, command: StartAttempt) -> Decision:
    return Decision((*_close_attempt(snapshot, "reset"), BeginAttempt()))


def _commit_step(snapshot: Snapshot, command: CommitStep) -> Decision:
    stopped = snapshot.status is Status.INTERRUPTING
    if command.failed:
        closed = CloseAttempt(outcome="failed", reason="failed")
    else:
        closed = CloseAttempt(outcome="complete", reason="interrupted" if stopped else None)
    if stopped:
        return _end_stopped(snapshot, closed)
    instruction = [AddInstruction()] if command.failed else []
    steers = [InsertSteers()] if any(row.if_busy == "steer" for row in snapshot.queue) else []
    return Decision((closed, *instruction, *steers))


def _finish_turn(snapshot: Snapshot, command: FinishTurn) -> Decision:
    if snapshot.status is Status.INTERRUPTING:
        return _end_stopped(snapshot, *_close_attempt(snapshot, "complete", "interrupted"))
    said_nothing = command.attempt_id is None and snapshot.attempt is not None
    notice = [AddNotice(kind="empty")] if said_nothing else []
    summary: list[Effect] = []
    if snapshot.turn is not None and snapshot.turn.kind == "compaction":
        summary, notice = [AddSummary()], [AddNotice(kind="compacted")]
    closing = (*_close_attempt(snapshot, "complete"), *summary, CloseTurn(outcome="complete"), *notice)
    return Decision((*closing, *_go_on(snapshot)))


def _await_action(snapshot: Snapshot, command: AwaitAction) -> Decision:
    if snapshot.status is Status.INTERRUPTING:
        return _end_stopped(snapshot, CloseAttempt(outcome="complete", reason="interrupted"))
    waiting = (SetDeadline(), ClearHolder(), SetStatus(status=Status.REQUIRES_ACTION))
    return Decision((CloseAttempt(outcome="complete"), *waiting))


def _action_expired(snapshot: Snapshot, command: ActionExpired) -> Decision:
    if not snapshot.deadline_passed:
        return _NOTHING
    return Decision((*_answer_calls(snapshot, "expired"), SetStatus(status=Status.RUNNING)))


def _fail(snapshot: Snapshot, command: Fail) -> Decision:
    closing = _close_attempt(snapshot, "failed", "failed")
    if snapshot.status is Status.INTERRUPTING:
        return _end_stopped(snapshot, *closing)
    ending = (CloseTurn(outcome="failed"), AddNotice(kind="failed"), SetError(), ClearHolder())
    return Decision((*closing, *ending, SetStatus(status=Status.ERROR)))


def _finish_interruption(snapshot: Snapshot, command: FinishInterruption) -> Decision:
    return _end_stopped(snapshot, *_close_attempt(snapshot, "interrupted", "interrupted"))


_DECIDE: Final[dict[type[Command], Callable[[Snapshot, Any], Decision]]] = {
    Send: _send,
    SendSteer: _send_steer,
    SendInterrupt: _send_interrupt,
    Edit: _edit,
    Regenerate: _regenerate,
    SwitchBranch: _switch_head,
    Continue: _continue,
    Delete: _delete,
    DeleteQueued: _delete_queued,
    ReorderQueue: _reorder_queue,
    EditQueued: _edit_queued,
    PromoteQueued: _promote_queued,
    Interrupt: _interrupt,
    ToolResults: _tool_results,
    Retry: _retry,
    Compact: _compact,
    Archive: _archive,
    Unarchive: _archive,
    UpdateChat: _describe,
    Acquire: _acquire,
    Release: _release,
    StartAttempt: _start_attempt,
    AnnounceRetry: _announce_retry,
    KeepSummary: _keep_summary,
    CommitStep: _commit_step,
    FinishTurn: _finish_turn,
    AwaitAction: _await_action,
    ActionExpired: _action_expired,
    Fail: _fail,
    FinishInterruption: _finish_interruption,
}
