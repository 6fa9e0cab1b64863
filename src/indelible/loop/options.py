"""The options of a turn: one frozen value, checked when it is made; and what a turn was given, resolved once.

`run` takes what differs from call to call (model, messages, host, tools, scope); all configuration is here, with the
product's defaults. Wrong values raise `TypeError` at once, not in the middle of a turn
(tests/loop/test_acceptance_steps.py). run.py makes the `TurnSetup`; turn.py, context.py and step.py read it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from indelible.clock import Clock, SystemClock
from indelible.content import Message, Part
from indelible.ids import new_id
from indelible.loop.attempt import ReplyLimits
from indelible.loop.host import TurnHost
from indelible.metrics import NO_METRICS, Metrics
from indelible.models.protocol import CallOptions, Model
from indelible.models.retry import RetryPolicy
from indelible.tools.run import ToolLimits
from indelible.tools.toolset import AnyTool, Toolset, name_of

Summarise = Callable[[list[Message]], Message | Awaitable[Message | None] | None]
ToolNames = Iterable[str | AnyTool]


class TurnOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Every field has a default.

    call: how the model is called: stored, chained, with which parameters.
    active_tools: a whitelist for advertising and executing; empty means all.
    client_tools: executed outside. The turn ends with `TurnAwaitingClient` for them.
    stop_after: a successful result of one of these ends the turn.
    exclusive: must be called alone.
    max_steps: the maximum number of complete steps; 0 and less mean 1.
    tool_limits: how many tools run at once, for how long, and how long one may take to stop.
    retry: when a failed call is retried. chance: the jitter, between 0 and 1.
    keep_failed: save the visible output of a failed attempt, and continue it, instead of starting over.
    silence_timeout_s: how long a model may send nothing. keep_alive_timeout_s: how long it may send only keep-alives.
    reply_max_characters: where a reply of one model call is ended, with the reason `length`.
    context_limit_fallback: the context window to assume when the model does not know its own.
    compact_at: the share of the window above which older turns are summarised before the next step; None: never.
    used_tokens: how much of the window the last reply before this turn used.
    compact: makes the summary, or returns None if there is nothing to leave out. By default the model is asked.
    turn_id, first_step: name the turn and number its steps in idempotency keys; a worker that continues the turn
        passes the same values.
    adopt: the parts of a first step that another worker read to its finish. The model is not called again: only tools
        without a result run, and of those that had started only the idempotent ones.
    hide_secrets: hides the secrets that this process knows in the text of a tool's exception.
    """

    call: CallOptions = CallOptions()
    active_tools: ToolNames = ()
    client_tools: ToolNames = ()
    stop_after: ToolNames = ()
    exclusive: ToolNames = ()
    max_steps: int = 200
    tool_limits: ToolLimits = ToolLimits()
    retry: RetryPolicy = RetryPolicy()
    chance: Callable[[], float] = random.random
    keep_failed: bool = False
    silence_timeout_s: float = 300.0
    keep_alive_timeout_s: float = 1800.0
    reply_max_characters: int = 4_000_000
    context_limit_fallback: int | None = None
    compact_at: float | None = None
    used_tokens: int = 0
    compact: Summarise | None = None
    turn_id: str | None = None
    first_step: int = 1
    adopt: Sequence[Part] | None = None
    clock: Clock = SystemClock()
    metrics: Metrics = NO_METRICS
    hide_secrets: Callable[[str], str] = str

    def __post_init__(self) -> None:
        for name, kind in (("call", CallOptions), ("retry", RetryPolicy), ("tool_limits", ToolLimits)):
            given = getattr(self, name)
            if not isinstance(given, kind):
                raise TypeError(f"TurnOptions takes a {kind.__name__} for {name}, not {type(given).__name__}")
        for name in ("active_tools", "client_tools", "stop_after", "exclusive"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise TypeError(f"TurnOptions takes a list for {name}: {name}=[{given!r}]")

    @property
    def reply_limits(self) -> ReplyLimits:
        """The limits of every model call of the turn, those for a summary included."""
        return ReplyLimits(
            silence_timeout_s=self.silence_timeout_s,
            keep_alive_timeout_s=self.keep_alive_timeout_s,
            max_characters=self.reply_max_characters,
            grace_s=self.tool_limits.grace_s,
        )


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
