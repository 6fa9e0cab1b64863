"""The front door of the loop: one turn of a chat, with a model, tools and a place to save.

It knows no database. Everything it needs comes in as arguments, and everything it keeps goes out
through `persist_step`, so it can be used alone:

    result = await run(model=model, messages=history, persist_step=save, tools=[weather])

`persist_step(step, scope)` is called once per step with a `FinishedStep`. The scope it gets is fresh:
saving after a stop must not find itself cancelled. It may return messages to put before the next
prompt. This module only checks and names the arguments; the work is turn.py.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from indelible.clock import Clock, SystemClock
from indelible.concurrency.scope import CancelScope
from indelible.content import Message, Part, ToolSpec
from indelible.ids import new_id
from indelible.loop.attempt import publish_to_nobody
from indelible.loop.result import FinishedStep, TurnResult
from indelible.loop.setup import TurnSetup
from indelible.loop.turn import Turn
from indelible.metrics import NO_METRICS, Metrics
from indelible.models.protocol import CallOptions, Model
from indelible.models.retry import RetryEvent, RetryPolicy
from indelible.tools.run import ToolLimits
from indelible.tools.tool import Ledger
from indelible.tools.toolset import AnyTool, Toolset, name_of

Messages = Sequence[Message]


async def run(
    *,
    model: Model,
    messages: Messages,
    persist_step: Callable[[FinishedStep, CancelScope], Messages | Awaitable[Messages | None] | None],
    tools: Iterable[AnyTool] = (),
    active_tools: Iterable[str | AnyTool] = (),
    client_tools: Iterable[str | AnyTool] = (),
    stop_after: Iterable[str | AnyTool] = (),
    exclusive: Iterable[str | AnyTool] = (),
    max_steps: int = 200,
    scope: CancelScope | None = None,
    publish: Callable[[Part], Any] | None = None,
    ledger: Ledger | None = None,
    options: CallOptions | None = None,
    context_limit_fallback: int | None = None,
    prepare_messages: Callable[[list[Message]], Messages | Awaitable[Messages]] | None = None,
    prepare_tools: Callable[[list[ToolSpec]], Iterable[ToolSpec] | Awaitable[Iterable[ToolSpec]]] | None = None,
    reload_messages: Callable[[], Messages | Awaitable[Messages]] | None = None,
    disable_chain_mode: Callable[[], Any] | None = None,
    compact: Callable[[list[Message]], Message | Awaitable[Message | None] | None] | None = None,
    on_compacted: Callable[[Message], Any] | None = None,
    on_attempt: Callable[[int, int], Any] | None = None,
    keep_failed: bool = False,
    on_retry: Callable[[RetryEvent], Any] | None = None,
    on_persist_error: Callable[[BaseException], Any] | None = None,
    retry: RetryPolicy | None = None,
    silence_timeout_s: float = 120.0,
    tool_limits: ToolLimits | None = None,
    clock: Clock | None = None,
    chance: Callable[[], float] = random.random,
    metrics: Metrics = NO_METRICS,
    turn_id: str | None = None,
    first_step: int = 1,
    adopt: Sequence[Part] | None = None,
    compact_at: float | None = None,
    used_tokens: int = 0,
) -> TurnResult:
    """Drive one turn to its end.

    model, messages, persist_step: whom to ask, what was said, where to save. All three are required;
        `messages=[]` is legal.
    tools: tools, or typed functions that become tools, or specs of tools that the provider runs.
    active_tools: a whitelist for advertising and executing; empty means all.
    client_tools: executed outside. The turn stops for them with reason "client_tools".
    stop_after: a successful result of one of these ends the turn.
    exclusive: must be called alone.
    max_steps: how many complete steps at most; 0 and less mean 1.
    scope: how the run is stopped. `scope.interrupt()` ends it with `Interrupted`, `scope.shutdown()` with
        `Shutdown`. Cancelling the task on a live scope is a shutdown too.
    publish(part): every part, as it comes. Slow publishing slows the reading down.
    ledger: told before a tool starts and when it has settled.
    context_limit_fallback: the context window to assume when the model does not know its own.
    prepare_messages, prepare_tools: a last look at what the model gets, once per step.
    reload_messages, disable_chain_mode: what leaving a response chain needs (SPEC §4).
    compact(messages): a summary to put after them, or None; asked once when the context overflows. By default
        the model is asked (compact.py). on_compacted(summary): where to keep it, when it was made.
    on_attempt(step, number): before every model call. keep_failed: save what a failed attempt showed, and
        continue it, rather than starting over. on_retry(event): before the wait.
    on_persist_error(error): saving after an interrupt failed; the run ends `Interrupted` all the same.
    silence_timeout_s: how long a model may say nothing.
    turn_id, first_step: name the turn and number its steps in idempotency keys; a turn that is continued
        elsewhere passes the same.
    adopt: the parts of a first step that was read to its finish elsewhere. It is not asked for again: only tools
        that have no result yet are run, and of those that had begun only the idempotent ones.
    compact_at: the share of the context window from which on older turns are replaced by a summary before the next
        step; None is never. used_tokens: what the last reply before this turn took.

    Raises `Interrupted`, `Shutdown`, `LeaseLost`, `ModelFailed`, or whatever `persist_step` raised.
    """
    for name, given in (("model", model), ("messages", messages), ("persist_step", persist_step)):
        if given is None:
            raise TypeError(f"run() needs {name}")
    _check_types(
        {"options": (options, CallOptions), "retry": (retry, RetryPolicy), "scope": (scope, CancelScope)}
        | {"tool_limits": (tool_limits, ToolLimits)}
    )
    lists = {"tools": tools, "active_tools": active_tools, "client_tools": client_tools}
    for name, listed in (lists | {"stop_after": stop_after, "exclusive": exclusive}).items():
        if isinstance(listed, str):
            raise TypeError(f"run() takes a list for {name}: {name}=[{listed!r}]")
    history = list(messages)
    for message in history:
        if not isinstance(message, Message):
            raise TypeError(f"messages must hold indelible.content.Message, not {type(message).__name__}")
    own_limit = getattr(model, "context_limit", None)
    setup = TurnSetup(
        model=model,
        messages=history,
        persist_step=persist_step,
        toolset=Toolset(tools, active=active_tools, client=client_tools, exclusive=exclusive),
        stop_after=frozenset(map(name_of, stop_after)),
        max_steps=max(1, max_steps),
        publish=publish or publish_to_nobody,
        ledger=ledger,
        options=options or CallOptions(),
        context_limit=context_limit_fallback if own_limit is None else own_limit,
        prepare_messages=prepare_messages,
        prepare_tools=prepare_tools,
        reload_messages=reload_messages,
        disable_chain_mode=disable_chain_mode,
        compact=compact,
        on_compacted=on_compacted,
        on_attempt=on_attempt,
        keep_failed=keep_failed,
        on_retry=on_retry,
        on_persist_error=on_persist_error,
        retry=retry or RetryPolicy(),
        silence_timeout_s=silence_timeout_s,
        tool_limits=tool_limits or ToolLimits(),
        clock=clock or SystemClock(),
        chance=chance,
        metrics=metrics,
        turn_id=turn_id or new_id("turn"),
        first_step=first_step,
        adopt=adopt,
        compact_at=compact_at,
        used_tokens=used_tokens,
    )
    with CancelScope(scope) as turn_scope:
        return await Turn(setup, turn_scope).drive()


def _check_types(given: dict[str, tuple[object, type]]) -> None:
    for name, (value, kind) in given.items():
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"run() takes a {kind.__name__} for {name}, not {type(value).__name__}")
