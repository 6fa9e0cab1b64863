"""What is said: messages, their blocks, and the parts they are streamed in.

Values only. Each has exactly one JSON form, `{"type": "…", …}` without fields that hold
their default, and the same bytes give the same value back (tests/test_content.py, for
arbitrary values). The classes are msgspec structs because a part is made, encoded and
decoded once per token: 7 times cheaper to make than a frozen dataclass and 14 times cheaper
to encode than `json` (docs/decisions/0002-msgspec-for-values.md). They are frozen: to change
a value, make another.

A *block* is a piece of a message that is finished or kept as it stood. A *part* is a piece
of a running stream. A complete tool call, tool result, source or file is the same thing in
both, so the same class serves as both.

How parts become blocks is fold.py. What of it a model gets is loop/prompt.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from indelible.surrogates import clean_value

Role = Literal["system", "user", "assistant", "tool", "notice"]
Visibility = Literal["both", "people", "model"]
FinishReason = Literal["stop", "tool_calls", "length", "content_filter"]
PartialReason = Literal["interrupted", "crashed", "handed_over", "failed", "edited", "length"]
Metadata = dict[str, Any]


class Value(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """What all values of this module share: frozen, and a compact JSON form."""

    @property
    def text(self) -> str:
        """What it adds to the answer that people read: `print(part.text, end="")` shows a reply as it comes."""
        return ""


# --- blocks ------------------------------------------------------------------------------


class Text(Value, tag="text", frozen=True):
    text: str = ""
    metadata: Metadata | None = None


class Reasoning(Value, tag="reasoning", frozen=True):
    """The model's thinking. `signature` or `metadata` is what its provider needs back."""

    text: str = ""
    signature: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    metadata: Metadata | None = None

    @property
    def signed(self) -> bool:
        return bool(self.signature or self.metadata)


class ToolCall(Value, tag="tool_call", frozen=True):
    """A call the model made. `arguments` is its raw JSON text as it came, perhaps cut short.

    `provider_executed` calls (web search and the like) are run by the provider. `standalone`
    says that this provider takes such a call in a history without its result. `started` says, of
    a running step, that the tool began to run; a message never holds it.
    """

    id: str
    name: str
    arguments: str = ""
    provider_executed: bool = False
    standalone: bool = False
    metadata: Metadata | None = None
    started: bool = False


class ToolResult(Value, tag="tool_result", frozen=True):
    """The one answer to a call. A local tool's `output` is text; a provider's is any JSON."""

    call_id: str
    name: str
    output: Any = ""
    is_error: bool = False
    provider_executed: bool = False
    metadata: Metadata | None = None


class Source(Value, tag="source", frozen=True):
    """Something the reply leans on: a page, a document, a passage."""

    id: str = ""
    url: str | None = None
    title: str | None = None
    quote: str | None = None
    metadata: Metadata | None = None


class File(Value, tag="file", frozen=True):
    """An image, PDF or other file: kept by us (`file_id`), elsewhere (`url`), or in place (`data`)."""

    media_type: str
    name: str | None = None
    file_id: str | None = None
    url: str | None = None
    data: bytes | None = None
    metadata: Metadata | None = None


Block = Text | Reasoning | ToolCall | ToolResult | Source | File


# --- parts -------------------------------------------------------------------------------


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of one call, or of several added up.

    `input_tokens` counts all input; the cache counters are shares of it. `output_tokens`
    counts all output; `reasoning_tokens` is a share of it.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )


class TextStart(Value, tag="text_start", frozen=True, gc=False):
    id: str


class TextDelta(Value, tag="text_delta", frozen=True, gc=False):
    id: str
    delta: str

    @property
    def text(self) -> str:
        return self.delta


class TextEnd(Value, tag="text_end", frozen=True):
    id: str
    metadata: Metadata | None = None


class ReasoningStart(Value, tag="reasoning_start", frozen=True):
    """`at` is stamped by the loop when the part is published."""

    id: str
    signature: str | None = None
    at: datetime | None = None
    metadata: Metadata | None = None


class ReasoningDelta(Value, tag="reasoning_delta", frozen=True):
    id: str
    delta: str = ""
    signature: str | None = None
    metadata: Metadata | None = None


