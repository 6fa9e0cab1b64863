"""What the workers' commands do to a chat: acquiring it, the attempts and steps of a turn, and every way a turn ends.

`decide` has already checked the epoch, the turn and the attempt, and that the table allows the command. While a turn is
being stopped, the first command that can end it ends it as stopped (`end_stopped`).

Must stay true (tests/machine/test_takeovers.py, tests/machine/test_stop_and_lease.py): a turn that keeps killing its
workers eventually fails; the next worker that acquires the chat closes or adopts what a dead worker left open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from indelible.machine import commands, effects
from indelible.machine.decision import (
    NOTHING,
    Decision,
    answer_calls,
    close_attempt,
    continue_with_queue,
    end_stopped,
    refuse,
)
from indelible.machine.states import OpenTurn, Snapshot, Status

MAX_TAKEOVERS: Final = 10
"""A turn that survived this many crashes fails: the turn itself may be what kills its workers."""

MAX_STALLED_TAKEOVERS: Final = 3
"""A turn fails sooner, after this many takeovers in a row that brought no progress or found a tool running."""


def _acquire(snapshot: Snapshot, command: commands.Acquire) -> Decision:
    """First close the attempt that the last holder left open, or adopt it if only its tool results are missing."""
    if snapshot.holder_alive or snapshot.holder == command.worker_id:
        raise refuse(snapshot, command, "A live worker holds the chat.")
    raised = effects.RaiseEpoch(holder=command.worker_id)
    if snapshot.status is Status.INTERRUPTING:
        return Decision((raised, *close_attempt(snapshot, "interrupted", "interrupted")))
    count = _count_takeover(snapshot)
    if count is not None and (count.takeovers >= MAX_TAKEOVERS or count.stalled >= MAX_STALLED_TAKEOVERS):
        closing = (
            effects.RaiseEpoch(),
            count,
            *close_attempt(snapshot, "crashed", "crashed"),
            effects.CloseTurn(outcome="failed"),
        )
        failing = (
            effects.AddNotice(kind="crashed"),
            effects.SetError(kind="crashed"),
            effects.SetStatus(status=Status.ERROR),
        )
        return Decision((*closing, *failing))
    counted = [] if count is None else [count]
    if snapshot.attempt is not None and snapshot.attempt.finished:
        return Decision((raised, *counted, effects.AdoptAttempt()))
    is_reply = snapshot.turn is not None and snapshot.turn.kind == "reply"
    instruction = [effects.AddInstruction()] if is_reply else []
    return Decision((raised, *counted, *close_attempt(snapshot, "crashed", "crashed"), *instruction))


def _count_takeover(snapshot: Snapshot) -> effects.RecordTakeover | None:
    """Acquiring a chat from a dead worker counts; acquiring one that was released or never held does not."""
    turn: OpenTurn | None = snapshot.turn
    if turn is None or snapshot.holder is None:
        return None
    has_progressed = turn.journal_rows > turn.journal_rows_at_takeover
    stalled = 0 if has_progressed else turn.stalled_takeovers
    if not has_progressed or (snapshot.attempt is not None and snapshot.attempt.in_tool):
        stalled += 1  # a running tool may be what killed the worker, whatever the model said before (rule 10.16)
    return effects.RecordTakeover(takeovers=turn.takeovers + 1, stalled=stalled, journal_rows=turn.journal_rows)


def _release(snapshot: Snapshot, command: commands.Release) -> Decision:
    """A complete reply stays open: tool results may be missing, and the next holder runs those tools."""
    if snapshot.status is Status.RUNNING and snapshot.attempt is not None and snapshot.attempt.finished:
        return Decision((effects.LeaveAttempt(), effects.ClearHolder()))
    return Decision((*close_attempt(snapshot, "handed_over", "handed_over"), effects.ClearHolder()))


def _announce_retry(snapshot: Snapshot, command: commands.AnnounceRetry) -> Decision:
    return Decision((effects.ScheduleRetry(),))


def _keep_summary(snapshot: Snapshot, command: commands.KeepSummary) -> Decision:
    return Decision((effects.AddNotice(kind="compacted"), effects.AddSummary()))


def _start_attempt(snapshot: Snapshot, command: commands.StartAttempt) -> Decision:
    return Decision((*close_attempt(snapshot, "reset"), effects.BeginAttempt()))


def _commit_step(snapshot: Snapshot, command: commands.CommitStep) -> Decision:
    stopped = snapshot.status is Status.INTERRUPTING
    if command.failed:
        closed = effects.CloseAttempt(outcome="failed", reason="failed")
    else:
        closed = effects.CloseAttempt(outcome="complete", reason="interrupted" if stopped else None)
    if stopped:
        return end_stopped(snapshot, closed)
    instruction = [effects.AddInstruction()] if command.failed else []
    steers = [effects.InsertSteers()] if any(row.if_busy == "steer" for row in snapshot.queue) else []
    return Decision((closed, *instruction, *steers))


def _finish_turn(snapshot: Snapshot, command: commands.FinishTurn) -> Decision:
    if snapshot.status is Status.INTERRUPTING:
        return end_stopped(snapshot, *close_attempt(snapshot, "complete", "interrupted"))
    is_empty = command.attempt_id is None and snapshot.attempt is not None
    notice = [effects.AddNotice(kind="empty")] if is_empty else []
    if command.limit is not None:
        notice = [effects.AddNotice(kind=command.limit)]
    summary: list[effects.Effect] = []
    if snapshot.turn is not None and snapshot.turn.kind == "compaction":
        summary, notice = (
            [effects.AddSummary(), effects.AddNotice(kind="compacted")],
            [],
        )  # before the turn closes, so it is the turn's
    closing = (
        *close_attempt(snapshot, "complete", command.limit),
        *summary,
        effects.CloseTurn(outcome="complete"),
        *notice,
    )
    return Decision((*closing, *continue_with_queue(snapshot)))


def _await_action(snapshot: Snapshot, command: commands.AwaitAction) -> Decision:
    if snapshot.status is Status.INTERRUPTING:
        return end_stopped(snapshot, effects.CloseAttempt(outcome="complete", reason="interrupted"))
    waiting = (effects.SetDeadline(), effects.ClearHolder(), effects.SetStatus(status=Status.REQUIRES_ACTION))
    return Decision((effects.CloseAttempt(outcome="complete"), *waiting))


def _action_expired(snapshot: Snapshot, command: commands.ActionExpired) -> Decision:
    if not snapshot.deadline_passed:
        return NOTHING
    return Decision((*answer_calls(snapshot, "expired"), effects.SetStatus(status=Status.RUNNING)))


def _fail(snapshot: Snapshot, command: commands.Fail) -> Decision:
    closing = close_attempt(snapshot, "failed", "failed")
    if snapshot.status is Status.INTERRUPTING:
        return end_stopped(snapshot, *closing)
    ending = (
        effects.CloseTurn(outcome="failed"),
        effects.AddNotice(kind="failed"),
        effects.SetError(),
        effects.ClearHolder(),
    )
    return Decision((*closing, *ending, effects.SetStatus(status=Status.ERROR)))


def _finish_interruption(snapshot: Snapshot, command: commands.FinishInterruption) -> Decision:
    return end_stopped(snapshot, *close_attempt(snapshot, "interrupted", "interrupted"))


DECIDE_WORKER: Final[dict[type[commands.Command], Callable[[Snapshot, Any], Decision]]] = {
    commands.Acquire: _acquire,
    commands.Release: _release,
    commands.StartAttempt: _start_attempt,
    commands.AnnounceRetry: _announce_retry,
    commands.KeepSummary: _keep_summary,
    commands.CommitStep: _commit_step,
    commands.FinishTurn: _finish_turn,
    commands.AwaitAction: _await_action,
    commands.ActionExpired: _action_expired,
    commands.Fail: _fail,
    commands.FinishInterruption: _finish_interruption,
}
