"""Blocks: the pieces of a complete or partial message.

Values only. Each has exactly one JSON form, `{"type": "…", …}` without fields that hold their default, and decoding it
gives the same value (tests/content/test_content.py, for arbitrary values). The classes are msgspec structs
because a part is made, encoded and decoded once per token: 7 times cheaper to make than a frozen dataclass and 14
times cheaper to encode than `json` (docs/decisions/0002-msgspec-for-values.md). They are frozen: to change a value,
make another.

A complete tool call, tool result, source or file is the same thing in a running stream (parts.py), so the same class
serves as both.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import force_setattr, replace

Metadata = dict[str, Any]


class Value(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """What all values of this module share: frozen, and a compact JSON form."""

    @property
    def text(self) -> str:
        """The text that it adds to the visible reply: `print(part.text, end="")` shows a reply as it streams."""
        return ""


class Text(Value, tag="text", frozen=True):
    """Text of the user or of the model."""

    text: str = ""
    metadata: Metadata | None = None


class Reasoning(Value, tag="reasoning", frozen=True):
    """The model's thinking. `signature` or `metadata` must be sent back to its provider."""

    text: str = ""
    signature: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    metadata: Metadata | None = None

    @property
    def signed(self) -> bool:
        return bool(self.signature or self.metadata)


class ToolCall(Value, tag="tool_call", frozen=True):
    """A call by the model. `arguments` is its raw JSON text as it arrived, perhaps truncated.

    `provider_executed` calls (web search and the like) are run by the provider. `standalone`
    says that this provider accepts such a call in a history without its result. `started` says,
    in a running step, that the tool has started, and `progress` how far it has come; a message never holds them.
    """

    id: str
    name: str
    arguments: str = ""
    provider_executed: bool = False
    standalone: bool = False
    metadata: Metadata | None = None
    started: bool = False
    progress: str = ""


class File(Value, tag="file", frozen=True):
    """An image, PDF or other file: stored here (`file_id`), elsewhere (`url`), or inline (`data`).

    Of a stored file, the server knows name, type and `size` in bytes; whoever sends it gives the id alone.
    """

    media_type: str = ""
    name: str | None = None
    file_id: str | None = None
    url: str | None = None
    data: bytes | None = None
    metadata: Metadata | None = None
    size: int | None = None


ResultOutcome = Literal["ran", "failed", "not_run", "unknown"]
"""What happened to a call. ran: the tool answered. failed: it answered with an error. not_run: it never began. unknown:
it began and did not answer, so it may or may not have taken effect."""

PartialReason = Literal[
    "interrupted", "crashed", "handed_over", "failed", "edited", "length", "content_filter", "max_steps"
]
"""Why a reply ended before it was complete."""

ResultReason = PartialReason | Literal["invalid", "cancelled", "expired", "lost", "timed_out"]
"""Why a call was not run, or why its outcome is unknown. A `PartialReason`: its reply ended so before it ran. invalid:
there is no such tool, or it cannot be called so. cancelled, expired: the user went on without the client's answer, or
it did not come in time. lost: the process that ran the tool is gone. timed_out: the tool took too long."""


class ToolResult(Value, tag="tool_result", frozen=True):
    """The only answer to a call. A local tool's `output` is text; a provider's is any JSON.

    `outcome` says what happened, `reason` why the tool did not run or did not answer; `output` says it to the model,
    and nothing is ever decided by its words. `is_error` follows from `outcome`, for clients that know no more, and who
    gives it alone (they do, and so do blocks from before there were outcomes) gives the outcome with it.
    `interrupted` marks the result of a call that a stop cut: its reply is not complete. `progress` is what
    people saw of the tool while it ran, at most its last 16 KiB. `started_at` and `duration_s` say when a local tool
    ran and for how long; None if it did not run here, or nobody knows how it ended. No model gets them. `files` are
    pictures and files that the tool returned; the output names them.
    """

    call_id: str
    name: str
    output: Any = ""
    is_error: bool = False
    provider_executed: bool = False
    metadata: Metadata | None = None
    interrupted: bool = False
    progress: str = ""
    started_at: datetime | None = None
    duration_s: float | None = None
    files: list[File] = []
    outcome: ResultOutcome = "ran"
    reason: ResultReason | None = None

    def __post_init__(self) -> None:
        if self.outcome != "ran":
            force_setattr(self, "is_error", True)  # noqa: FBT003
        elif self.is_error:
            force_setattr(self, "outcome", "unknown" if self.interrupted else "failed")


