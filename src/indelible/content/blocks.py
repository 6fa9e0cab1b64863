"""Blocks: the pieces of a message that is finished or kept as it stood.

Values only. Each has exactly one JSON form, `{"type": "…", …}` without fields that hold their default, and the same
bytes give the same value back (tests/content/test_content.py, for arbitrary values). The classes are msgspec structs
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
        """What it adds to the answer that people read: `print(part.text, end="")` shows a reply as it comes."""
        return ""


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
    """The one answer to a call. A local tool's `output` is text; a provider's is any JSON.

    `interrupted` marks the result of a tool that a stop cut while it ran: its reply is not complete.
    """

    call_id: str
    name: str
    output: Any = ""
    is_error: bool = False
    provider_executed: bool = False
    metadata: Metadata | None = None
    interrupted: bool = False


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


def is_visible(block: Block) -> bool:
    """Whether a reader would call this part of the answer: text or a tool call. Reasoning is not."""
    return isinstance(block, ToolCall) or (isinstance(block, Text) and bool(block.text.strip()))


def has_visible(blocks: Sequence[Block]) -> bool:
    return any(map(is_visible, blocks))


def text_of(blocks: Sequence[Block]) -> str:
    """All visible text, in order."""
    return "".join(block.text for block in blocks if isinstance(block, Text))
