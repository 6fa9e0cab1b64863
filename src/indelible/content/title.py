"""The title of a chat, as text: one tidy line without Markdown, since a title is shown where nothing formats it.

A chat gets a title with its first message, the beginning of what the user wrote, so that no list ever shows a chat
without a name. It is provisional: a title from the model replaces it, and the user's own replaces both (rule 10.15).
worker/titles.py asks the model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from indelible.content.blocks import Block, Text
from indelible.content.messages import Message

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
