"""The results of a step and of a turn: the values that a host saves, and the ends that `run` returns.

A turn has exactly one end, and each kind of end is a class of its own, so that a runner turns it into exactly one
command with one `match`. `step` is the last step, not saved yet: the end of a turn and its last step
belong in one transaction. After a shutdown or a lost lease there is none to save, because the next holder continues
from the journal.

    TurnCompleted       the model has answered, or the turn reached a limit (`reason`)
    TurnAwaitingClient  the client has to answer `calls` first
    TurnInterrupted     the user stopped it
    TurnFailed          the model failed for good, or the host raised `error`
    TurnShutDown        the process is shutting down: save nothing, another worker continues
    TurnLeaseLost       another worker holds the chat: write nothing

Saving the last step, with the one retry that a stop may require, is save.py.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec
from msgspec.structs import replace

from indelible.content import Block, FinishReason, Message, PartialReason, ToolCall, Usage
from indelible.content.assemble import PartAssembler, conclude, to_messages

TurnReason = Literal["stop", "length", "content_filter", "max_steps", "stop_after", "client_tools"]


class FinishedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step, ready to be saved: `blocks == finalize(assemble(parts), reason, ended_at)`.

    `index` counts from 1 in the turn. `last` says that the turn ends with this step, `awaiting` names
    the calls that the client has to answer before it can continue. `reason` says why the step was interrupted, and
    `partial` that it has visible output: thinking alone is not a partial reply.
    `provider_response_id` is set only for a complete step that the provider was asked to store. `assembler` holds
    the model's stream: a stop before the step is saved concludes it again.
    """

    index: int
    blocks: list[Block]
    last: bool = False
    awaiting: list[ToolCall] = []
    partial: bool = False
    reason: PartialReason | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    context_limit: int | None = None
    provider: str | None = None
    model: str | None = None
    provider_response_id: str | None = None
    attempt: int = 1
    started_at: datetime | None = None
    first_part_s: float | None = None
    ended_at: datetime | None = None
    assembler: PartAssembler | None = None

    def messages(self) -> list[Message]:
        """The step as history holds it: [assistant], or [assistant, tool]."""
        return to_messages(
            self.blocks,
            partial=self.partial,
            reason=self.reason,
            provider=self.provider,
            model=self.model,
            response_id=self.provider_response_id,
        )

    def interrupt(self) -> FinishedStep:
        """The same step after a stop that came before its save: calls that will get no result are answered."""
        if self.assembler is None:
            return replace(self, reason="interrupted")
        concluded = conclude(self.assembler, "interrupted", self.ended_at)
        return replace(
            self,
            blocks=concluded.blocks,
            last=True,
            awaiting=[],
            partial=concluded.partial,
            reason=concluded.reason,
            provider_response_id=self.provider_response_id if concluded.whole else None,
        )


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended. `messages` are those it added, `steps` its steps, including the unsaved `step`."""

    messages: list[Message] = []
    steps: list[FinishedStep] = []
    step: FinishedStep | None = None

    @property
    def usage(self) -> Usage:
        """The tokens of all steps, as far as they are known."""
        return sum((step.usage for step in self.steps if step.usage is not None), Usage())


class TurnCompleted(TurnEnd, frozen=True, kw_only=True):
    reason: TurnReason


class TurnAwaitingClient(TurnEnd, frozen=True, kw_only=True):
    calls: list[ToolCall]
    reason: TurnReason = "client_tools"


class TurnInterrupted(TurnEnd, frozen=True, kw_only=True):
    """`tried`: one save has already failed because the stop came first. Only one more is tried."""

    tried: bool = False


class TurnFailed(TurnEnd, frozen=True, kw_only=True):
    error: Exception


class TurnShutDown(TurnEnd, frozen=True, kw_only=True):
    pass


class TurnLeaseLost(TurnEnd, frozen=True, kw_only=True):
    error: Exception
