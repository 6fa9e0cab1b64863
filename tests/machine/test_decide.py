"""What a command does to a chat, rule by rule: turns, and the calls that stand open (rule 3.0 and 3.2).

The chats are those of conftest.py: what is decided is carried out, and the tests look at what became of it.
Where a command may lead at all is test_transitions.py. The queue is test_queue_rules.py; stopping, and who may
write, is test_stop_and_lease.py; arbitrary histories are test_random_walk.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from indelible.errors import Invalid, NotAllowed, NotFound
from indelible.machine import Decision, State, effects
from indelible.machine.commands import (
    ActionExpired,
    Command,
    Compact,
    Continue,
    Create,
    Edit,
    FinishTurn,
    Interrupt,
    Regenerate,
    Retry,
    Send,
    SendInterrupt,
    SendSteer,
    SwitchBranch,
    ToolResults,
)
from indelible.machine.effects import AddMessage, AnswerOpenCalls, StartQueued

if TYPE_CHECKING:
    from tests.machine.conftest import Chat

    ChatIn = Callable[[State], Chat]

BUSY = [State.RUNNING, State.RUNNING_QUEUED, State.INTERRUPTING, State.INTERRUPTING_QUEUED]
IDLE = [State.IDLE, State.ERROR, State.ERROR_QUEUED]


def kinds(decision: Decision) -> list[type[effects.Effect]]:
    return [type(effect) for effect in decision.effects]


# --- turns (3.0) ---


def test_an_empty_chat_waits_and_one_with_a_message_runs(new_chat: Callable[[], Chat]) -> None:
    empty, first = new_chat(), new_chat()
    empty.do(Create())
    first.do(Create(with_message=True), "hello")
    assert (empty.state, empty.turns, empty.path) == (State.IDLE, [], [])
    assert (first.state, first.words, first.open_turn.message_id) == (State.RUNNING, ["hello"], first.head_id)


@pytest.mark.parametrize("command", [Retry(), Continue()])
def test_retry_and_continue_open_a_new_turn_for_the_same_message(command: Command, chat_in: ChatIn) -> None:
    chat = chat_in(State.ERROR)
    failed = chat.turns[-1]
    chat.do(command)
    assert (failed.outcomes, chat.open_turn.message_id) == (["failed"], failed.message_id)
    assert chat.open_turn is not failed


def test_retry_continues_a_visible_partial(chat_in: ChatIn) -> None:
    chat = chat_in(State.ERROR)
    chat.do(Retry())
    assert [(node.role, node.is_partial, node.is_hidden) for node in chat.path[-3:]] == [
        ("assistant", True, False),
        ("notice", False, False),
        ("user", False, True),
    ]


def test_retry_asks_anew_when_nothing_was_written(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.open_attempt.has_text = False
    chat.fail()
    chat.do(Retry())
    assert chat.roles[-2:] == ["user", "notice"]


def test_retry_of_a_failed_compaction_compacts_again(chat_in: ChatIn) -> None:
    chat = chat_in(State.IDLE)
    chat.do(Compact())
    chat.acquire()
    chat.start_attempt()
    chat.fail()
    chat.do(Retry())
    assert chat.open_turn.kind == "compaction"


def test_retry_is_refused_when_there_is_nothing_to_answer(chat_in: ChatIn) -> None:
    chat = chat_in(State.ERROR)
    chat.head_id = None
    with pytest.raises(NotAllowed, match="no message to answer"):
        chat.do(Retry())


def test_continue_is_refused_when_there_is_nothing_to_answer(chat_in: ChatIn) -> None:
    chat = chat_in(State.ERROR)
    chat.head_id = None
    with pytest.raises(NotAllowed, match="Nothing to continue: the chat has no message to answer"):
        chat.do(Continue())


def test_continue_is_refused_after_a_complete_reply(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.finish()
    with pytest.raises(NotAllowed, match="the last reply is complete"):
        chat.do(Continue())


@pytest.mark.parametrize("state", IDLE)
def test_compaction_is_a_turn_of_its_own_kind(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    chat.do(Compact())
    assert (chat.open_turn.kind, chat.has_error) == ("compaction", False)


@pytest.mark.parametrize("state", [*IDLE, *BUSY, State.REQUIRES_ACTION, State.REQUIRES_ACTION_QUEUED])
def test_edit_opens_a_new_turn_for_the_new_message_beside_the_old_one(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    old, before, queue = chat.find_last("user"), len(chat.turns), chat.queued
    chat.do(Edit(message_id=old.id), "rather this")
    new = chat.nodes[chat.open_turn.message_id or ""]
    assert (new.words, new.parent_id, chat.head_id) == ("rather this", old.parent_id, new.id)
    assert (len(chat.turns), chat.queued, chat.has_error) == (before + 1, queue, False)


@pytest.mark.parametrize("state", [*BUSY, State.REQUIRES_ACTION, State.REQUIRES_ACTION_QUEUED])
def test_edit_ends_running_work_on_the_old_branch(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    turn, attempt, user = chat.open_turn, chat.attempt, chat.find_last("user")
    chat.do(Edit(message_id=user.id))
    reply = chat.find_last("assistant")
    assert turn.outcomes == ["edited"]
    assert attempt is None or (attempt.outcomes == ["edited"] and reply.why == "edited")
    assert attempt is not None or chat.find_last("tool").why == "cancelled"
    assert reply.parent_id == user.id
    assert reply not in chat.path


@pytest.mark.parametrize("state", [*IDLE, *BUSY, State.REQUIRES_ACTION, State.REQUIRES_ACTION_QUEUED])
def test_regenerate_hangs_on_the_nearest_user_message_above(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    reply = chat.find_last("assistant")
    above = chat.nodes[reply.parent_id or ""]
    chat.do(Regenerate(message_id=reply.id))
    assert (above.role, chat.head_id, chat.open_turn.message_id) == ("user", above.id, above.id)


def test_regenerate_may_name_any_step_of_the_reply(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    user = chat.find_last("user")
    for _ in range(2):
        chat.say(calls=1)
        chat.commit()
        chat.start_attempt()
    chat.commit(failed=True)
    steps = [node for node in chat.path[chat.path.index(user) :] if node.role == "assistant"]
    assert len(steps) == 3
    for step in steps:
        chat.do(Regenerate(message_id=step.id))
        assert chat.head_id == user.id


@pytest.mark.parametrize("role", ["assistant", "tool", "notice"])
def test_edit_of_anything_but_a_user_message_is_invalid(role: str, chat_in: ChatIn) -> None:
    chat = chat_in(State.REQUIRES_ACTION)
    chat.do(Interrupt())
    with pytest.raises(Invalid):
        chat.do(Edit(message_id=chat.find_last(role).id))


@pytest.mark.parametrize("role", ["tool", "notice"])
def test_regenerate_of_anything_but_a_reply_or_a_question_is_invalid(role: str, chat_in: ChatIn) -> None:
    chat = chat_in(State.REQUIRES_ACTION)
    chat.do(Interrupt())
    with pytest.raises(Invalid):
        chat.do(Regenerate(message_id=chat.find_last(role).id))


def test_a_question_without_a_reply_can_be_answered_on_a_new_branch(chat_in: ChatIn) -> None:
    chat = chat_in(State.IDLE)
    question = chat.find_last("user")
    chat.do(Regenerate(message_id=question.id))
    assert (chat.head_id, chat.open_turn.message_id) == (question.id, question.id)


def test_a_reply_to_nobody_can_not_be_written_anew(chat_in: ChatIn) -> None:
    chat = chat_in(State.IDLE)
    reply = chat.find_last("assistant")
    reply.parent_id = None
    with pytest.raises(Invalid):
        chat.do(Regenerate(message_id=reply.id))


@pytest.mark.parametrize("command", [Edit(message_id="m"), Regenerate(message_id="m"), SwitchBranch(message_id="m")])
def test_a_message_that_is_not_there_is_not_found(command: Command, chat_in: ChatIn) -> None:
    with pytest.raises(NotFound):
        chat_in(State.IDLE).do(command)


@pytest.mark.parametrize("state", IDLE)
def test_switching_the_branch_changes_the_path_and_keeps_the_queue(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    queue, first = chat.queued, chat.path[0]
    decision = chat.do(SwitchBranch(message_id=first.id, exact=True))
    assert (decision.effects[0], chat.path, chat.queued) == (effects.MoveHead(message_id=first.id), [first], queue)
    assert chat.state is (State.ERROR_QUEUED if queue else State.IDLE)


def test_an_error_stays_where_it_happened(chat_in: ChatIn) -> None:
    chat = chat_in(State.ERROR)
    failed, first = chat.path[-1], chat.path[1]
    chat.do(SwitchBranch(message_id=first.id, exact=True))
    assert (chat.state, chat.has_error) == (State.IDLE, False)
    chat.do(SwitchBranch(message_id=first.id))
    assert (chat.state, chat.has_error, chat.head_id) == (State.ERROR, True, failed.id)


def test_a_branch_never_leaves_a_call_behind_its_results(chat_in: ChatIn) -> None:
    chat = chat_in(State.REQUIRES_ACTION)
    calling = chat.find_last("assistant")
    chat.do(Interrupt())
    chat.do(SwitchBranch(message_id=calling.id, exact=True))
    assert (chat.roles[-2:], chat.awaiting) == (["assistant", "tool"], ())


@pytest.mark.parametrize("state", [State.REQUIRES_ACTION, State.REQUIRES_ACTION_QUEUED])
def test_tool_results_continue_the_open_turn(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    turn = chat.open_turn
    chat.do(ToolResults(call_ids=tuple(reversed(chat.awaiting))))
    assert (chat.turn, turn.outcomes, chat.awaiting, chat.roles[-1]) == (turn, [], (), "tool")


@pytest.mark.parametrize("take", [slice(0), slice(1), slice(3)], ids=["none", "too few", "one twice"])
def test_tool_results_must_match_exactly(take: slice, chat_in: ChatIn) -> None:
    chat = chat_in(State.REQUIRES_ACTION)
    with pytest.raises(Invalid):
        chat.do(ToolResults(call_ids=(*chat.awaiting, chat.awaiting[0])[take]))
    with pytest.raises(Invalid):
        chat.do(ToolResults(call_ids=(chat.awaiting[0], "another")))


def test_results_of_a_turn_that_has_ended_do_not_answer_a_later_call(chat_in: ChatIn) -> None:
    """The ids of calls may be the same."""
    chat = chat_in(State.REQUIRES_ACTION)
    with pytest.raises(NotAllowed, match="Too late"):
        chat.do(ToolResults(call_ids=chat.awaiting, turn_id="turn_before"))
    chat.do(ToolResults(call_ids=chat.awaiting, turn_id=chat.open_turn.id))


def test_only_one_of_two_submits_wins(chat_in: ChatIn) -> None:
    chat = chat_in(State.REQUIRES_ACTION)
    results = ToolResults(call_ids=chat.awaiting)
    chat.do(results)
    with pytest.raises(NotAllowed):
        chat.do(results)


def test_an_expired_action_is_answered_and_the_turn_goes_on(chat_in: ChatIn) -> None:
    chat = chat_in(State.REQUIRES_ACTION)
    turn = chat.open_turn
    decision = chat.do(ActionExpired(turn_id=turn.id))
    assert decision.effects[0] == AnswerOpenCalls(reason="expired")
    assert (chat.state, chat.turn) == (State.RUNNING, turn)


def test_an_expiry_that_was_meant_for_the_last_wait_does_not_end_the_next_one(chat_in: ChatIn) -> None:
    chat = chat_in(State.REQUIRES_ACTION)
    chat.do(ToolResults(call_ids=chat.awaiting))
    chat.acquire()
    chat.start_attempt()
    chat.say(calls=1)
    chat.await_action()
    assert chat.do(ActionExpired(turn_id=chat.open_turn.id)) == Decision(effective=False)
    assert chat.state is State.REQUIRES_ACTION


def test_finish_turn_with_a_queue_keeps_holder_and_epoch_for_the_next_turn(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING_QUEUED)
    turn, epoch, (words,) = chat.open_turn, chat.epoch, chat.queued
    chat.finish()
    assert (chat.holder, chat.epoch, chat.state) == ("worker", epoch, State.RUNNING)
    assert turn.outcomes == ["complete"]
    assert chat.nodes[chat.open_turn.message_id or ""].words == words


def test_finish_turn_without_a_queue_lets_go(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    turn, attempt = chat.open_turn, chat.open_attempt
    chat.finish()
    assert (chat.holder, turn.outcomes, attempt.outcomes) == (None, ["complete"], ["complete"])
    assert chat.roles[-1] == "assistant"


def test_a_model_that_wrote_nothing_leaves_a_notice(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.open_attempt.has_text = False
    decision = chat.do(FinishTurn(epoch=chat.epoch, turn_id=chat.open_turn.id))
    assert effects.AddNotice(kind="empty") in decision.effects
    assert chat.roles[-2:] == ["user", "notice"]


def test_a_takeover_that_finds_the_turn_answered_ends_it_without_a_notice(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.commit()
    chat.do(FinishTurn(epoch=chat.epoch, turn_id=chat.open_turn.id))
    assert (chat.state, chat.roles[-1]) == (State.IDLE, "assistant")


def test_awaiting_action_keeps_the_turn_and_lets_go_of_the_chat(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    turn, attempt = chat.open_turn, chat.open_attempt
    chat.say(calls=1)
    decision = chat.await_action()
    assert attempt.outcomes == ["complete"]
    assert (chat.state, chat.turn, chat.attempt, chat.holder, len(chat.awaiting)) == (
        State.REQUIRES_ACTION,
        turn,
        None,
        None,
        1,
    )
    assert effects.SetDeadline() in decision.effects


def test_a_failed_turn_keeps_its_partial_and_its_queue(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING_QUEUED)
    turn, attempt, queue = chat.open_turn, chat.open_attempt, chat.queued
    chat.fail()
    assert (chat.state, chat.has_error, chat.holder, chat.queued) == (State.ERROR_QUEUED, True, None, queue)
    assert (turn.outcomes, attempt.outcomes) == (["failed"], ["failed"])
    assert [(node.role, node.why) for node in chat.path[-2:]] == [("assistant", "failed"), ("notice", "failed")]


def test_a_failed_step_is_kept_and_the_model_is_asked_to_go_on(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    turn, attempt = chat.open_turn, chat.open_attempt
    chat.commit(failed=True)
    assert (chat.state, chat.turn, attempt.outcomes) == (State.RUNNING, turn, ["failed"])
    assert [(node.why, node.is_hidden) for node in chat.path[-2:]] == [("failed", False), (None, True)]


def test_a_new_attempt_drops_the_one_that_showed_nothing(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    attempt = chat.open_attempt
    chat.start_attempt()
    assert (attempt.outcomes, chat.open_attempt is attempt, chat.roles[-1]) == (["reset"], False, "user")


# --- open calls (3.2) ---


@pytest.mark.parametrize("state", [State.REQUIRES_ACTION, State.REQUIRES_ACTION_QUEUED])
def test_an_interrupt_send_answers_the_calls_before_its_message_enters(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    turn, queue = chat.open_turn, chat.queued
    decision = chat.do(SendInterrupt(), "never mind")
    assert kinds(decision).index(AnswerOpenCalls) < kinds(decision).index(AddMessage)
    assert (chat.roles[-3:], chat.words[-1]) == (["assistant", "tool", "user"], "never mind")
    assert (chat.find_last("tool").why, chat.open_turn.message_id) == ("cancelled", chat.head_id)
    assert (turn.outcomes, chat.queued) == (["interrupted"], queue)


@pytest.mark.parametrize("command", [Send(), SendInterrupt(), SendSteer(), Continue(), Compact()])
def test_whatever_leaves_an_idle_chat_first_answers_calls_that_stand_open_on_its_path(
    command: Command, chat_in: ChatIn
) -> None:
    chat = chat_in(State.REQUIRES_ACTION)
    calling = chat.find_last("assistant")
    chat.do(Interrupt())
    chat.head_id = calling.id  # as chats of before may be: today its results come along
    calling.is_partial = isinstance(command, Continue)
    assert chat.awaiting == calling.calls != ()
    assert chat.do(command).effects[0] == AnswerOpenCalls(reason="cancelled")


@pytest.mark.parametrize("command", [Send(), Retry()])
def test_a_failed_chat_first_answers_calls_that_stand_open_on_its_path(command: Command, chat_in: ChatIn) -> None:
    for state in (State.ERROR, State.ERROR_QUEUED):
        chat = chat_in(state)
        chat.nodes[chat.head_id or ""].calls = ("call",)
        chat.nodes[chat.head_id or ""].role = "assistant"
        decision = chat.do(command)
        assert decision.effects[0] == AnswerOpenCalls(reason="cancelled")
        assert (StartQueued in kinds(decision)) is (state is State.ERROR_QUEUED and isinstance(command, Send))


@pytest.mark.parametrize("state", [State.ERROR, State.ERROR_QUEUED])
@pytest.mark.parametrize("command", [Send(), SendInterrupt(), SendSteer(), Retry(), Continue(), Compact()])
def test_leaving_an_error_clears_it(command: Command, state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    assert chat.has_error
    chat.do(command)
    assert not chat.has_error
