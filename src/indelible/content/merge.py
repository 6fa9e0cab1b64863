"""Merging deltas: several neighbouring deltas of one block become one, and `assemble` builds the same blocks from it.

A provider sends a token at a time. Everything after it costs per part and not per character, so deltas are merged where
several are there at once: in what was read in one piece (models/http/http_model.py), and in a row of the journal.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from indelible.content.parts import Part, ReasoningDelta, TextDelta, ToolInputDelta


def merge_deltas(parts: Sequence[Part]) -> list[Part]:
    """Merge neighbouring deltas of one block: `assemble` builds the same blocks from them."""
    merged: list[Part] = []
    texts: list[str] = []
    for part in parts:
        last = merged[-1] if merged else None
        if last is not None and _continues(last, part):
            texts.append(part.delta)  # type: ignore[union-attr]
            continue
        _join(merged, texts)
        merged.append(part)
        texts = [getattr(part, "delta", "")]
    _join(merged, texts)
    return merged


def _continues(last: Part, part: Part) -> bool:
    kind = type(part)
    if kind is not type(last) or kind not in (TextDelta, ReasoningDelta, ToolInputDelta):
        return False
    if isinstance(part, ReasoningDelta) and (part.signature or part.metadata):
        return False
    return last.id == part.id  # type: ignore[union-attr]


def _join(merged: list[Part], texts: list[str]) -> None:
    if len(texts) > 1:
        merged[-1] = replace(merged[-1], delta="".join(texts))
