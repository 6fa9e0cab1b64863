"""Where a turn goes on: read off what the database holds of it, by a pure function (DESIGN §7).

Beginning a turn, going on after a step, and taking over from a dead worker are the same thing here, because taking
a chat has already closed what its last holder left open (store, R3): what was shown is a partial reply in history
with the instruction to continue behind it, what only was thought was dropped, and an attempt that is still open has
said everything and lacks at most the results of its tools.

Must stay true (tests/worker/test_resume.py): one plan for every state that a chat can be found in.
"""

from __future__ import annotations

from typing import NamedTuple

from indelible.content import Message, Part, ToolCall
from indelible.machine.states import Status
from indelible.store.queries.open_turn import OpenWork


class FinishStopped(NamedTuple):
    """The user stopped the turn; nothing is left but to say so."""


class FinishAnswered(NamedTuple):
    """The turn has its whole answer; only its end was not written."""


class Summarise(NamedTuple):
    """The turn is a compaction."""


class AskModel(NamedTuple):
    """Ask the model; or, with `adopted`, go on with a reply that was read to its finish by another worker."""

    first_step: int
    adopted: list[Part] | None = None


class Idle(NamedTuple):
    """There is nothing to do."""


Plan = FinishStopped | FinishAnswered | Summarise | AskModel | Idle


def plan_turn(work: OpenWork) -> Plan:
    if work.turn_id is None or work.status not in (Status.RUNNING, Status.INTERRUPTING):
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
    """Whether the last thing said is a whole reply that calls nothing."""
    said = [message for message in messages if message.role != "notice" and message.visibility != "people"]
    if not said or said[-1].role != "assistant" or said[-1].partial or said[-1].reason is not None:
        return False
    return not any(isinstance(block, ToolCall) and not block.provider_executed for block in said[-1].blocks)
