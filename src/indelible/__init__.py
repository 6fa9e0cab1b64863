"""Indelible: durable chats with language models. Every token is on disk before it is on screen.

    import indelible

    @indelible.tool
    async def weather(city: str) -> str: ...

    async with indelible.open("chats.db", tools=[weather]) as app:
        chat = await app.create_chat()
        async for part in chat.send("Is it raining in Oslo?"):
            print(part.text, end="")

This module holds the public names. Each is imported on first use, so that `import indelible` costs next to nothing
(tests/test_package.py).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from indelible import testing
    from indelible.api.shapes import ChatMessage, ChatSummary, InterruptResult, StoredFile
    from indelible.app.app import App, User
    from indelible.app.chat import Chat
    from indelible.app.compose import open_app as open  # noqa: A004  (as in `indelible.open`)
    from indelible.app.reply import NeverSent, Reply
    from indelible.client.client import Client
    from indelible.client.http_transport import ServerFailed
    from indelible.content import File, Message, Text, ToolCall, ToolResult, Usage
    from indelible.errors import (
        IndelibleError,
        Interrupted,
        Invalid,
        ModelFailed,
        NotAllowed,
        NotFound,
        NotPermitted,
        RateLimited,
        ReadOnly,
        Refused,
        Shutdown,
        StoreFailed,
        TooLarge,
        TooMany,
        UnsupportedType,
    )
    from indelible.store.database.errors import DatabaseUnreachable
    from indelible.tools.tool import Tool, ToolContext, tool

__version__ = "0.1.0"

_HOMES: Final = {
    "App": "app.app",
    "Chat": "app.chat",
    "ChatMessage": "api.shapes",
    "ChatSummary": "store.queries.listing",
    "Client": "client.client",
    "DatabaseUnreachable": "store.database.errors",
    "File": "content",
    "IndelibleError": "errors",
    "InterruptResult": "api.shapes",
    "Interrupted": "errors",
    "Invalid": "errors",
    "Message": "content",
    "ModelFailed": "errors",
    "NeverSent": "app.reply",
    "NotAllowed": "errors",
    "NotFound": "errors",
    "NotPermitted": "errors",
    "RateLimited": "errors",
    "ReadOnly": "errors",
    "Refused": "errors",
    "Reply": "app.reply",
    "ServerFailed": "client.http_transport",
    "Shutdown": "errors",
    "StoreFailed": "errors",
    "StoredFile": "files.store",
    "Text": "content",
    "TooLarge": "errors",
    "TooMany": "errors",
    "Tool": "tools.tool",
    "ToolCall": "content",
    "ToolContext": "tools.tool",
    "ToolResult": "content",
    "UnsupportedType": "errors",
    "Usage": "content",
    "User": "app.app",
    "open": "app.compose:open_app",
    "tool": "tools.tool",
}
"""The module of each public name."""

__all__ = [
    "App",
    "Chat",
    "ChatMessage",
    "ChatSummary",
    "Client",
    "DatabaseUnreachable",
    "File",
    "IndelibleError",
    "InterruptResult",
    "Interrupted",
    "Invalid",
    "Message",
    "ModelFailed",
    "NeverSent",
    "NotAllowed",
    "NotFound",
    "NotPermitted",
    "RateLimited",
    "ReadOnly",
    "Refused",
    "Reply",
    "ServerFailed",
    "Shutdown",
    "StoreFailed",
    "StoredFile",
    "Text",
    "TooLarge",
    "TooMany",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolResult",
    "UnsupportedType",
    "Usage",
    "User",
    "open",
    "testing",
    "tool",
]


def _load(name: str) -> Any:
    home = _HOMES.get(name)
    if name == "testing":
        return importlib.import_module("indelible.testing")
    if home is None:
        raise AttributeError(f"module 'indelible' has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    found = getattr(importlib.import_module(f"indelible.{module}"), attribute or name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


if not TYPE_CHECKING:  # a type checker that saw it would believe in every name (tests/test_public_types.py)
    __getattr__ = _load
