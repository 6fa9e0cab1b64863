"""Stopping, and who may write: interrupts, late writes, epochs (rule 1.8, R3, P4).

A worker that lost its chat changes nothing, and one that repeats what it has done already is told that it
succeeded. A stop is for the turn it was meant for, and ends it whether or not its worker is still alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from indelible.errors import IndelibleError, Interrupted, LeaseLost, NotAllowed, NotFound
from indelible.machine import Decision, State, Status, effects
from indelible.machine.commands import (
    Acquire,
    AnnounceRetry,
    AwaitAction,
    Command,
    CommitStep,
    Compact,
    Continue,
    Delete,
    Edit,
    Fail,
    FinishInterruption,
    FinishTurn,
    Interrupt,
    KeepSummary,
    Regenerate,
    Release,
    Retry,
    Send,
    SendInterrupt,
    SendSteer,
    StartAttempt,
    SwitchBranch,
)
from indelible.machine.effects import AnswerOpenCalls, CloseAttempt

if TYPE_CHECKING:
    from tests.machine.conftest import Chat

    ChatIn = Callable[[State], Chat]

Beginning = type[StartAttempt | AnnounceRetry | KeepSummary]

BEGINNINGS = (StartAttempt, AnnounceRetry, KeepSummary)
BUSY = [State.RUNNING, State.RUNNING_QUEUED, State.INTERRUPTING, State.INTERRUPTING_QUEUED]
ANY = [state for state in State if state is not State.NONE]


# --- stopping ---


@pytest.mark.parametrize("state", BUSY)
def test_a_live_worker_is_asked_to_stop(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    turn, attempt = chat.open_turn, chat.open_attempt
    decision = chat.do(Interrupt(turn_id=turn.id))
    assert (decision.effective, chat.status) == (True, Status.INTERRUPTING)
    assert (chat.turn, chat.attempt, chat.holder) == (turn, attempt, "worker")


@pytest.mark.parametrize("state", BUSY)
def test_the_turn_of_a_dead_worker_is_ended_by_the_stop_itself_under_the_same_epoch(
    state: State, chat_in: ChatIn
) -> None:
    chat = chat_in(state)
    turn, attempt, epoch = chat.open_turn, chat.open_attempt, chat.epoch
    chat.alive.clear()
    chat.do(Interrupt())
    assert (turn.outcomes, attempt.outcomes) == (["interrupted"], ["interrupted"])
    assert (chat.holder, chat.epoch, chat.find_last("assistant").why) == (None, epoch, "interrupted")
    late = FinishInterruption(epoch=epoch, turn_id=turn.id, attempt_id=attempt.id)
    assert chat.do(late) == Decision(effective=False)


@pytest.mark.parametrize("state", [*BUSY, State.REQUIRES_ACTION, State.REQUIRES_ACTION_QUEUED])
def test_a_late_click_does_not_stop_the_next_turn(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    before = chat.snapshot()
    assert chat.do(Interrupt(turn_id=chat.turns[0].id)) == Decision(effective=False)
    assert chat.snapshot() == before


@pytest.mark.parametrize(
    "state",
    [
        State.IDLE,
        State.ERROR,
        State.ERROR_QUEUED,
        State.IDLE_ARCHIVED,
        State.ERROR_ARCHIVED,
        State.ERROR_QUEUED_ARCHIVED,
    ],
)
def test_stopping_an_idle_chat_does_nothing_and_says_so(state: State, chat_in: ChatIn) -> None:
    assert chat_in(state).do(Interrupt()) == Decision(effective=False)


@pytest.mark.parametrize("state", [State.REQUIRES_ACTION, State.REQUIRES_ACTION_QUEUED])
def test_stopping_a_chat_that_waits_for_results_answers_the_calls(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    turn = chat.open_turn
    decision = chat.do(Interrupt())
    assert decision.effects[0] == AnswerOpenCalls(reason="cancelled")
    assert (turn.outcomes, "tool" in chat.roles) == (["interrupted"], True)


@pytest.mark.parametrize("ending", ["commit", "finish", "fail"])
@pytest.mark.parametrize("state", [State.INTERRUPTING, State.INTERRUPTING_QUEUED])
def test_what_arrives_while_interrupting_is_kept_as_it_is(ending: str, state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    failed = ending == "fail"
    turn, epoch, queued = chat.open_turn, chat.epoch, chat.queued
    chat.say(calls=1, finish=not failed)
    closed = getattr(chat, ending)().effects[0]
    assert isinstance(closed, CloseAttempt)
    assert (closed.outcome, closed.reason) == (("failed", "failed") if failed else ("complete", "interrupted"))
    assert (turn.outcomes, chat.find_last("assistant").is_partial) == (["interrupted"], failed)
    assert chat.roles[-3 - len(queued) :] == ["assistant", "tool", "notice", *(["user"] * len(queued))]
    assert [node.why for node in chat.path if node.role in {"tool", "notice"}][-2:] == [closed.reason, "stopped"]
    assert (chat.epoch, chat.holder) == (epoch, "worker" if queued else None)


def test_a_failed_step_that_arrives_while_interrupting_ends_the_turn_as_stopped(chat_in: ChatIn) -> None:
    chat = chat_in(State.INTERRUPTING)
    turn = chat.open_turn
    chat.commit(failed=True)
    assert (turn.outcomes, chat.state, chat.find_last("assistant").is_partial) == (["interrupted"], State.IDLE, True)


def test_calls_that_arrive_while_interrupting_are_not_waited_for(chat_in: ChatIn) -> None:
    chat = chat_in(State.INTERRUPTING)
    attempt = chat.open_attempt
    chat.say(calls=1, finish=True)
    chat.await_action()
    assert (chat.state, chat.awaiting, attempt.outcomes) == (State.IDLE, (), ["complete"])
    assert [(node.role, node.why) for node in chat.path[-2:]] == [("tool", "interrupted"), ("notice", "stopped")]


@pytest.mark.parametrize("state", [State.INTERRUPTING, State.INTERRUPTING_QUEUED])
def test_a_stopped_turn_keeps_what_was_written_and_a_notice_says_that_it_was_stopped(
    state: State, chat_in: ChatIn
) -> None:
    chat = chat_in(state)
    turn, attempt, queued = chat.open_turn, chat.open_attempt, chat.queued
    chat.finish_interruption()
    assert (turn.outcomes, attempt.outcomes) == (["interrupted"], ["interrupted"])
    assert (chat.find_last("assistant").why, chat.find_last("notice").why) == ("interrupted", "stopped")
    assert chat.roles[-2 - len(queued) :] == ["assistant", "notice", *(["user"] * len(queued))]


def test_an_interrupt_send_waits_behind_earlier_ones_and_stops_the_turn(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING_QUEUED)
    (plain,) = chat.queued
    chat.do(SendInterrupt(), "now")
    assert chat.do(SendInterrupt(), "and this").effects == (effects.Enqueue(if_busy="interrupt"),)
    assert (chat.state, chat.queued) == (State.INTERRUPTING_QUEUED, ["now", "and this", plain])
    chat.finish_interruption()
    assert (chat.words[-1], chat.queued, chat.holder) == ("now", ["and this", plain], "worker")


# --- who may write (1.8, R3, P4) ---


def make_worker_commands(chat: Chat, *, epoch: int) -> list[Command]:
    turn_id = chat.turn.id if chat.turn else "turn"
    attempt_id = chat.attempt.id if chat.attempt else "attempt"
    return [
        Release(epoch=epoch),
        StartAttempt(epoch=epoch, turn_id=turn_id),
        AnnounceRetry(epoch=epoch, turn_id=turn_id),
        KeepSummary(epoch=epoch, turn_id=turn_id),
        CommitStep(epoch=epoch, turn_id=turn_id, attempt_id=attempt_id),
        FinishTurn(epoch=epoch, turn_id=turn_id, attempt_id=attempt_id),
        AwaitAction(epoch=epoch, turn_id=turn_id, attempt_id=attempt_id),
        Fail(epoch=epoch, turn_id=turn_id, attempt_id=attempt_id),
        FinishInterruption(epoch=epoch, turn_id=turn_id, attempt_id=attempt_id),
    ]


@pytest.mark.parametrize("state", ANY)
@pytest.mark.parametrize("distance", [-1, 1])
def test_a_wrong_epoch_is_a_lost_lease_before_anything_else(state: State, distance: int, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    before = chat.snapshot()
    for command in make_worker_commands(chat, epoch=chat.epoch + distance):
        with pytest.raises(LeaseLost):
            chat.do(command)
    assert chat.snapshot() == before


def test_every_command_to_a_chat_that_is_gone_says_so(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    orders = make_worker_commands(chat, epoch=chat.epoch)
    chat.do(Delete())
    for command in orders:
        with pytest.raises(LeaseLost):
            chat.do(command)
    for other in (Send(), Delete(), Acquire(worker_id="worker")):
        with pytest.raises(NotFound):
            chat.do(other)


@pytest.mark.parametrize("state", BUSY)
def test_repeating_an_ending_whose_answer_was_lost_is_a_success(state: State, chat_in: ChatIn) -> None:
    for ending in make_worker_commands(chat_in(state), epoch=chat_in(state).epoch):
        chat = chat_in(state)
        if isinstance(ending, BEGINNINGS) or (
            isinstance(ending, FinishInterruption) and state in {State.RUNNING, State.RUNNING_QUEUED}
        ):
            continue
        assert chat.do(ending).effective
        after = chat.snapshot()
        assert chat.do(ending) == Decision(effective=False)
        assert chat.snapshot() == after


def test_an_attempt_that_was_dropped_can_not_be_committed(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    old = CommitStep(epoch=chat.epoch, turn_id=chat.open_turn.id, attempt_id=chat.open_attempt.id)
    chat.start_attempt()
    assert chat.do(old) == Decision(effective=False)
    assert chat.open_attempt.outcomes == []


def test_s4_a_late_persist_is_accepted_after_the_stop_cleared_the_holder(chat_in: ChatIn) -> None:
    chat = chat_in(State.INTERRUPTING)
    chat.holder = None
    assert chat.commit().effective
    assert (chat.state, chat.roles[-2:]) == (State.IDLE, ["assistant", "notice"])


@pytest.mark.parametrize("fork", [Edit, Regenerate])
def test_s5_a_late_persist_is_refused_after_an_edit_moved_the_head(
    fork: type[Edit | Regenerate], chat_in: ChatIn
) -> None:
    chat = chat_in(State.RUNNING)
    late = make_worker_commands(chat, epoch=chat.epoch)
    role = "user" if fork is Edit else "assistant"
    chat.do(fork(message_id=chat.find_last(role).id))
    nodes = list(chat.nodes)
    for command in late:
        with pytest.raises(LeaseLost):
            chat.do(command)
    assert list(chat.nodes) == nodes


@pytest.mark.parametrize("state", BUSY)
def test_a_worker_can_not_begin_in_a_chat_that_it_does_not_hold(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    epoch, turn = chat.epoch, chat.open_turn
    chat.do(Release(epoch=epoch))
    orders: list[Command] = [
        StartAttempt(epoch=epoch, turn_id=turn.id),
        AnnounceRetry(epoch=epoch, turn_id=turn.id),
        KeepSummary(epoch=epoch, turn_id=turn.id),
        FinishTurn(epoch=epoch, turn_id=turn.id),
        Fail(epoch=epoch, turn_id=turn.id),
        FinishInterruption(epoch=epoch, turn_id=turn.id),
    ]
    for command in orders:
        with pytest.raises(LeaseLost):
            chat.do(command)
    assert (chat.state, chat.turn) == (state, turn)


@pytest.mark.parametrize("kind", BEGINNINGS)
@pytest.mark.parametrize("state", [State.INTERRUPTING, State.INTERRUPTING_QUEUED])
def test_nothing_can_begin_while_the_chat_is_being_stopped(state: State, kind: Beginning, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    before = chat.snapshot()
    with pytest.raises(Interrupted):
        chat.do(kind(epoch=chat.epoch, turn_id=chat.open_turn.id))
    assert chat.snapshot() == before


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_nothing_can_begin_in_a_turn_that_a_stop_has_ended(kind: Beginning, chat_in: ChatIn) -> None:
    chat = chat_in(State.INTERRUPTING_QUEUED)
    stopped = chat.open_turn.id
    chat.commit()
    with pytest.raises(Interrupted):
        chat.do(kind(epoch=chat.epoch, turn_id=stopped))
    assert (chat.attempt, chat.retry_told) == (None, False)


@pytest.mark.parametrize("state", BUSY)
def test_a_chat_of_a_live_worker_can_not_be_acquired(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    with pytest.raises(NotAllowed, match="live worker"):
        chat.do(Acquire(worker_id="another"))


@pytest.mark.parametrize("state", BUSY)
def test_acquiring_raises_the_epoch_and_closes_what_the_dead_worker_left_open(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    epoch, turn, attempt = chat.epoch, chat.open_turn, chat.open_attempt
    chat.alive.clear()
    chat.do(Acquire(worker_id="another"))
    assert (chat.epoch, chat.holder, chat.state) == (epoch + 1, "another", state)
    why = "interrupted" if state in {State.INTERRUPTING, State.INTERRUPTING_QUEUED} else "crashed"
    assert (chat.turn, chat.attempt, attempt.outcomes) == (turn, None, [why])
    assert chat.find_last("assistant").why == why


@pytest.mark.parametrize("state", [State.RUNNING, State.RUNNING_QUEUED])
def test_acquiring_adopts_an_attempt_whose_stream_was_complete(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    attempt = chat.open_attempt
    chat.say(calls=1, finish=True)
    chat.alive.clear()
    chat.do(Acquire(worker_id="another"))
    assert (chat.attempt, attempt.epoch, attempt.outcomes) == (attempt, chat.epoch, [])


@pytest.mark.parametrize("state", BUSY)
def test_edit_regenerate_and_delete_raise_the_epoch_and_close_the_open_attempt(state: State, chat_in: ChatIn) -> None:
    for make in (
        lambda chat: Edit(message_id=chat.find_last("user").id),
        lambda chat: Regenerate(message_id=chat.find_last("assistant").id),
        lambda chat: Delete(),
    ):
        chat = chat_in(state)
        epoch, turn, attempt = chat.epoch, chat.open_turn, chat.open_attempt
        chat.do(make(chat))
        assert (chat.epoch, chat.holder, chat.attempt) == (epoch + 1, None, None)
        assert (turn.outcomes, attempt.outcomes) == (["edited"], ["edited"])
        assert chat.find_last("assistant").why == "edited"


@pytest.mark.parametrize("state", BUSY)
def test_releasing_hands_over_and_keeps_the_turn(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    epoch, turn, attempt = chat.epoch, chat.open_turn, chat.open_attempt
    chat.do(Release(epoch=epoch))
    assert (chat.holder, chat.epoch, chat.state, chat.turn) == (None, epoch, state, turn)
    assert (attempt.outcomes, chat.find_last("assistant").why) == (["handed_over"], "handed_over")


@pytest.mark.parametrize("state", ANY)
def test_a_chat_can_be_deleted_from_any_state(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    chat.do(Delete())
    assert chat.state is State.NONE


@pytest.mark.parametrize("state", [State.IDLE_ARCHIVED, State.ERROR_ARCHIVED, State.ERROR_QUEUED_ARCHIVED])
def test_an_archived_chat_refuses_every_way_to_begin_something(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    user, reply = chat.find_last("user").id, chat.find_last("assistant").id
    orders = [Send(), SendSteer(), SendInterrupt(), Edit(message_id=user), Regenerate(message_id=reply), Retry()]
    for command in [*orders, Continue(), Compact(), SwitchBranch(message_id=user), Acquire(worker_id="worker")]:
        before = chat.snapshot()
        with pytest.raises(IndelibleError) as refusal:
            chat.do(command)
        assert isinstance(refusal.value, NotAllowed)
        assert chat.snapshot() == before
