"""The results of a client's tools: refused if too large, else cut like those of any tool (rules 1.3 and 10.9)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from indelible.content import ToolResult
from indelible.errors import NotFound
from indelible.store.limits import StoreLimits, check_payload
from indelible.store.payloads import ToolResultsInput
from indelible.store.protocol import ChatStore
from indelible.tools.output import cut_text, limit_for, render_output

FindWindow = Callable[[str | None], int | None]
"""The context window of the model of this name in tokens; None if it is unknown. It may read files."""

_ALWAYS_KEPT_BYTES: Final = limit_for(0)


async def cut_results(
    chat_id: str,
    results: Sequence[ToolResult],
    *,
    store: ChatStore,
    limits: StoreLimits,
    find_window: FindWindow | None,
) -> ToolResultsInput:
    """Their text, within what the model that gets them can take: that of the open turn."""
    rendered = [replace(result, output=render_output(result.output)) for result in results]
    check_payload(ToolResultsInput(results=rendered), limits)
    if all(len(result.output.encode()) <= _ALWAYS_KEPT_BYTES for result in rendered):
        return ToolResultsInput(results=rendered)
    window: int | None = None
    if find_window is not None:
        with suppress(NotFound):  # the command says so, or answers a repeated request
            window = await asyncio.to_thread(find_window, (await store.status(chat_id)).model)
    cut = [replace(result, output=cut_text(result.output, limit_for(window)).text) for result in rendered]
    return ToolResultsInput(results=cut)
