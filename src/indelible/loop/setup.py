"""What a turn was given, checked and resolved: made once by run.py, read by turn.py, context.py and step.py."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from indelible.content import Message
from indelible.ids import new_id
from indelible.loop.host import TurnHost
from indelible.loop.options import TurnOptions
from indelible.models.protocol import Model
from indelible.tools.toolset import AnyTool, Toolset, name_of


class TurnSetup(msgspec.Struct, frozen=True, kw_only=True):
    """`toolset`, `stop_after`, `context_limit` and `turn_id` are resolved from the options; the rest is as given."""

    model: Model
    messages: list[Message]
    host: TurnHost
    options: TurnOptions
    toolset: Toolset
    stop_after: frozenset[str]
    context_limit: int | None
    turn_id: str

    @classmethod
    def make(
        cls, model: Model, messages: list[Message], host: TurnHost, tools: Iterable[AnyTool], options: TurnOptions
    ) -> TurnSetup:
        own_limit = model.context_limit
        return cls(
            model=model,
            messages=messages,
            host=host,
            options=options,
            toolset=Toolset(
                tools, active=options.active_tools, client=options.client_tools, exclusive=options.exclusive
            ),
            stop_after=frozenset(map(name_of, options.stop_after)),
            context_limit=options.context_limit_fallback if own_limit is None else own_limit,
            turn_id=options.turn_id or new_id("turn"),
        )
