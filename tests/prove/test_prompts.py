"""What no model may be told is found in a prompt, in whatever way a wire format merges its texts."""

from __future__ import annotations

import pytest

from indelible.content import Text, ToolCall, ToolResult
from indelible.content.assemble import OUTCOME_UNKNOWN, UNANSWERED
from indelible.loop.prompt.build import NO_RESULT
from indelible.models.protocol import Call, PromptMessage
from indelible.prove.provider import PromptInspector, check_outputs
from indelible.prove.script import Wish
from indelible.prove.tools import ASK, ONCE
from indelible.store.commands.change import ANSWERS, CONTINUE

FIRST, SECOND = (Wish(number=number, words=3, pace_ms=0).to_text() for number in (1, 2))
JOT = ToolCall(id="call_0", name=ONCE, arguments='{"note": "1-1"}')
QUESTION = ToolCall(id="ask_0", name=ASK, arguments='{"note": "1-2"}')


def ask(*texts: str) -> PromptMessage:
    return PromptMessage(role="user", blocks=[Text(text) for text in texts])


def say(text: str, *calls: ToolCall) -> PromptMessage:
    return PromptMessage(role="assistant", blocks=[Text(text), *calls])


def answer(call: ToolCall, output: str) -> PromptMessage:
    return PromptMessage(role="tool", blocks=[ToolResult(call.id, call.name, output)])


def inspect(*messages: PromptMessage) -> PromptInspector:
    inspector = PromptInspector()
    inspector.inspect(Call(messages=list(messages)))
    return inspector


@pytest.mark.parametrize(
    "messages",
    [
        (ask(FIRST), say("oak-1 "), ask(CONTINUE)),
        (ask(FIRST), say("oak-1 "), ask(CONTINUE), say("river-2 "), ask(SECOND)),
        (ask(FIRST), say("oak-1 "), ask(CONTINUE), say("river-2 "), ask(SECOND, CONTINUE)),
        (ask(FIRST), say("oak-1 ", JOT), answer(JOT, "noted 1-1"), ask(SECOND)),
        (ask(FIRST), say("oak-1 ", JOT), answer(JOT, OUTCOME_UNKNOWN), ask(SECOND)),
    ],
)
def test_a_legal_prompt_has_no_fault(messages: tuple[PromptMessage, ...]) -> None:
    assert inspect(*messages).faults == []


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ((ask(FIRST), say("oak-1 "), ask(CONTINUE), ask(SECOND)), "a stale instruction"),
        ((ask(FIRST), say("oak-1 "), ask(CONTINUE, SECOND)), "a stale instruction"),
        ((ask(FIRST), say("oak-1 "), ask(CONTINUE), ask("Hello?"), ask(SECOND)), "a stale instruction"),
        ((ask(FIRST), say("oak-1 ", JOT), ask(SECOND)), "a call without a result"),
        ((ask(FIRST), say("oak-1 ", JOT), answer(JOT, NO_RESULT)), "a call without a result"),
        ((ask(FIRST), say("oak-1 ", JOT), answer(JOT, "noted 7-7")), "the result of another"),
        ((ask(FIRST), answer(JOT, "noted 1-1")), "a result without a call"),
    ],
)
def test_what_no_model_may_get_is_found(messages: tuple[PromptMessage, ...], expected: str) -> None:
    (fault,) = inspect(*messages).faults

    assert expected in fault


def test_a_tool_that_ran_must_not_be_called_cancelled() -> None:
    inspector = inspect(
        ask(FIRST),
        say("oak-1 ", JOT, QUESTION),
        answer(JOT, UNANSWERED["interrupted"]),
        answer(QUESTION, ANSWERS["cancelled"]),
    )

    assert inspector.faults == []
    assert check_outputs(inspector.outputs, {}, set()) == []
    ran, answered = (fault.sentence for fault in check_outputs(inspector.outputs, {"1-1": ONCE}, {"1-2"}))
    assert "jot_once 1-1, which ran" in ran
    assert "ask_user 1-2, which was answered" in answered


def test_a_tool_that_ran_may_be_reported_as_unknown() -> None:
    inspector = inspect(ask(FIRST), say("oak-1 ", JOT), answer(JOT, OUTCOME_UNKNOWN))
    assert check_outputs(inspector.outputs, {"1-1": ONCE}, set(), {OUTCOME_UNKNOWN}) == []
    (fault,) = check_outputs(inspector.outputs, {"1-1": ONCE}, set())  # no stored result has this outcome
    assert OUTCOME_UNKNOWN in fault.sentence