class ReasoningEnd(Value, tag="reasoning_end", frozen=True):
    id: str
    signature: str | None = None
    at: datetime | None = None
    metadata: Metadata | None = None


class ToolInputStart(Value, tag="tool_input_start", frozen=True):
    id: str
    name: str
    provider_executed: bool = False
    standalone: bool = False


class ToolInputDelta(Value, tag="tool_input_delta", frozen=True, gc=False):
    id: str
    delta: str


class ToolInputEnd(Value, tag="tool_input_end", frozen=True, gc=False):
    id: str


class ToolStarted(Value, tag="tool_started", frozen=True, gc=False):
    """A local tool began to run."""

    call_id: str
    name: str


class ToolProgress(Value, tag="tool_progress", frozen=True, gc=False):
    """Something a running tool wants people to see. Never part of its result."""

    call_id: str
    message: str


class Finish(Value, tag="finish", frozen=True):
    """The provider's own word that the stream is complete. Without it a stream is truncated."""

    reason: FinishReason = "stop"
    usage: Usage | None = None
    response_id: str | None = None
    metadata: Metadata | None = None


class StreamError(Value, tag="error", frozen=True):
    """The stream failed: the same as raising `ModelFailed` with these fields."""

    message: str
    kind: str = "unknown"
    retryable: bool | None = None
    status: int | None = None
    provider: str | None = None
    detail: str | None = None
    retry_after_s: float | None = None


class StreamWarning(Value, tag="warning", frozen=True, gc=False):
    """Something people should know: a parameter that was dropped, a deprecated model."""

    message: str


class KeepAlive(Value, tag="keep_alive", frozen=True, gc=False):
    """The provider is alive but has nothing to say. Neither published nor folded."""


Part = (
    TextStart
    | TextDelta
    | TextEnd
    | ReasoningStart
    | ReasoningDelta
    | ReasoningEnd
    | ToolInputStart
    | ToolInputDelta
    | ToolInputEnd
    | ToolCall
    | ToolStarted
    | ToolProgress
    | ToolResult
    | Source
    | File
    | Finish
    | StreamError
    | StreamWarning
    | KeepAlive
)


# --- messages ----------------------------------------------------------------------------


class Message(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One committed row of a chat.

    `provider` and `model` say who wrote it (None: the same as now). `response_id` is set only
    for a complete reply that the provider stored. `reason` says why a reply was cut; `partial`
    says that there is a visible piece of it.
    """

    role: Role
    blocks: list[Block] = []
    id: str | None = None
    partial: bool = False
    reason: PartialReason | None = None
    visibility: Visibility = "both"
    provider: str | None = None
    model: str | None = None
    response_id: str | None = None
    continues: str | None = None

    @property
    def text(self) -> str:
        """All visible text, in order."""
        return "".join(block.text for block in self.blocks if isinstance(block, Text))


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is told about a tool.

    A `provider_executed` tool is run by the provider; `options` is then its own description
    of it, passed through to the wire.
    """

    name: str
    description: str = ""
    input_schema: dict[str, Any] = {}
    provider_executed: bool = False
    options: dict[str, Any] = {}


# --- JSON --------------------------------------------------------------------------------

_encode: Final = msgspec.json.Encoder().encode


def encode(value: Any) -> bytes:
    """The JSON form. Halves of characters, which have none, are mended on the way (surrogates.py)."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(clean_value(msgspec.to_builtins(value)))


decode_part: Final = msgspec.json.Decoder(Part).decode
decode_parts: Final = msgspec.json.Decoder(list[Part]).decode
decode_blocks: Final = msgspec.json.Decoder(list[Block]).decode
decode_message: Final = msgspec.json.Decoder(Message).decode
decode_messages: Final = msgspec.json.Decoder(list[Message]).decode


# --- questions about blocks --------------------------------------------------------------


def is_visible(block: Block) -> bool:
    """Whether a reader would call this part of the answer: text or a tool call. Reasoning is not."""
    return isinstance(block, ToolCall) or (isinstance(block, Text) and bool(block.text.strip()))


def has_visible(blocks: Sequence[Block]) -> bool:
    return any(map(is_visible, blocks))
