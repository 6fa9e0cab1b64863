"""What comes with a command and is not for deciding: one payload per group of commands.

A command (machine/commands.py) carries the facts that `decide` needs, and no content. The content travels beside it,
and each payload names the commands that read it: `UserInput` is a `Payload[Send | SendInterrupt | SendSteer | Edit]`.
`Payload` is contravariant in its commands, so `ChatStore.execute(chat_id, command, payload)` accepts exactly the
payloads of that very command: a field that a command would ignore is an error of the type checker and not a value
that silently disappears. The dependency points this way round, payloads know commands, because the machine must not
know content.

Must stay true (tests/store/test_payloads.py): mypy refuses every payload with a command that ignores it; a command
that cannot do without its payload raises `TypeError` and changes nothing.

Who writes the content down is store/commands/apply; how an attempt ends with it, store/commands/finish_attempt.py.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from indelible.content import Block, Message, Part, ToolResult, Usage
from indelible.machine.commands import (
    AnnounceRetry,
    AwaitAction,
    Command,
    CommitStep,
    Compact,
    Continue,
    Create,
    Edit,
    EditQueued,
    Fail,
    FinishInterruption,
    FinishTurn,
    KeepSummary,
    Regenerate,
    Release,
    Retry,
    Send,
    SendInterrupt,
    SendSteer,
    StartAttempt,
    ToolResults,
    UpdateChat,
)
from indelible.store.database.tables import DebugMode

C = TypeVar("C", bound=Command)
C_contra = TypeVar("C_contra", bound=Command, contravariant=True)


class Payload(msgspec.Struct, Generic[C_contra], frozen=True, kw_only=True):
    """Content for the commands that its type names."""


P = TypeVar("P", bound=Payload[Any])


def require(payload: Payload[Any] | None, kind: type[P]) -> P:
    """The payload, if it is of this kind. A caller that forgot it is a defect, and nothing is written."""
    if not isinstance(payload, kind):
        raise TypeError(f"The command needs a payload of {kind.__name__}; it came with {payload!r}.")
    return payload


# --- of users ---


class NewChat(Payload[Create], frozen=True, kw_only=True):
    """A chat's owner and what stands beside its conversation; `blocks` are its first message, if there is one."""

    owner_id: str
    blocks: list[Block] = []
    model: str | None = None
    system_prompt: str | None = None
    parameters: dict[str, Any] | None = None
    title: str | None = None


class UserInput(Payload[Send | SendInterrupt | SendSteer | Edit], frozen=True, kw_only=True):
    """A message. `model` answers it; without an author it is the owner's."""

    blocks: list[Block]
    model: str | None = None
    author_id: str | None = None


class QueuedInput(Payload[EditQueued], frozen=True, kw_only=True):
    """The new content of a message that waits. Its model and its author stay."""

    blocks: list[Block]


class ModelChoice(Payload[Regenerate | Retry | Continue | Compact], frozen=True, kw_only=True):
    """The model of a turn that is begun anew; None is the chat's."""

    model: str | None = None


class ToolResultsInput(Payload[ToolResults], frozen=True, kw_only=True):
    """The results of the calls that the command names."""

    results: list[ToolResult]


class ChatPatch(Payload[UpdateChat], frozen=True, kw_only=True, omit_defaults=True):
    """What stands beside a conversation. What is unset stays as it is; None removes it."""

    title: str | msgspec.UnsetType | None = msgspec.UNSET
    labels: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    pinned: bool | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    system_prompt: str | msgspec.UnsetType | None = msgspec.UNSET
    parameters: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    debug: DebugMode | msgspec.UnsetType | None = msgspec.UNSET


# --- of workers ---


class Timings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a step began, when its first part came, and when it ended, as its worker saw it."""

    started_at: datetime | None = None
    first_part_at: datetime | None = None
    ended_at: datetime | None = None


class WithPending(Payload[C_contra], frozen=True, kw_only=True):
    """`pending` are parts that were published after the journal was last flushed.

    They become its last row, in the transaction that ends or leaves the attempt (R4).
    """

    pending: list[Part] = []


class WithStep(WithPending[C_contra], frozen=True, kw_only=True):
    """What the holder of an attempt knows of the step that the attempt made."""

    response_id: str | None = None
    usage: Usage | None = None
    cost_nanousd: int | None = None
    timings: Timings | None = None


class AttemptStart(WithPending[StartAttempt], frozen=True, kw_only=True):
    """Which model really answers. What an attempt that is still open said since its last flush is kept with it."""

    model: str | None = None
    provider: str | None = None


class RetryScheduled(WithPending[AnnounceRetry], frozen=True, kw_only=True):
    """`retry` is what readers learn of the wait; `error` is recorded with the attempt that failed."""

    retry: dict[str, Any]
    error: dict[str, Any] | None = None
    usage: Usage | None = None


class Summary(Payload[KeepSummary], frozen=True, kw_only=True):
    """What the model gets from now on instead of the conversation so far."""

    summary: Message


class StepResult(WithStep[CommitStep | FinishTurn | FinishInterruption], frozen=True, kw_only=True):
    """A step that another follows, the last one of a turn, or one that the user stopped."""


class AwaitedStep(WithStep[AwaitAction], frozen=True, kw_only=True):
    """A step whose client calls are answered from outside, within `deadline_s`; None is no deadline."""

    deadline_s: float | None = None


class CompactionResult(WithStep[FinishTurn], frozen=True, kw_only=True):
    """The end of a compaction: the summary, if there was anything to summarise, and what people read about it."""

    summary: Message | None = None
    notice: str | None = None


class Failure(WithStep[Fail], frozen=True, kw_only=True):
    """Why a turn failed: `error` stands at the chat until it is left, `notice` is what people read in history."""

    error: dict[str, Any] | None = None
    notice: str | None = None


class Leftover(WithPending[Release], frozen=True, kw_only=True):
    """What a worker that lets go of a chat has not flushed yet."""
