"""The tools that the demo model knows how to ask for.

They are real tools, defined with `@tool` like any other: a plain function, and an async one that is
slow and reports its progress.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Final

from pydantic import Field

from indelible.clock import Clock
from indelible.tools import Tool, ToolContext, tool

_BEATS_PER_ROLL: Final = 20


def make_demo_tools(clock: Clock, *, pace_s: float) -> list[Tool[..., Any]]:
    """`current_time` and `roll_die`. A roll lasts as long as a model of that pace takes for a sentence."""

    @tool(idempotent=True)
    def current_time() -> str:
        """Tell the date and the time of day where the user is."""
        return clock.now().astimezone().strftime("%A %d %B %Y, %H:%M:%S (UTC%z)")

    @tool
    async def roll_die(context: ToolContext, sides: Annotated[int, Field(ge=2, le=1000)] = 6) -> str:
        """Roll a die and tell which number came up."""
        for sight in ("it rolls", "it rolls on", "it slows down"):
            await context.progress(sight)
            if pace_s > 0:
                await clock.sleep(_BEATS_PER_ROLL * pace_s)
        return str(secrets.randbelow(sides) + 1)

    return [current_time, roll_die]
