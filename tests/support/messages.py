"""Messages, as tests compare them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from indelible.api.shapes import ChatMessage
from indelible.content import Message, Text, ToolResult

M = TypeVar("M", Message, ChatMessage)


def read_text(blocks: Sequence[Any]) -> str:
    return "".join(block.text for block in blocks if isinstance(block, Text))


def outline(messages: Sequence[Message | ChatMessage]) -> list[tuple[str, str]]:
    """Messages as role and text; of tool results, their output."""
    outlined: list[tuple[str, str]] = []
    for message in messages:
        outputs = "".join(str(block.output) for block in message.blocks if isinstance(block, ToolResult))
        outlined.append((message.role, read_text(message.blocks) + outputs))
    return outlined


def find_notices(messages: Sequence[Message | ChatMessage]) -> list[str]:
    """What the notices say. A summary that follows is left out."""
    return [read_text(message.blocks[:1]) for message in messages if message.role == "notice"]


def find_reply(messages: Sequence[M]) -> M:
    """The newest message of a model."""
    return [message for message in messages if message.role == "assistant"][-1]
