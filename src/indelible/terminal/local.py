"""A database that this process opens, with a worker and, unless the settings name another model, the demo model.

The demo model knows how to ask for two tools. They are real tools, defined with `@tool` like any other: a plain
function, and an async one that is slow and reports its progress.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, Final

from pydantic import Field

from indelible.app.app import User
from indelible.app.compose import open_app
from indelible.clock import Clock
from indelible.models.providers.demo import DemoModel
from indelible.settings import Settings
from indelible.store.database.address import describe, parse_address
from indelible.tools import Tool, ToolContext, tool
from indelible.tools.toolset import AnyTool

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


def open_database(
    settings: Settings,
    *,
    clock: Clock,
    tools: Sequence[AnyTool] = (),
    demo_pace_s: float = 0.02,
    demo_seed: int | None = None,
) -> AbstractAsyncContextManager[User]:
    """The local user's chats, with a worker. The demo model gets pace, seed and, if there are none, its tools."""
    demo = DemoModel(clock, pace_s=demo_pace_s, seed=demo_seed)
    if not tools and settings.model == demo.name:
        tools = make_demo_tools(clock, pace_s=demo_pace_s)
    return open_app(
        settings=settings,
        model=demo if settings.model == demo.name else settings.model,
        models={demo.name: demo},
        tools=tools,
        clock=clock,
    )


def describe_database(settings: Settings) -> str:
    return f"{settings.model} model · {describe(parse_address(settings.database))}"
