"""The content that accompanies a command and plays no part in deciding it: one payload per group of commands.

A command (machine/commands.py) carries the facts that `decide` needs, and no content. The content travels beside it,
and each payload names the commands that read it: `UserInput` is a `Payload[Send | SendInterrupt | SendSteer | Edit]`.
`Payload` is contravariant in its commands, so `Store.execute(chat_id, command, payload)` accepts exactly the
payloads of that command: a field that a command would ignore is a type error, not a value that silently disappears.
Payloads depend on commands and not the reverse, because the machine must not know content.

How much a user may store in one chat is checked here, before a transaction begins (rule 3.3), for the library and for
HTTP alike: a worker loads the fields of a chat for every turn, and readers load its messages again and again. Names
have fixed limits; the limits of content are settings.

Must stay true (tests/store/test_payloads.py): mypy rejects every payload with a command that ignores it; a command
that lacks a required payload raises `TypeError` and changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from indelible.api.inputs import MAX_DESCRIPTION, MAX_LABEL, MAX_LABELS, MAX_NAME, MAX_TITLE, MAX_TOOLS
from indelible.api.shapes import DebugMode, Timings
from indelible.content import TOOL_NAME, Block, Message, Part, ToolResult, ToolSpec, Usage, encode
from indelible.errors import Invalid, TooLarge
from indelible.machine import commands

C = TypeVar("C", bound=commands.Command)
C_contra = TypeVar("C_contra", bound=commands.Command, contravariant=True)


class Payload(msgspec.Struct, Generic[C_contra], frozen=True, kw_only=True):
    """Content for the commands that its type names."""


P = TypeVar("P", bound=Payload[Any])


def require(payload: Payload[Any] | None, kind: type[P]) -> P:
    """The payload, if it is of this kind. A missing payload is a bug in the caller, and nothing is written."""
    if not isinstance(payload, kind):
        raise TypeError(f"The command needs a payload of {kind.__name__}; it came with {payload!r}.")
    return payload


# --- from users ---


class NewChat(Payload[commands.Create], frozen=True, kw_only=True):
    """A chat's owner and metadata; `blocks` are its first message, if there is one. The client runs `tools`.

    A `suggested_title` is the title of a chat that has none, until there is a better one. A conversation that began
    elsewhere comes along: `history` stands above the message, and `progress` below it, if its answer has begun (calls
    of tools and their results). An `ephemeral` chat is archived some time after its one turn
    (store/queries/listing.py). `request` is what a compatible API repeats about its own (service/turns.py).
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


class UserInput(
    Payload[commands.Send | commands.SendInterrupt | commands.SendSteer | commands.Edit], frozen=True, kw_only=True
):
    """A message. `model` answers it; the author defaults to the owner. `request` is kept with the turn that it starts.

    `suggested_title` is for the first message of a chat that has no title.
    """

    blocks: list[Block]
    model: str | None = None
    author_id: str | None = None
    suggested_title: str | None = None
    request: dict[str, Any] | None = None


class AddedHistory(Payload[commands.AddMessages], frozen=True, kw_only=True):
    """Messages that were said elsewhere, in their order.

    `suggested_title` is for a chat that has no message yet, and no title.
    """

    history: list[Message] = []
    suggested_title: str | None = None


class QueuedInput(Payload[commands.EditQueued], frozen=True, kw_only=True):
    """The new content of a queued message. Its model and its author do not change."""

    blocks: list[Block]


class ModelChoice(
    Payload[commands.Regenerate | commands.Retry | commands.Continue | commands.Compact], frozen=True, kw_only=True
):
    """The model of a new turn; None means the chat's model."""

    model: str | None = None


class ToolResultsInput(Payload[commands.ToolResults], frozen=True, kw_only=True):
    """The results of the calls that the command names. `request` is kept with the turn that they resume."""

    results: list[ToolResult]
    request: dict[str, Any] | None = None


class ChatPatch(Payload[commands.UpdateChat], frozen=True, kw_only=True, omit_defaults=True):
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


class AttemptStart(WithPending[commands.StartAttempt], frozen=True, kw_only=True):
    """The model that really answers. `pending` belongs to an attempt that is still open, and is saved with it."""

    model: str | None = None
    provider: str | None = None


class RetryScheduled(WithPending[commands.AnnounceRetry], frozen=True, kw_only=True):
    """`retry` tells readers about the wait; `error` is recorded with the failed attempt."""

    retry: dict[str, Any]
    error: dict[str, Any] | None = None
    usage: Usage | None = None


