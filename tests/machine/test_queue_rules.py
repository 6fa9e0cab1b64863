"""The queue: one order, where a message goes in, and when it leaves (rule 3.0, *Queue*)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from indelible.errors import Invalid, NotFound
from indelible.machine import State, effects
from indelible.machine.commands import (
    DeleteQueued,
    EditQueued,
    PromoteQueued,
    ReorderQueue,
    Send,
    SendInterrupt,
    SendSteer,
)

if TYPE_CHECKING:
    from tests.machine.conftest import Chat

    ChatIn = Callable[[State], Chat]


def test_the_queue_is_ordered_by_rank_and_first_in_first_out_within(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    for round_ in "12":
        for kind, words in ((Send, "plain"), (SendSteer, "steer"), (Send, "promoted")):
            chat.do(kind(), words + round_)
    for promoted in ("promoted1", "promoted2"):
        chat.do(PromoteQueued(queued_id=next(row.id for row in chat.queue if row.words == promoted)))
    for round_ in "12":
        chat.do(SendInterrupt(), "interrupt" + round_)
    assert chat.queued == [
        *("promoted1", "promoted2", "interrupt1", "interrupt2", "steer1", "steer2", "plain1", "plain2"),
    ]


def test_reordering_is_free_and_stays(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    for kind, words in ((Send, "plain"), (SendSteer, "steer"), (SendInterrupt, "interrupt")):
        chat.do(kind(), words)
    chat.do(ReorderQueue(queued_ids=tuple(row.id for row in reversed(chat.queue))))
    assert chat.queued == ["plain", "steer", "interrupt"]
    chat.do(Send(), "late")
    chat.do(PromoteQueued(queued_id=chat.queue[1].id))
    assert chat.queued == ["steer", "plain", "interrupt", "late"]


def test_a_new_order_must_be_a_permutation(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING_QUEUED)
    chat.do(Send())
    first, second = (row.id for row in chat.queue)
    for order in ((), (first,), (first, first), (first, "another"), (first, second, second)):
        with pytest.raises(Invalid):
            chat.do(ReorderQueue(queued_ids=order))


@pytest.mark.parametrize("kind", [DeleteQueued, EditQueued, PromoteQueued])
@pytest.mark.parametrize(
    "state", [State.RUNNING_QUEUED, State.INTERRUPTING_QUEUED, State.REQUIRES_ACTION_QUEUED, State.ERROR_QUEUED]
)
def test_a_queued_message_that_is_not_there_is_not_found(
    kind: type[DeleteQueued | EditQueued | PromoteQueued], state: State, chat_in: ChatIn
) -> None:
    with pytest.raises(NotFound):
        chat_in(state).do(kind(queued_id="taken meanwhile"))


def test_a_queued_message_can_be_rewritten_and_taken_out(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING_QUEUED)
    chat.do(Send(), "second")
    chat.do(EditQueued(queued_id=chat.queue[0].id), "first, anew")
    assert chat.queued == ["first, anew", "second"]
    chat.do(DeleteQueued(queued_id=chat.queue[0].id))
    assert chat.queued == ["second"]


@pytest.mark.parametrize("state", [State.ERROR_QUEUED, State.REQUIRES_ACTION_QUEUED])
def test_a_promoted_message_is_answered_at_once_where_nothing_runs(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    chat.do(Send() if state is State.REQUIRES_ACTION_QUEUED else EditQueued(queued_id=chat.queue[0].id), "first")
    (row, *others), open_turn = chat.queue[::-1], chat.turn
    chat.do(PromoteQueued(queued_id=row.id))
    assert (chat.words[-1], chat.queue, chat.has_error) == (row.words, others[::-1], False)
    assert open_turn is None or (open_turn.outcomes, chat.find_last("tool").why) == (["interrupted"], "cancelled")


@pytest.mark.parametrize("state", [State.RUNNING_QUEUED, State.INTERRUPTING_QUEUED])
def test_a_promoted_message_goes_to_the_front_and_stops_the_turn(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    chat.do(SendInterrupt(), "urgent")
    chat.do(PromoteQueued(queued_id=chat.queue[-1].id))
    assert (chat.queued[-1], chat.queue[0].if_busy, chat.state) == ("urgent", "promoted", State.INTERRUPTING_QUEUED)


def test_promoting_twice_never_moves_a_message_back(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING_QUEUED)
    chat.do(Send())
    first, second = (row.id for row in chat.queue)
    for promoted in (first, second, first, second):
        chat.do(PromoteQueued(queued_id=promoted))
        assert [row.id for row in chat.queue] == [first, second]


def test_steers_move_into_the_running_turn_with_its_next_step(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING_QUEUED)
    turn, (plain,) = chat.open_turn, chat.queued
    chat.do(SendSteer(), "left")
    chat.do(SendSteer(), "now right")
    chat.commit()
    assert (chat.turn, chat.words[-2:], chat.queued) == (turn, ["left", "now right"], [plain])


def test_the_last_step_moves_no_steer_in_and_the_first_one_is_the_next_turn(chat_in: ChatIn) -> None:
    chat = chat_in(State.RUNNING)
    chat.do(SendSteer(), "left")
    chat.do(SendSteer(), "right")
    assert effects.InsertSteers() not in chat.finish().effects
    assert (chat.words[-1], chat.queued) == ("left", ["right"])
    chat.start_attempt()
    chat.commit()
    assert (chat.words[-1], chat.queued) == ("right", [])


@pytest.mark.parametrize("kind", [Send, SendSteer, SendInterrupt])
def test_sending_to_a_failed_chat_answers_the_front_of_its_queue(
    kind: type[Send | SendSteer | SendInterrupt], chat_in: ChatIn
) -> None:
    chat = chat_in(State.RUNNING_QUEUED)
    chat.do(Send(), "behind")
    front = chat.queued[0]
    chat.fail()
    chat.do(kind(), "new")
    assert (chat.words[-1], chat.queued, chat.has_error) == (front, ["behind", "new"], False)


@pytest.mark.parametrize("state", [State.INTERRUPTING_QUEUED, State.REQUIRES_ACTION_QUEUED])
def test_a_steer_with_nothing_to_steer_is_a_plain_message(state: State, chat_in: ChatIn) -> None:
    chat = chat_in(state)
    chat.do(SendSteer(), "steer")
    assert (chat.queued[-1], chat.queue[-1].if_busy, chat.state) == ("steer", "queue", state)