_OLD_SENTENCES: Final[tuple[tuple[str, ResultOutcome, ResultReason], ...]] = (
    ("Outcome unknown: this call was started", "unknown", "lost"),
    ("Interrupted: the user stopped the reply while this tool was running", "unknown", "interrupted"),
    ("Interrupted: the user stopped the reply before this", "not_run", "interrupted"),
    ("Not run: the server stopped", "not_run", "crashed"),
    ("Not run: the server was restarted", "not_run", "handed_over"),
    ("Not run: the reply broke off", "not_run", "failed"),
    ("Not run: the conversation was edited", "not_run", "edited"),
    ("Not run: the reply reached its length limit", "not_run", "length"),
    ("Not run: the provider's content filter", "not_run", "content_filter"),
    ("Not run: the reply reached the maximum", "not_run", "max_steps"),
    ("Not run: the arguments were cut off", "not_run", "invalid"),
    ("Cancelled: the user continued", "not_run", "cancelled"),
    ("Cancelled: the conversation was copied", "not_run", "cancelled"),
    ("Expired: nobody gave", "not_run", "expired"),
)


def recover_outcome(result: ToolResult) -> ToolResult:
    """The outcome of a result from before results had one. Of those that we wrote, the sentence is the only evidence.

    For what is brought over once, the rows of an old schema and old files, and for nothing else.
    """
    if not result.is_error or result.provider_executed or not isinstance(result.output, str):
        return result
    found = (known for known in _OLD_SENTENCES if result.output.startswith(known[0]))
    _, outcome, reason = next(found, ("", result.outcome, result.reason))
    return replace(result, outcome=outcome, reason=reason)


def pop_note(metadata: Metadata) -> Metadata | None:
    """Take what a compatible API noted in a block's metadata, as `request`, before turns had requests (schema 0018).

    A note of the AI SDK, which is only the id of a message of the client's, becomes `ui_id` of the same block. Whatever
    else a user has written there stays. This, too, is only for old rows and old files.
    """
    note = metadata.get("request")
    if not isinstance(note, dict) or not ("response" in note or "ui_id" in note):
        return None
    del metadata["request"]
    if "ui_id" in note:
        metadata["ui_id"] = note["ui_id"]
    return note


class Source(Value, tag="source", frozen=True):
    """A source of the reply: a page, a document, a passage."""

    id: str = ""
    url: str | None = None
    title: str | None = None
    quote: str | None = None
    metadata: Metadata | None = None


Block = Text | Reasoning | ToolCall | ToolResult | Source | File


def is_visible(block: Block) -> bool:
    """Whether people see this block as part of the answer: text or a tool call. Reasoning is not."""
    return isinstance(block, ToolCall) or (isinstance(block, Text) and bool(block.text.strip()))


def has_visible(blocks: Sequence[Block]) -> bool:
    return any(map(is_visible, blocks))


def text_of(blocks: Sequence[Block]) -> str:
    """All visible text, in order."""
    return "".join(block.text for block in blocks if isinstance(block, Text))


def find_open_calls(blocks: Sequence[Block]) -> list[ToolCall]:
    """The calls that still need a result, in order. A provider answers the calls that it runs itself."""
    answered = {block.call_id for block in blocks if isinstance(block, ToolResult)}
    calls = [block for block in blocks if isinstance(block, ToolCall) and not block.provider_executed]
    return [call for call in calls if call.id not in answered]
