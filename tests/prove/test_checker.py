"""The checker: it has nothing to say about a history that keeps the promises, and finds whatever breaks one."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.prove.histories import BREAKS, PLAIN, Author, History, histories, make_event, make_evidence

from indelible.prove.checks import check_chat, check_effects
from indelible.prove.evidence import Evidence, Fault, describe_difference
from indelible.prove.script import Wish, draw_wish, find_reply
from indelible.prove.tools import ToolRun


def find_faults(evidence: Evidence) -> list[str]:
    return [fault.sentence for fault in check_chat(evidence, find_reply)]


@given(histories())
def test_a_history_that_keeps_the_promises_has_no_fault(history: History) -> None:
    assert find_faults(make_evidence(history)) == []


@given(histories(), st.data())
def test_a_reader_may_learn_of_the_queue_anywhere_between_rows(history: History, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(history.events) - 1))
    told = make_event("queue", {"ids": ["queued_1"], "queue": []})
    rows_end = next(place for place, event in enumerate(history.events[at:], at) if event.kind != "part")
    other = [*history.events[:rows_end], told, *history.events[rows_end:]]
    history.events = [*history.events[:at], told, *history.events[at:]]

    assert find_faults(make_evidence(history, other)) == []


@pytest.mark.parametrize("kind", BREAKS)
@given(histories(), st.data())
def test_whatever_goes_wrong_for_one_reader_is_found(kind: str, history: History, data: st.DataObject) -> None:
    seen = list(history.events)
    BREAKS[kind](seen, data.draw(st.integers(0, len(seen) - 1)))
    assume(seen != history.events)

    assert find_faults(make_evidence(history, history.events, seen)) != []


@pytest.mark.parametrize("kind", BREAKS)
@given(histories(), st.data())
def test_whatever_goes_wrong_for_everybody_is_found(kind: str, history: History, data: st.DataObject) -> None:
    """Even if nobody saw anything else: the replies are known, and so is what was sent."""
    places = [at for at, event in enumerate(history.events) if event.kind in ("part", "message")]
    broken = deepcopy(history)
    BREAKS[kind](broken.events, data.draw(st.sampled_from(places)))
    assume(broken.events != history.events)

    assert find_faults(make_evidence(broken)) != []


@given(histories(), st.data())
def test_a_conversation_that_differs_from_the_history_is_found(history: History, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(history.messages) - 1))
    evidence = make_evidence(history)
    fewer = [*history.messages[:at], *history.messages[at + 1 :]]

    assert find_faults(replace(evidence, messages=fewer)) != []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"status": "running"}, "its status is 'running'"),
        ({"turn": "turn_1"}, "its turn is 'turn_1'"),
        ({"live": {"attempt": "attempt_1", "blocks": []}}, "its live is"),
        ({"queue": [{"id": "queued_1"}]}, "its queue is"),
        ({"error": {"kind": "crashed"}}, "its error is"),
    ],
)
def test_a_chat_that_is_not_at_rest_is_found(change: dict[str, Any], expected: str) -> None:
    evidence = make_evidence(write_one())

    (fault,) = find_faults(replace(evidence, snapshot={**evidence.snapshot, **change}))

    assert expected in fault


def test_a_missing_event_number_is_found() -> None:
    (fault,) = find_faults(replace(make_evidence(write_one()), seqs=[1, 2, 4]))

    assert "numbered [1, 2, 4]" in fault


def test_a_message_that_was_accepted_and_is_nowhere_is_found() -> None:
    evidence = make_evidence(write_one())

    (fault,) = find_faults(replace(evidence, log=replace(evidence.log, sent=[*evidence.log.sent, "Hello?"])))

    assert "'Hello?'" in fault


def test_a_reply_that_nobody_stopped_and_that_was_stopped_is_found() -> None:
    written = (Author(seed).write(4) for seed in range(100))
    history = next(history for history in written if history.log.stops)
    stops = history.log.stops
    evidence = make_evidence(history)

    faults = find_faults(replace(evidence, log=replace(history.log, stops=stops - 1)))

    assert faults == [f"{stops} replies were stopped, but only {stops - 1} stops were requested"]


def test_a_turn_that_failed_is_found() -> None:
    history = write_one()
    history.events[-1].data["ended"]["outcome"] = "failed"

    assert any(fault.endswith("ended as failed") for fault in find_faults(make_evidence(history)))


def test_a_reader_that_did_not_get_everything_is_found() -> None:
    history = write_one()

    faults = find_faults(make_evidence(history, history.events[:-1]))

    assert "reader 1 did not receive everything" in faults


# --- tools ---


RAN_AT = {"started_at": "2026-01-01T12:00:00Z", "duration_s": 0.1}


def report_run(**changes: Any) -> Evidence:
    """A chat in which a tool said that it ran."""
    history = write_one()
    result = {
        "type": "tool_result",
        "call_id": "call_0",
        "name": "jot_once",
        "output": "noted 1-1",
        **RAN_AT,
        **changes,
    }
    place = {"id": "message_t", "parent_id": history.messages[-1]["id"], "role": "tool", "blocks": [result]}
    history.events.insert(-1, make_event("message", {"message": {**PLAIN, **place}}))
    return make_evidence(history)


def test_a_tool_that_ran_once_or_may_run_twice_is_no_fault() -> None:
    again = ToolRun("jot_again", "turn_1/1/1", "1-2")
    runs = [ToolRun("jot_once", "turn_1/1/0", "1-1"), again, again]

    assert check_effects(runs, [report_run()], safe=frozenset({"jot_again"})) == []


def test_a_tool_that_ran_twice_is_found_and_in_which_chat() -> None:
    runs = [ToolRun("jot_once", "turn_1/1/0", "1-1")] * 2

    faults = check_effects(runs, [report_run()], safe=frozenset({"jot_again"}))

    assert faults == [Fault("jot_once ran 2 times under the key turn_1/1/0", "chat")]


def test_a_tool_that_says_that_it_ran_and_did_not_is_found() -> None:
    (fault,) = check_effects([], [report_run()], safe=frozenset())

    assert "no trace" in fault.sentence
    assert check_effects([], [report_run(is_error=True)], safe=frozenset()) == []


def test_a_result_that_does_not_tell_when_its_tool_ran_is_found() -> None:
    runs = [ToolRun("jot_once", "turn_1/1/0", "1-1")]

    (fault,) = check_effects(runs, [report_run(started_at=None)], safe=frozenset())

    assert "not when it ran" in fault.sentence


# --- what is said ---


@given(st.randoms(use_true_random=False), st.integers(0, 10**9))
def test_a_wish_is_read_as_it_was_written(chance: Any, number: int) -> None:
    wish = draw_wish(chance, number=number)

    assert Wish.parse(wish.to_text()) == wish
    assert find_reply(wish.to_text()) == "".join(wish.list_words())
    assert len(set(wish.list_words())) == wish.words


def test_a_message_of_anybody_else_has_no_known_reply() -> None:
    assert find_reply("Roll a die.") is None


def test_a_difference_is_shown_where_it_begins() -> None:
    told = describe_difference("a" * 100 + "b", "a" * 100 + "c")

    assert told == f"after 100 characters …'{'a' * 30}b' and …'{'a' * 30}c'"


def write_one() -> History:
    return Author(1).write(1)
