"""Messages: the committed rows of a chat, and the JSON of everything in this package.

assemble.py turns parts into the blocks of a message. loop/prompt/build.py selects what a model gets.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from indelible.content.blocks import Block, text_of
from indelible.content.parts import Part
from indelible.content.unicode import clean_value

Role = Literal["system", "user", "assistant", "tool", "notice"]
Visibility = Literal["both", "people", "model"]
PartialReason = Literal[
    "interrupted", "crashed", "handed_over", "failed", "edited", "length", "content_filter", "max_steps"
]


class Message(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One committed row of a chat.

    `provider` and `model` say who wrote it (None: the same as now). `response_id` is set only
    for a complete reply that the provider stored. `reason` says why a reply was interrupted, or what limited it;
    `partial` says that it has visible output and is incomplete.
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
        return text_of(self.blocks)


TOOL_NAME: Final = r"^[A-Za-z0-9_-]{1,64}$"
"""What every provider takes as the name of a tool."""


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a tool for a model.

    A `provider_executed` tool is run by the provider; `options` is then the provider's own
    description of it, sent unchanged.
    """

    name: str
    description: str = ""
    input_schema: dict[str, Any] = {}
    provider_executed: bool = False
    options: dict[str, Any] = {}


# --- JSON --------------------------------------------------------------------------------

_encode: Final = msgspec.json.Encoder().encode


def encode(value: Any) -> bytes:
    """The JSON form. Lone surrogates, which JSON cannot hold, are replaced (content/unicode.py)."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(clean_value(msgspec.to_builtins(value)))


decode_part: Final = msgspec.json.Decoder(Part).decode
decode_parts: Final = msgspec.json.Decoder(list[Part]).decode
decode_blocks: Final = msgspec.json.Decoder(list[Block]).decode