class Summary(Payload[commands.KeepSummary], frozen=True, kw_only=True):
    """The text that replaces the conversation so far in every later prompt, and the notice for people."""

    summary: Message
    notice: str | None = None


class StepResult(
    WithStep[commands.CommitStep | commands.FinishTurn | commands.FinishInterruption], frozen=True, kw_only=True
):
    """The result of a step: one with a successor, the last one of a turn, or one that the user stopped."""


class AwaitedStep(WithStep[commands.AwaitAction], frozen=True, kw_only=True):
    """A step whose tool calls the client answers, within `deadline_s`; None means no deadline."""

    deadline_s: float | None = None


class CompactionResult(WithStep[commands.FinishTurn], frozen=True, kw_only=True):
    """The end of a compaction: the summary, if there was anything to summarise, and the notice for people."""

    summary: Message | None = None
    notice: str | None = None


class Failure(WithStep[commands.Fail], frozen=True, kw_only=True):
    """Why a turn failed: `error` stays on the chat until its status changes; people read `notice` in the history."""

    error: dict[str, Any] | None = None
    notice: str | None = None


class Leftover(WithPending[commands.Release], frozen=True, kw_only=True):
    """The parts that a worker has not flushed yet when it releases a chat."""


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages a chat may queue, and how large its content may be."""

    queued: int = 20
    message_bytes: int = 256 * 1024
    system_bytes: int = 256 * 1024
    parameters_bytes: int = 16 * 1024
    tools_bytes: int = 64 * 1024
    tool_result_bytes: int = 4 * 1024 * 1024


def check_payload(payload: Payload[Any] | None, limits: StoreLimits) -> None:
    """Raises `TooLarge` or `Invalid` if the payload holds too much."""
    if isinstance(payload, NewChat | UserInput | QueuedInput) and payload.blocks:
        _check_size("Message", len(encode(payload.blocks)), limits.message_bytes)
    if isinstance(payload, NewChat | AddedHistory):
        for message in (*payload.history, *(payload.progress if isinstance(payload, NewChat) else ())):
            _check_size("Message", len(encode(message.blocks)), limits.message_bytes)
    if isinstance(payload, NewChat | UserInput | ToolResultsInput) and payload.request is not None:
        _check_size("Request", len(encode(payload.request)), limits.message_bytes)
    if isinstance(payload, NewChat | ChatPatch):
        _check_fields(payload, limits)
    if isinstance(payload, ToolResultsInput):
        for result in payload.results:
            _check_size("Tool result", len(result.output.encode(errors="surrogatepass")), limits.tool_result_bytes)
            _check_size("Files of a tool result", len(encode(result.files)), limits.message_bytes)


def _check_fields(given: NewChat | ChatPatch, limits: StoreLimits) -> None:
    _check_length("title", given.title, MAX_TITLE)
    _check_length("model", given.model, MAX_NAME)
    if isinstance(given.system_prompt, str):
        _check_size("Instructions", len(encode(given.system_prompt)), limits.system_bytes)
    if isinstance(given.parameters, dict):
        _check_size("Parameters", len(encode(given.parameters)), limits.parameters_bytes)
    if isinstance(given.tools, list):
        _check_tools(given.tools, limits)
    for labels in (given.labels, given.label_pairs if isinstance(given, ChatPatch) else None):
        check_labels(labels if isinstance(labels, list) else [])


def check_labels(labels: Sequence[str]) -> None:
    """Raises `Invalid` if a chat cannot have so many labels, or such long ones."""
    if len(labels) > MAX_LABELS:
        raise Invalid(f"labels: at most {MAX_LABELS}.")
    for label in labels:
        _check_length("label", label, MAX_LABEL)


def _check_tools(tools: Sequence[ToolSpec], limits: StoreLimits) -> None:
    if len(tools) > MAX_TOOLS:
        raise Invalid(f"tools: at most {MAX_TOOLS}.")
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise Invalid("tools: two of them have the same name.")
    for tool in tools:
        if re.fullmatch(TOOL_NAME, tool.name) is None:
            raise Invalid("tool: a name is 1 to 64 letters, digits, _ or -.")
        _check_length("description", tool.description, MAX_DESCRIPTION)
    _check_size("Tools", len(encode(tools)), limits.tools_bytes)


def _check_length(name: str, text: object, limit: int) -> None:
    if isinstance(text, str) and len(text) > limit:
        raise Invalid(f"{name}: at most {limit:,} characters.")


def _check_size(what: str, size_bytes: int, limit_bytes: int) -> None:
    if size_bytes > limit_bytes:
        raise TooLarge(f"{what} too long: {size_bytes:,} bytes (limit {limit_bytes:,}).")
