"""Results without the time that their tools took, to compare the rest."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from indelible.content import Block, ToolResult


def untimed(blocks: Sequence[Block]) -> list[Block]:
    return [
        replace(block, started_at=None, duration_s=None) if isinstance(block, ToolResult) else block for block in blocks
    ]
