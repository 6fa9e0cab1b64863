"""The three dialects by name, and a whole reply written at once, for tests that need bytes and no network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from indelible.content import Finish, Part, StreamError
from indelible.models.failures.classify import classify
from indelible.testing.provider.wires.anthropic import AnthropicDialect
from indelible.testing.provider.wires.dialect import Dialect, ParsedRequest
from indelible.testing.provider.wires.openai_chat import ChatDialect
from indelible.testing.provider.wires.openai_responses import ResponsesDialect

WireName = Literal["anthropic", "openai", "openai-chat"]

DIALECTS: Final[dict[WireName, Dialect]] = {
    "anthropic": AnthropicDialect(),
    "openai": ResponsesDialect(),
    "openai-chat": ChatDialect(),
}


def write_reply(wire: WireName, parts: Iterable[Part], *, model: str = "simulated") -> list[bytes]:
    """The events of a reply with these parts. Usage is included; an error part becomes an error event."""
    parts = list(parts)
    dialect = DIALECTS[wire]
    body = {"model": model, "stream_options": {"include_usage": True}}
    named = next((part.response_id for part in parts if isinstance(part, Finish)), None)
    reply = dialect.open_reply(
        ParsedRequest(model=model, body=body, messages=[]), named or f"{dialect.reply_prefix}simulated"
    )
    events: list[bytes] = []
    for part in parts:
        if isinstance(part, StreamError):
            return events + reply.write_failure(dialect.refuse_failure(classify(part)))
        events += reply.write(part)
    return events
