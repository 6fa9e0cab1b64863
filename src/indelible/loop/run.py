"""The loop's entry point: one turn of a chat, with a model, tools and a host.

It knows no database. Its input comes as arguments, its output goes to the host (host.py), and it returns how the
turn ended (host.py):

    end = await run(model, history, host, tools=[weather])
    match end:
        case TurnCompleted(): save(end.step)
        case TurnFailed(): show(end.error)

Every way a turn can end is a value; no caller has to interpret an exception. `run` raises only
`TypeError` and `ValueError` for wrong arguments, at once, and `CancelledError` if its task was cancelled on a live
scope, which is a shutdown. This module only checks the arguments; turn.py does the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from indelible.concurrency.scope import CancelScope
from indelible.content import Message
from indelible.loop.host import TurnEnd, TurnHost
from indelible.loop.options import TurnOptions, TurnSetup
from indelible.loop.turn import Turn
from indelible.models.protocol import Model
from indelible.tools.toolset import AnyTool


async def run(
    model: Model,
    messages: Sequence[Message],
    host: TurnHost | None = None,
    tools: Iterable[AnyTool] = (),
    options: TurnOptions | None = None,
    *,
    scope: CancelScope | None = None,
) -> TurnEnd:
    """Drive one turn to its end, and return the end.

    model, messages: the model, and the conversation so far (`[]` is legal).
    host: receives every part and saves every step that another step follows. Without one, everything is in
        the returned end.
    tools: tools, or typed functions that become tools, or specs of tools that the provider runs.
    options: see `TurnOptions`.
    scope: how the turn is stopped. `scope.interrupt()` ends it with `TurnInterrupted`, `scope.shutdown()` with
        `TurnShutDown`, a lost lease with `TurnLeaseLost`.

    The last step of the turn is in `end.step`, unsaved. `save_end` (step.py) saves it, even if a stop arrives
    meanwhile.
    """
    for name, given in (("model", model), ("messages", messages)):
        if given is None:
            raise TypeError(f"run() needs {name}")
    _check("host", host, TurnHost)
    _check("options", options, TurnOptions)
    _check("scope", scope, CancelScope)
    _check_list("tools", tools)
    history = list(messages)
    for message in history:
        if not isinstance(message, Message):
            raise TypeError(f"messages must hold indelible.content.Message, not {type(message).__name__}")
    setup = TurnSetup.make(model, history, host or TurnHost(), tools, options or TurnOptions())
    with CancelScope(scope) as turn_scope:
        return await Turn(setup, turn_scope).drive()


def _check_list(name: str, value: object) -> None:
    if isinstance(value, str):
        raise TypeError(f"run() takes a list for {name}: {name}=[{value!r}]")


def _check(name: str, value: object, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"run() takes a {kind.__name__} for {name}, not {type(value).__name__}")
