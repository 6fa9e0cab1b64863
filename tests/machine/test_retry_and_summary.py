"""What is said of a chat beside its conversation: titles and the like, retries, and summaries (rule 2.3, 5.7, 6).

None of it leads to another state. On real databases this is tests/store/test_retry_in_store.py and
tests/store/test_history_in_store.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from indelible.errors import LeaseLost, NotAllowed
from indelible.machine import Decision, State, effects
from indelible.machine.commands import (
    Acquire,
    AnnounceRetry,
    Compact,
    Continue,
    Edit,
    FinishTurn,
    Interrupt,
    KeepSummary,
    Release,
    Retry,
    SwitchBranch,
    UpdateChat,
)
from indelible.machine.effects import CloseAttempt, ReplyLimit

if TYPE_CHECKING:
    from tests.machine.conftest import Chat

    ChatIn = Callable[[State], Chat]

ANY = [state for state in State if state is not State.NONE]
RUNNING = [State.RUNNING, State.RUNNING_QUEUED]


def announce(chat: Chat) -> Decision:
    return chat.do(AnnounceRetry(epoch=chat.epoch, turn_id=chat.open_turn.id))


# --- describe ---


@pytest.mark.parametrize("state", ANY)
def test_a_chat_can_be_described_in_any_state_and_nothing_else_changes(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    epoch, path, attempt = chat.epoch, chat.path, chat.attempt
    assert chat.do(UpdateChat()).effects == (effects.UpdateMetadata(),)
    assert (chat.state, chat.epoch, chat.path, chat.attempt) == (state, epoch, path, attempt)


@pytest.mark.parametrize("state", ANY)
def test_a_title_that_was_thought_of_does_not_replace_one_that_is_there(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    assert chat.do(UpdateChat(only_untitled=True)).effective
    assert chat.titled
    assert chat.do(UpdateChat(only_untitled=True)) == Decision(effective=False)
    assert chat.do(UpdateChat()).effective, "whoever means it may change it"


# --- announce_retry ---


@pytest.mark.parametrize("state", RUNNING)
def test_a_retry_that_is_announced_drops_the_attempt_that_failed(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    attempt, turn, path = chat.open_attempt, chat.open_turn, chat.path
    assert announce(chat).effects == (effects.ScheduleRetry(),)
    assert (attempt.outcomes, chat.attempt, chat.turn, chat.path) == (["reset"], None, turn, path)
    assert (chat.state, chat.holder, chat.retry_told) == (state, "worker", True)


def test_a_retry_can_be_announced_when_the_attempt_was_kept_already(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.commit(failed=True)
    announce(chat)
    assert (chat.retry_told, chat.attempt) == (True, None)


def test_the_next_attempt_ends_the_wait(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    announce(chat)
    chat.start_attempt()
    assert (chat.retry_told, chat.open_attempt.outcomes) == (False, [])


def test_a_stop_in_the_wait_ends_the_turn_and_the_wait(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    announce(chat)
    chat.do(Interrupt())
    assert (chat.state, chat.retry_told) == (State.INTERRUPTING, True)
    chat.finish_interruption()
    assert (chat.state, chat.retry_told, chat.roles[-1]) == (State.IDLE, False, "notice")


def test_a_failure_in_the_wait_ends_it(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    announce(chat)
    chat.start_attempt()
    chat.fail()
    assert (chat.state, chat.retry_told) == (State.ERROR, False)


@pytest.mark.parametrize("way", ["takeover", "edit", "hand-over"])
def test_whoever_raises_the_epoch_ends_the_wait(way: str, chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    announce(chat)
    if way == "edit":
        chat.do(Edit(message_id=chat.find_last("user").id))
    else:
        if way == "hand-over":
            chat.do(Release(epoch=chat.epoch))
            assert chat.retry_told, "it is still what the chat waits for"
        chat.alive.clear()
        chat.do(Acquire(worker_id="another"))
    assert (chat.state, chat.retry_told) == (State.RUNNING, False)


# --- summaries ---


def test_a_summary_on_the_way_is_put_where_the_conversation_ends_and_the_turn_goes_on(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.commit()
    turn = chat.open_turn
    chat.do(KeepSummary(epoch=chat.epoch, turn_id=turn.id))
    assert (chat.path[-1].why, chat.path[-1].is_hidden, chat.turn, chat.state) == ("summary", True, turn, State.RUNNING)


def test_a_summary_is_no_message_of_the_user(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    asked = chat.open_turn.message_id
    chat.commit()
    chat.do(KeepSummary(epoch=chat.epoch, turn_id=chat.open_turn.id))
    assert chat.snapshot().last_user_id == asked


def test_a_finished_compaction_leaves_its_summary_and_a_notice(chat_in: ChatIn) -> None:
    chat = chat_in(State.IDLE)
    chat.do(Compact())
    chat.acquire()
    turn = chat.open_turn
    chat.do(FinishTurn(epoch=chat.epoch, turn_id=turn.id))
    assert [(node.role, node.why) for node in chat.path[-2:]] == [("user", "summary"), ("notice", "compacted")]
    assert (chat.state, turn.outcomes) == (State.IDLE, ["complete"])


def test_a_compaction_without_text_is_not_called_empty(chat_in: ChatIn) -> None:
    chat = chat_in(State.IDLE)
    chat.do(Compact())
    chat.acquire()
    chat.start_attempt()
    chat.open_attempt.has_text = False
    decision = chat.do(FinishTurn(epoch=chat.epoch, turn_id=chat.open_turn.id))
    assert [effect.kind for effect in decision.effects if isinstance(effect, effects.AddNotice)] == ["compacted"]


def test_a_compaction_that_was_stopped_leaves_no_summary(chat_in: ChatIn) -> None:
    chat = chat_in(State.IDLE)
    chat.do(Compact())
    chat.acquire()
    chat.do(Interrupt())
    chat.do(FinishTurn(epoch=chat.epoch, turn_id=chat.open_turn.id))
    assert "summary" not in [node.why for node in chat.path]
    assert chat.path[-1].why == "stopped"


def test_only_a_compaction_leaves_a_summary(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    assert effects.AddSummary() not in chat.finish().effects


@pytest.mark.parametrize("kind", [AnnounceRetry, KeepSummary])
def test_a_worker_that_let_go_can_tell_nothing(kind: type[AnnounceRetry | KeepSummary], chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    late = kind(epoch=chat.epoch, turn_id=chat.open_turn.id)
    chat.do(Release(epoch=chat.epoch))
    with pytest.raises(LeaseLost):
        chat.do(late)
    assert not chat.retry_told


# --- continue looks past the answers of tools ---


def test_a_reply_that_was_cut_in_the_middle_of_its_tools_can_be_continued(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.say(calls=1)
    chat.do(Interrupt())
    chat.finish_interruption()
    assert chat.roles[-3:] == ["assistant", "tool", "notice"]
    chat.do(Continue())
    assert (chat.state, chat.roles[-1]) == (State.RUNNING, "notice"), "the model goes on with the answers"


def test_a_reply_that_is_whole_can_not_be_continued_for_the_answers_behind_it(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.say(calls=1, finish=True)
    chat.commit()
    chat.start_attempt()
    chat.fail()
    chat.do(SwitchBranch(message_id=chat.find_last("tool").id, exact=True))
    with pytest.raises(NotAllowed, match="no text of a reply was cut off"):
        chat.do(Continue())


def test_a_reply_that_was_stopped_before_its_first_word_can_not_be_continued_and_is_not_called_complete(
    chat_in: ChatIn,
) -> None:
    chat = chat_in(State.RUNNING)
    chat.open_attempt.has_text = False
    chat.do(Interrupt())
    chat.finish_interruption()
    with pytest.raises(NotAllowed, match="no text of a reply was cut off"):
        chat.do(Continue())
    chat.do(Retry())
    assert chat.state is State.RUNNING


def test_a_question_that_has_no_reply_can_be_retried_in_an_idle_chat(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.open_attempt.has_text = False
    chat.do(Interrupt())
    chat.finish_interruption()
    question = chat.find_last("user")
    chat.do(Retry())
    assert (chat.state, chat.open_turn.message_id, chat.roles[-1]) == (State.RUNNING, question.id, "notice")


def test_a_complete_reply_is_not_retried(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.say(finish=True)
    chat.finish()
    with pytest.raises(NotAllowed, match="Nothing to retry: the last reply is complete"):
        chat.do(Retry())


def test_results_that_nobody_read_are_retried(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.say(calls=1, finish=True)
    chat.commit()
    chat.do(Interrupt())
    chat.finish_interruption()
    chat.do(Retry())
    assert chat.state is State.RUNNING


@pytest.mark.parametrize("limit", ["length", "content_filter", "max_steps"])
def test_a_limit_that_ended_a_reply_is_noted(limit: ReplyLimit, chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.say(finish=True)
    turn_id, attempt_id = chat.open_turn.id, chat.open_attempt.id
    decision = chat.do(FinishTurn(epoch=chat.epoch, turn_id=turn_id, attempt_id=attempt_id, limit=limit))
    assert decision.effects[0] == CloseAttempt(outcome="complete", reason=limit)
    assert (chat.path[-1].role, chat.path[-1].why) == ("notice", limit)
