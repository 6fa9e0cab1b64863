"""Parts: the pieces of a running stream, from the first token to `finish`, and merging them.

A complete tool call, tool result, source or file is a block (blocks.py) that arrives in one piece. assemble.py turns
parts into blocks.

A provider sends a token at a time. Everything after it costs per part and not per character, so several neighbouring
deltas of one block become one, and `assemble` builds the same blocks from it. They are merged where several are there
at once: in what was read in one piece (models/http/http_model.py), and in a row of the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import add
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from indelible.content.blocks import File, Metadata, Source, ToolCall, ToolResult, Value

FinishReason = Literal["stop", "tool_calls", "length", "content_filter"]
MAX_TOKENS: Final = 10**9
"""No call uses more tokens than this. A larger count is a mistake of the provider, and counts as unknown."""


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

    def drop_implausible(self) -> Usage:
        """The usage of one call without counts that cannot be true: sums and costs of those would overflow."""
        counts = msgspec.structs.asdict(self)
        return Usage(**{name: count if 0 <= count <= MAX_TOKENS else 0 for name, count in counts.items()})

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


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
    """The loop sets `at` when it publishes the part."""

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
    """A local tool started."""

    call_id: str
    name: str


class ToolProgress(Value, tag="tool_progress", frozen=True, gc=False):
    """Progress of a running tool, for people. The model hears of it only if the tool was interrupted."""

    call_id: str
    message: str


class UsageUpdate(Value, tag="usage_update", frozen=True, gc=False):
    """The tokens that the provider has counted so far. The last one counts; `finish` has the final count.

    Providers that count the input first send it with the head of the stream, so that a stopped or crashed reply has it.
    """

    usage: Usage


class Finish(Value, tag="finish", frozen=True):
    """The provider's own signal that the stream is complete. Without it a stream is truncated."""

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
    """The provider is alive but has nothing to send. Neither published nor assembled."""


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
    | UsageUpdate
    | Finish
    | StreamError
    | StreamWarning
    | KeepAlive
)


def merge_deltas(parts: Sequence[Part]) -> list[Part]:
    """Merge neighbouring deltas of one block: `assemble` builds the same blocks from them."""
    merged: list[Part] = []
    texts: list[str] = []
    for part in parts:
        last = merged[-1] if merged else None
        if last is not None and _continues(last, part):
            texts.append(part.delta)  # type: ignore[union-attr]
            continue
        _join(merged, texts)
        merged.append(part)
        texts = [getattr(part, "delta", "")]
    _join(merged, texts)
    return merged


def _continues(last: Part, part: Part) -> bool:
    kind = type(part)
    if kind is not type(last) or kind not in (TextDelta, ReasoningDelta, ToolInputDelta):
        return False
    if isinstance(part, ReasoningDelta) and (part.signature or part.metadata):
        return False
    return last.id == part.id  # type: ignore[union-attr]


def _join(merged: list[Part], texts: list[str]) -> None:
    if len(texts) > 1:
        merged[-1] = replace(merged[-1], delta="".join(texts))
