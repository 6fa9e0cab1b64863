"""Indelible: an agent-chat server and library in which every token is on disk before it is on screen.

    import indelible

    @indelible.tool
    async def weather(city: str) -> str: ...

    async with indelible.open("chats.db", tools=[weather]) as app:
        chat = await app.create()
        async for part in chat.send("Is it raining in Oslo?"):
            print(part.text, end="")

This is the front door. What it opens to is loaded when somebody asks for it, so that importing it costs next to
nothing (tests/test_package.py).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from indelible.app.app import App
    from indelible.app.chat import Chat, InterruptResult
    from indelible.app.compose import open_app as open  # noqa: A004  (as in `indelible.open`)
    from indelible.app.reply import Reply
    from indelible.content import File, Message, Text, ToolCall, ToolResult, Usage
    from indelible.errors import IndelibleError, Interrupted, Invalid, ModelFailed, NotAllowed, NotFound, Refused
    from indelible.tools.tool import Tool, ToolContext, tool

__version__ = "0.1.0"

_HOMES: Final = {
    "App": "app.app",
    "Chat": "app.chat",
    "InterruptResult": "app.chat",
    "open": "app.compose:open_app",
    "File": "content",
    "Message": "content",
    "Text": "content",
    "ToolCall": "content",
    "ToolResult": "content",
    "Usage": "content",
    "IndelibleError": "errors",
    "Interrupted": "errors",
    "Invalid": "errors",
    "ModelFailed": "errors",
    "NotAllowed": "errors",
    "NotFound": "errors",
    "Refused": "errors",
    "Reply": "app.reply",
    "Tool": "tools.tool",
    "ToolContext": "tools.tool",
    "tool": "tools.tool",
}
"""Where each name of the front door lives."""

__all__ = [
    "App",
    "Chat",
    "File",
    "IndelibleError",
    "InterruptResult",
    "Interrupted",
    "Invalid",
    "Message",
    "ModelFailed",
    "NotAllowed",
    "NotFound",
    "Refused",
    "Reply",
    "Text",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolResult",
    "Usage",
    "open",
    "tool",
]


def _load(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'indelible' has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    found = getattr(importlib.import_module(f"indelible.{module}"), attribute or name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])


if not TYPE_CHECKING:  # a type checker that saw it would believe in every name (tests/test_public_types.py)
    __getattr__ = _load
