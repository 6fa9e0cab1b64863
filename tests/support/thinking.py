"""Thinking in a text that is there as a whole."""

from __future__ import annotations

from indelible.loop.thinking import ThinkingSplitter


def split_thinking(text: str, *, thinks_first: bool = False) -> tuple[str, str]:
    """The answer in a complete text, and the thinking."""
    splitter = ThinkingSplitter(thinks_first=thinks_first)
    segments = splitter.feed(text) + splitter.finish()
    answer = "".join(segment.text for segment in segments if not segment.thinking)
    thinking = "".join(segment.text for segment in segments if segment.thinking)
    return answer, thinking
