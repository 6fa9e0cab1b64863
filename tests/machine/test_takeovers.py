"""Taking a chat from a worker that died: what is closed, what is adopted, and how often it may happen (R3).

A turn whose workers die again and again may be what kills them, so it has a budget: it fails at the third takeover
in a row that found nothing new, and at the tenth in any case. What was handed over is nobody's death and costs
nothing. On real databases this is tests/store/test_takeover_budget.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from indelible.errors import LeaseLost
from indelible.machine import Decision, State, effects
from indelible.machine.commands import (
    Acquire,
    CommitStep,
    FinishInterruption,
    Interrupt,
    Release,
    Retry,
    Send,
    StartAttempt,
)
from indelible.machine.decide_worker import MAX_STALLED_TAKEOVERS, MAX_TAKEOVERS

if TYPE_CHECKING:
    from tests.machine.conftest import Chat

    ChatIn = Callable[[State], Chat]

RUNNING = [State.RUNNING, State.RUNNING_QUEUED]
INTERRUPTING = [State.INTERRUPTING, State.INTERRUPTING_QUEUED]


def take_over(chat: Chat) -> Decision:
    """The holder dies and another takes the chat."""
    chat.alive.clear()
    return chat.do(Acquire(worker_id=f"after {chat.holder}"))


def count(chat: Chat) -> tuple[int, int]:
    return chat.open_turn.takeovers, chat.open_turn.stalled


def begin_silently(chat: Chat) -> None:
    """A turn whose worker has said nothing yet."""
    chat.do(Send())
    chat.acquire()


# --- what counts ---


def test_the_budgets_are_the_ones_of_the_design() -> None:
    assert (MAX_STALLED_TAKEOVERS, MAX_TAKEOVERS) == (3, 10)


def test_a_takeover_that_finds_something_new_is_counted_and_not_barren(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    take_over(chat)
    assert count(chat) == (1, 0)
    take_over(chat)
    assert count(chat) == (2, 1)


def test_the_first_takeover_of_a_turn_without_text_is_barren_already(chat_in: ChatIn) -> None:
    chat = chat_in(State.IDLE)
    begin_silently(chat)
    take_over(chat)
    assert count(chat) == (1, 1)


def test_text_begins_the_row_of_barren_takeovers_anew(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    for _ in range(3):
        take_over(chat)
    assert count(chat) == (3, 2)
    chat.start_attempt()
    take_over(chat)
    assert count(chat) == (4, 0)


def test_thinking_alone_is_something_new(chat_in: ChatIn) -> None:
    chat = chat_in(State.IDLE)
    begin_silently(chat)
    chat.do(StartAttempt(epoch=chat.epoch, turn_id=chat.open_turn.id))
    chat.say(text=False)
    take_over(chat)
    assert count(chat) == (1, 0)


@pytest.mark.parametrize("state", RUNNING)
def test_taking_what_nobody_held_or_what_was_handed_over_does_not_count(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    for _ in range(MAX_TAKEOVERS + 1):
        chat.do(Release(epoch=chat.epoch))
        take_over(chat)
        assert count(chat) == (0, 0)
    assert chat.state is state


@pytest.mark.parametrize("state", INTERRUPTING)
def test_a_turn_that_is_being_stopped_is_not_counted_and_never_given_up(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    for _ in range(MAX_TAKEOVERS + 1):
        take_over(chat)
    assert (chat.state, count(chat)) == (state, (0, 0))


def test_the_next_turn_has_a_budget_of_its_own(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING_QUEUED)
    for _ in range(3):
        take_over(chat)
    chat.start_attempt()
    chat.finish()
    assert count(chat) == (0, 0)
    take_over(chat)
    assert (chat.state, count(chat)) == (State.RUNNING, (1, 1))


def test_a_takeover_of_an_adopted_attempt_whose_tools_do_not_settle_is_barren(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    attempt = chat.open_attempt
    chat.say(calls=1, finish=True)
    for expected in ((1, 0), (2, 1), (3, 2)):
        take_over(chat)
        assert (chat.attempt, count(chat)) == (attempt, expected)
    take_over(chat)
    assert (chat.state, attempt.outcomes, chat.roles[-3:]) == (
        State.ERROR,
        ["crashed"],
        ["assistant", "tool", "notice"],
    )


def test_a_settled_tool_of_an_adopted_attempt_is_something_new(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.say(calls=2, finish=True)
    for _ in range(MAX_STALLED_TAKEOVERS + 1):
        take_over(chat)
        chat.say(text=False)
    assert count(chat) == (MAX_STALLED_TAKEOVERS + 1, 0)


# --- giving up ---


def expect_given_up(chat: Chat, decision: Decision) -> None:
    assert decision.effective
    assert (chat.has_error, chat.holder, chat.turn, chat.attempt) == (True, None, None, None)
    assert chat.turns[-1].outcomes == ["failed"]
    assert (chat.path[-1].role, chat.path[-1].why) == ("notice", "crashed")
    assert effects.SetError(kind="crashed") in decision.effects


@pytest.mark.parametrize("state", RUNNING)
def test_the_third_barren_takeover_in_a_row_fails_the_turn_and_keeps_what_was_written(
    state: State, chat_in: ChatIn
) -> None:
    chat = chat_in(state)
    queued = chat.queued
    for _ in range(MAX_STALLED_TAKEOVERS):
        take_over(chat)
        assert chat.state is state
    expect_given_up(chat, take_over(chat))
    assert (chat.state, chat.queued) == (State.ERROR_QUEUED if queued else State.ERROR, queued)
    assert chat.find_last("assistant").why == "crashed"


@pytest.mark.parametrize("state", RUNNING)
def test_the_tenth_takeover_fails_the_turn_however_much_was_written(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    for number in range(1, MAX_TAKEOVERS):
        take_over(chat)
        assert count(chat) == (number, 0)
        chat.start_attempt()
    attempt = chat.open_attempt
    expect_given_up(chat, take_over(chat))
    assert (attempt.outcomes, [node.role for node in chat.path[-2:]]) == (["crashed"], ["assistant", "notice"])


def test_giving_up_raises_the_epoch_so_that_the_last_holder_can_write_no_more(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    for _ in range(MAX_STALLED_TAKEOVERS):
        take_over(chat)
    chat.start_attempt()
    late = CommitStep(epoch=chat.epoch, turn_id=chat.open_turn.id, attempt_id=chat.open_attempt.id)
    chat.open_turn.takeovers = MAX_TAKEOVERS - 1
    take_over(chat)
    assert chat.state is State.ERROR
    with pytest.raises(LeaseLost):
        chat.do(late)


def test_a_turn_that_was_given_up_can_be_tried_again_with_a_new_budget(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    message_id = chat.open_turn.message_id
    for _ in range(MAX_STALLED_TAKEOVERS + 1):
        take_over(chat)
    chat.do(Retry())
    assert (chat.open_turn.message_id, count(chat), chat.has_error) == (message_id, (0, 0), False)
    chat.acquire()
    assert (chat.state, chat.holder, count(chat)) == (State.RUNNING, "worker", (0, 0))


# --- what is closed, adopted, and asked to go on ---


def hidden(chat: Chat) -> list[str]:
    """What only the model sees, each by the role of what it follows."""
    return [chat.nodes[node.parent_id or ""].role for node in chat.path if node.is_hidden]


def test_a_partial_that_was_cut_by_a_crash_is_followed_by_one_instruction_to_go_on(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    take_over(chat)
    take_over(chat)
    assert [(node.role, node.is_partial, node.is_hidden) for node in chat.path[-2:]] == [
        ("assistant", True, False),
        ("user", False, True),
    ]
    assert hidden(chat) == ["assistant"]


def test_a_partial_that_was_handed_over_is_followed_by_one_instruction_when_somebody_takes_it(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.do(Release(epoch=chat.epoch))
    assert (chat.find_last("assistant").why, hidden(chat)) == ("handed_over", [])
    take_over(chat)
    chat.do(Release(epoch=chat.epoch))
    take_over(chat)
    assert hidden(chat) == ["assistant"]


def test_answered_calls_need_no_instruction_to_go_on(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.say(calls=1)
    take_over(chat)
    assert (chat.roles[-2:], hidden(chat)) == (["assistant", "tool"], [])


def test_an_attempt_that_showed_nothing_needs_no_instruction_either(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.open_attempt.has_text = False
    take_over(chat)
    assert (chat.roles[-1], hidden(chat)) == ("user", [])


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("state", INTERRUPTING)
def test_in_a_stop_the_attempt_is_closed_as_stopped_complete_or_not(
    state: State, finished: bool, chat_in: ChatIn
) -> None:
    chat = chat_in(state)
    attempt, turn = chat.open_attempt, chat.open_turn
    chat.say(calls=1, finish=finished)
    take_over(chat)
    assert (chat.state, chat.attempt, attempt.outcomes) == (state, None, ["interrupted"])
    assert (chat.roles[-2:], hidden(chat)) == (["assistant", "tool"], [])
    assert chat.find_last("assistant").is_partial is not finished
    chat.do(FinishInterruption(epoch=chat.epoch, turn_id=turn.id))
    assert turn.outcomes == ["interrupted"]


# --- handing over ---


@pytest.mark.parametrize("state", RUNNING)
def test_a_whole_reply_stays_open_when_its_worker_leaves_and_is_adopted(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    attempt, turn, epoch = chat.open_attempt, chat.open_turn, chat.epoch
    chat.say(calls=1, finish=True)
    assert chat.do(Release(epoch=epoch)).effects == (effects.LeaveAttempt(), effects.ClearHolder())
    assert (chat.holder, chat.attempt, attempt.outcomes) == (None, attempt, [])
    take_over(chat)
    assert (chat.attempt, attempt.epoch, chat.turn, count(chat)) == (attempt, epoch + 1, turn, (0, 0))


@pytest.mark.parametrize("state", INTERRUPTING)
def test_a_whole_reply_of_a_chat_that_is_being_stopped_is_handed_over_closed(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    attempt = chat.open_attempt
    chat.say(calls=1, finish=True)
    chat.do(Release(epoch=chat.epoch))
    assert (chat.holder, chat.attempt, attempt.outcomes) == (None, None, ["handed_over"])


def test_a_whole_reply_that_nobody_holds_can_be_stopped(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    attempt = chat.open_attempt
    chat.say(calls=1, finish=True)
    chat.do(Release(epoch=chat.epoch))
    chat.do(Interrupt())
    assert (chat.state, attempt.outcomes) == (State.IDLE, ["interrupted"])
    assert chat.roles[-3:] == ["assistant", "tool", "notice"]


def test_whoever_left_a_whole_reply_open_may_still_keep_it_until_somebody_takes_the_chat(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.say(finish=True)
    late = CommitStep(epoch=chat.epoch, turn_id=chat.open_turn.id, attempt_id=chat.open_attempt.id)
    chat.do(Release(epoch=chat.epoch))
    assert chat.do(late).effective
    assert (chat.attempt, chat.roles[-1]) == (None, "assistant")
