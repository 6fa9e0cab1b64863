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
from typing import Any

import msgspec

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


class ToolResult(Value, tag="tool_result", frozen=True):
    """The only answer to a call. A local tool's `output` is text; a provider's is any JSON.

    `interrupted` marks the result of a tool that a stop interrupted: its reply is not complete. `progress` is what
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
