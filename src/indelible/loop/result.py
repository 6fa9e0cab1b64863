"""What a step and a turn leave behind: the values that `persist_step` gets and `run` returns."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from indelible.content import Block, FinishReason, Message, Metadata, PartialReason, ToolCall, Usage
from indelible.content.assemble import to_messages

TurnReason = Literal["stop", "length", "content_filter", "max_steps", "stop_after", "client_tools"]


class FinishedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step, ready to be saved: `blocks == finalize(assemble(parts), reason, ended_at)`.

    `index` counts from 1 in the turn. `last` says that the turn ends with this step, `awaiting` names
    the calls that the client has to answer before it can go on. `reason` says why the step was cut, and
    `partial` that a visible piece of it was: thinking alone is not a partial reply.
    `provider_response_id` is there only for a complete step that the provider was asked to store.
    """

    index: int
    blocks: list[Block]
    last: bool = False
    awaiting: list[ToolCall] = []
    partial: bool = False
    reason: PartialReason | None = None
    finish_reason: FinishReason | None = None
    usage: Usage = Usage()
    context_limit: int | None = None
    provider: str | None = None
    model: str | None = None
    provider_response_id: str | None = None
    attempt: int = 1
    started_at: datetime | None = None
    first_part_s: float | None = None
    ended_at: datetime | None = None
    metadata: Metadata | None = None

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


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that came to its end: the messages it added, its steps, and why it ended."""

    messages: list[Message]
    steps: list[FinishedStep]
    usage: Usage
    reason: TurnReason
