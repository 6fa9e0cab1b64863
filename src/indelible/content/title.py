"""The title of a chat, as text: one tidy line.

A chat gets a title with its first message, the beginning of what the user wrote, so that no list ever shows a chat
without a name. It is provisional: a title from the model replaces it, and the user's own replaces both (rule 10.15).
worker/titles.py asks the model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from indelible.content.blocks import Block, Text

MAX_TITLE_LENGTH: Final = 80


def extract_title(blocks: Sequence[Block]) -> str | None:
    """The beginning of a message; None if it has no text."""
    return tidy_title(" ".join(block.text for block in blocks if isinstance(block, Text))) or None


def tidy_title(text: str) -> str:
    """One line without decoration, truncated at a word if it is too long."""
    line = re.sub(r"\s+", " ", next((line for line in text.splitlines() if line.strip()), "")).strip(" \"'“”„«»*_#`.")
    if len(line) <= MAX_TITLE_LENGTH:
        return line
    cut = line[:MAX_TITLE_LENGTH].rsplit(" ", 1)[0]
    return f"{cut.rstrip(' ,;:.')}…"
