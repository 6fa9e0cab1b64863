"""The wires by name."""

from __future__ import annotations

from indelible.models.anthropic import AnthropicWire
from indelible.models.openai_chat import ChatWire
from indelible.models.openai_responses import ResponsesWire
from indelible.models.wire import Wire


def make_wire(name: str, *, official: bool, provider: str | None = None) -> Wire:
    """`official`: it is OpenAI itself at the other end, and not something that speaks its language; `provider` does."""
    match name:
        case "anthropic":
            return AnthropicWire()
        case "openai":
            return ResponsesWire()
        case _:
            return ChatWire(official=official, provider=provider or name)
