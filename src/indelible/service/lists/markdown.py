"""A chat as Markdown, for people: the active branch, as they see it. Pure.

Text is written as it is, because models write Markdown. Titles and other names are one line, whatever they hold, so
that none can pretend to be a message. Tool calls and their results are fenced, with a fence longer than any in them;
reasoning and what only a model sees is left out. It cannot be imported; JSON can (store/lists/transfer.py).

Must stay true (tests/service/test_list_service.py): everything that people see of the active branch is in it, in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from indelible.content import Block, File, Source, Text, ToolCall, ToolResult
from indelible.store.lists.transfer import ChatFile, FileMessage

_SPEAKERS: Final = {"user": "You", "assistant": "Assistant", "tool": "Tool", "notice": "Notice", "system": "System"}
_FENCES: Final = re.compile(r"`{3,}")


def write_markdown(file: ChatFile) -> str:
    written = [
        f"# {_name(file.title) or 'Untitled'}",
        *(part for message in list_path(file) for part in _write(message)),
    ]
    return "\n\n".join(written) + "\n"


def list_path(file: ChatFile) -> list[FileMessage]:
    """The active branch, oldest first, without what only a model sees."""
    by_id = {message.id: message for message in file.messages}
    path: list[FileMessage] = []
    message = by_id.get(file.head or "")
    while message is not None:
        path.append(message)
        message = by_id.get(message.parent_id or "")
    return [message for message in reversed(path) if message.visibility != "model"]


def _write(message: FileMessage) -> Iterator[str]:
    parts = [part for block in message.blocks if (part := _write_block(block))]
    if not parts:
        return
    if message.role != "tool":
        model = f" ({_name(message.model)})" if message.role == "assistant" and message.model else ""
        yield f"## {_SPEAKERS[message.role]}{model}"
    yield from parts
    if message.partial:
        yield "*(interrupted)*"


def _write_block(block: Block) -> str:
    match block:
        case Text():
            return block.text.strip()
        case ToolCall():
            return f"**Tool call:** {_name(block.name)}\n\n{_fence(block.arguments, 'json')}"
        case ToolResult():
            output = block.output if isinstance(block.output, str) else str(block.output)
            return f"**{'Error' if block.is_error else 'Result'}:** {_name(block.name)}\n\n{_fence(output)}"
        case File():
            return f"**File:** {_name(block.name or block.media_type)}"
        case Source():
            return f"**Source:** {_name(block.title or block.url or block.id)}"
        case _:
            return ""


def _name(text: str | None) -> str:
    return " ".join((text or "").split())


def _fence(text: str, language: str = "") -> str:
    longest = max((len(found[0]) for found in _FENCES.finditer(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
