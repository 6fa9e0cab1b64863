"""Messages: the committed rows of a chat, the JSON of everything in this package, and the title of a chat as text.

assemble.py turns parts into the blocks of a message. loop/prompt/build.py selects what a model gets.

A title is one tidy line without Markdown, since it is shown where nothing formats it. A chat gets one with its first
message, the beginning of what the user wrote, so that no list ever shows a chat without a name. It is provisional: a
title from the model replaces it (worker/summaries.py), and the user's own replaces both (rule 10.15).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from indelible.content.blocks import Block, PartialReason, Text, text_of
from indelible.content.parts import Part
from indelible.content.unicode import clean_value

Role = Literal["system", "user", "assistant", "tool", "notice"]
Visibility = Literal["both", "people", "model"]


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
MAX_TITLE_LENGTH: Final = 80
_LONGEST_SOURCE: Final = 10_000
_LONGEST_LINE: Final = 1000
_EMPTY_LINE: Final = re.compile(r"\s*(?:(?:```|~~~).*|[-=*_|:\s]*)")
"""A fence, a rule, what underlines a heading or a table's head."""
_BLOCK: Final = re.compile(r"\s*(?:>|#{1,6}\s|[-*+]\s(?:\s*\[[ xX]\]\s)?|\d{1,9}[.)]\s)")
"""What begins a quotation, a heading, an item of a list or a task."""
_INLINE: Final = (
    (re.compile(r"!?\[([^\]]*)\](?:\([^()\s]*(?:\s+[\"'][^\"']*[\"'])?\)|\[[^\]]*\])"), r"\1"),  # links, pictures
    (re.compile(r"<((?:https?://|mailto:)[^<>\s]+)>"), r"\1"),
    (re.compile(r"(`+)(.+?)\1"), r"\2"),
    (re.compile(r"(?<![\w\\])(\*{1,3}|_{1,3}|~~)(?=\S)(.+?)(?<=\S)\1(?!\w)"), r"\2"),  # emphasis, between words
    (re.compile(r"\\([!-/:-@\[-`{-~])"), r"\1"),
)


def extract_title(blocks: Sequence[Block]) -> str | None:
    """The beginning of a message; None if it has no text."""
    return tidy_title(" ".join(block.text for block in blocks if isinstance(block, Text))) or None


def find_first_words(messages: Sequence[Message]) -> str | None:
    """The title that the user's first message in a conversation gives it."""
    first = next((message for message in messages if message.role == "user" and message.visibility == "both"), None)
    return None if first is None else extract_title(first.blocks)


def tidy_title(text: str) -> str:
    """The first line that has words, without decoration, truncated at a word if it is too long."""
    lines = (line[:_LONGEST_LINE] for line in text[:_LONGEST_SOURCE].splitlines())
    line = next(filter(None, map(_strip_markdown, lines)), "")
    if len(line) <= MAX_TITLE_LENGTH:
        return line
    cut = line[:MAX_TITLE_LENGTH].rsplit(" ", 1)[0]
    return f"{cut.rstrip(' ,;:.')}…"


def _strip_markdown(line: str) -> str:
    if _EMPTY_LINE.fullmatch(line):
        return ""
    while found := _BLOCK.match(line):
        line = line[found.end() :]
    for pattern, kept in (*_INLINE[:-1], *_INLINE):  # twice: one may be inside another
        line = pattern.sub(kept, line)
    return re.sub(r"\s+", " ", line).strip(" \"'“”„«»*_#`.")
