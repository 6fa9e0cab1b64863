"""Where a turn resumes: decided from the stored turn by pure functions (P3).

Starting a turn, continuing after a step, and taking over from a dead worker are the same case here, because acquiring a
chat has already closed what its last holder left open (store, R3). Visible output has become a partial reply in
history, followed by the instruction to continue it. Reasoning without visible output was dropped. An attempt that is
still open has its complete stream and lacks at most the results of its tools.

Must stay true (tests/worker/test_resume.py): there is one plan for every state that a chat can be in.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from msgspec.structs import replace

from indelible.content import Message, Part, Text, ToolCall
from indelible.loop.prompt.build import is_summary
from indelible.loop.prompt.response_chain import plan_chain
from indelible.machine.states import BUSY, Status
from indelible.models.protocol import CallOptions, Model, traits_of
from indelible.store.queries.open_turn import OpenWork


class FinishStopped(NamedTuple):
    """The user stopped the turn; only its end must be written."""


class FinishAnswered(NamedTuple):
    """The turn has its complete answer; only its end must be written."""


class Summarise(NamedTuple):
    """The turn is a compaction."""


class AskModel(NamedTuple):
    """Call the model; or, with `adopted`, continue with a reply that another worker read to its finish."""

    first_step: int
    adopted: list[Part] | None = None


class Idle(NamedTuple):
    """There is nothing to do."""


Plan = FinishStopped | FinishAnswered | Summarise | AskModel | Idle


def plan_turn(work: OpenWork) -> Plan:
    if work.turn_id is None or work.status not in BUSY:
        return Idle()
    if work.status is Status.INTERRUPTING:
        return FinishStopped()
    if work.kind == "compaction":
        return Summarise()
    if work.attempt is not None:
        return AskModel(work.attempt.step, work.parts)
    if work.next_step > 1 and _is_answered(work.messages):
        return FinishAnswered()
    return AskModel(work.next_step)


def _is_answered(messages: list[Message]) -> bool:
    """Whether the last message is a complete reply without local calls."""
    visible = [message for message in messages if message.role != "notice" and message.visibility != "people"]
    if not visible or visible[-1].role != "assistant" or visible[-1].partial or visible[-1].reason is not None:
        return False
    return not any(isinstance(block, ToolCall) and not block.provider_executed for block in visible[-1].blocks)


# --- the prompt ---


def build_history(work: OpenWork, default_system: str = "") -> list[Message]:
    """The conversation, preceded by the chat's system prompt, or the default one. An empty one means none."""
    system = default_system if work.system_prompt is None else work.system_prompt
    return [Message(role="system", blocks=[Text(system)]), *work.messages] if system else work.messages


def plan_call(work: OpenWork, model: Model, default_system: str = "") -> tuple[list[Message], CallOptions]:
    """What to send, and how. In chain mode the provider has the earlier messages and gets only new ones (rule 4)."""
    history, options = build_history(work, default_system), CallOptions(parameters=work.parameters)
    if not traits_of(model).chains:
        return history, options
    plan = plan_chain(history, model=model, options=replace(options, store=True))
    return plan.messages, plan.options


def count_used(work: OpenWork) -> int:
    """The size of the conversation in tokens, as the last reply reported it; 0 if unknown, as after a summary."""
    since_reply = itertools.takewhile(lambda message: message.role != "assistant", reversed(work.messages))
    if work.usage is None or any(is_summary(message) for message in since_reply):
        return 0
    return work.usage.total_tokens
