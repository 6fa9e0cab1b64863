"""The content that accompanies a command and plays no part in deciding it: one payload per group of commands.

A command (machine/commands.py) carries the facts that `decide` needs, and no content. The content travels beside it,
and each payload names the commands that read it: `UserInput` is a `Payload[Send | SendInterrupt | SendSteer | Edit]`.
`Payload` is contravariant in its commands, so `Store.execute(chat_id, command, payload)` accepts exactly the
payloads of that command: a field that a command would ignore is a type error, not a value that silently disappears.
Payloads depend on commands and not the reverse, because the machine must not know content.

Must stay true (tests/store/test_payloads.py): mypy rejects every payload with a command that ignores it; a command
that lacks a required payload raises `TypeError` and changes nothing.

store/commands/apply writes the content; store/commands/finish_attempt.py ends an attempt with it.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from indelible.api.shapes import DebugMode, Timings
from indelible.content import Block, Message, Part, ToolResult, ToolSpec, Usage
from indelible.machine.commands import (
    AddMessages,
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

C = TypeVar("C", bound=Command)
C_contra = TypeVar("C_contra", bound=Command, contravariant=True)


class Payload(msgspec.Struct, Generic[C_contra], frozen=True, kw_only=True):
    """Content for the commands that its type names."""


P = TypeVar("P", bound=Payload[Any])


def require(payload: Payload[Any] | None, kind: type[P]) -> P:
    """The payload, if it is of this kind. A missing payload is a bug in the caller, and nothing is written."""
    if not isinstance(payload, kind):
        raise TypeError(f"The command needs a payload of {kind.__name__}; it came with {payload!r}.")
    return payload


# --- from users ---


class NewChat(Payload[Create], frozen=True, kw_only=True):
    """A chat's owner and metadata; `blocks` are its first message, if there is one. The client runs `tools`.

    A `suggested_title` is the title of a chat that has none, until there is a better one. A conversation that began
    elsewhere comes along: `history` stands above the message, and `progress` below it, if its answer has begun (calls
    of tools and their results). An `ephemeral` chat is archived some time after its one turn
    (store/lists/ephemeral.py). `request` is what a compatible API repeats about its own (service/turns.py).
    """

    owner_id: str
    blocks: list[Block] = []
    history: list[Message] = []
    progress: list[Message] = []
    model: str | None = None
    system_prompt: str | None = None
    parameters: dict[str, Any] | None = None
    tools: list[ToolSpec] | None = None
    title: str | None = None
    suggested_title: str | None = None
    labels: list[str] = []
    ephemeral: bool = False
    request: dict[str, Any] | None = None


class UserInput(Payload[Send | SendInterrupt | SendSteer | Edit], frozen=True, kw_only=True):
    """A message. `model` answers it; the author defaults to the owner. `request` is kept with the turn that it starts.

    `suggested_title` is for the first message of a chat that has no title.
    """

    blocks: list[Block]
    model: str | None = None
    author_id: str | None = None
    suggested_title: str | None = None
    request: dict[str, Any] | None = None


class AddedHistory(Payload[AddMessages], frozen=True, kw_only=True):
    """Messages that were said elsewhere, in their order.

    `suggested_title` is for a chat that has no message yet, and no title.
    """

    history: list[Message] = []
    suggested_title: str | None = None


class QueuedInput(Payload[EditQueued], frozen=True, kw_only=True):
    """The new content of a queued message. Its model and its author do not change."""

    blocks: list[Block]


class ModelChoice(Payload[Regenerate | Retry | Continue | Compact], frozen=True, kw_only=True):
    """The model of a new turn; None means the chat's model."""

    model: str | None = None


class ToolResultsInput(Payload[ToolResults], frozen=True, kw_only=True):
    """The results of the calls that the command names. `request` is kept with the turn that they resume."""

    results: list[ToolResult]
    request: dict[str, Any] | None = None


class ChatPatch(Payload[UpdateChat], frozen=True, kw_only=True, omit_defaults=True):
    """New metadata of a chat. Unset fields stay unchanged; None removes a value.

    `label_pairs` replace only the labels of the form `key=value`, which a wire shows as metadata.
    """

    title: str | msgspec.UnsetType | None = msgspec.UNSET
    labels: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    label_pairs: list[str] | msgspec.UnsetType = msgspec.UNSET
    pinned: bool | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    system_prompt: str | msgspec.UnsetType | None = msgspec.UNSET
    parameters: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    tools: list[ToolSpec] | msgspec.UnsetType | None = msgspec.UNSET
    debug: DebugMode | msgspec.UnsetType | None = msgspec.UNSET


# --- from workers ---


class WithPending(Payload[C_contra], frozen=True, kw_only=True):
    """`pending` are the parts published since the last flush of the journal.

    They become its last row, in the transaction that ends or leaves the attempt (R4).
    """

    pending: list[Part] = []


class WithStep(WithPending[C_contra], frozen=True, kw_only=True):
    """What the holder of an attempt knows about its step."""

    response_id: str | None = None
    usage: Usage | None = None
    cost_nanousd: int | None = None
    timings: Timings | None = None


class AttemptStart(WithPending[StartAttempt], frozen=True, kw_only=True):
    """The model that really answers. `pending` belongs to an attempt that is still open, and is saved with it."""

    model: str | None = None
    provider: str | None = None


class RetryScheduled(WithPending[AnnounceRetry], frozen=True, kw_only=True):
    """`retry` tells readers about the wait; `error` is recorded with the failed attempt."""

    retry: dict[str, Any]
    error: dict[str, Any] | None = None
    usage: Usage | None = None


class Summary(Payload[KeepSummary], frozen=True, kw_only=True):
    """The text that replaces the conversation so far in every later prompt, and the notice for people."""

    summary: Message
    notice: str | None = None


class StepResult(WithStep[CommitStep | FinishTurn | FinishInterruption], frozen=True, kw_only=True):
    """The result of a step: one with a successor, the last one of a turn, or one that the user stopped."""


class AwaitedStep(WithStep[AwaitAction], frozen=True, kw_only=True):
    """A step whose tool calls the client answers, within `deadline_s`; None means no deadline."""

    deadline_s: float | None = None


class CompactionResult(WithStep[FinishTurn], frozen=True, kw_only=True):
    """The end of a compaction: the summary, if there was anything to summarise, and the notice for people."""

    summary: Message | None = None
    notice: str | None = None


class Failure(WithStep[Fail], frozen=True, kw_only=True):
    """Why a turn failed: `error` stays on the chat until its status changes; people read `notice` in the history."""

    error: dict[str, Any] | None = None
    notice: str | None = None


class Leftover(WithPending[Release], frozen=True, kw_only=True):
    """The parts that a worker has not flushed yet when it releases a chat."""
