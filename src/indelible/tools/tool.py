"""What a tool is: the declaration, its context when it runs, and its description for the model.

A tool is declared once with `@tool` on a typed function, async or plain, or made from a JSON
schema that came from elsewhere (`Tool.from_schema`). Whatever is wrong with the declaration is
an error at that moment. The object stays callable as the function was, so a tool is tested
like any other function.

How it runs is declared, not coded: `serial`, `exclusive`, `timeout_s`, and `idempotent`, which
alone decides whether a call that a crash cut off may be run again (P5).

`ToolContext` is a tool's channel to its turn while it runs. `close()` ends it: an abandoned tool may keep
running in its thread, and its reports are then neither published nor waited for.

Must stay true (tests/tools/test_tool.py): a parameter annotated `ToolContext` is never in
the schema; after `close()` neither `progress` nor `report` publishes, and no `report` is left
waiting.

Schemas and checking are schema.py; results as text are output.py; running is run.py. The
ledger is store/journal/append.py.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import math
import re
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, overload

import msgspec
from typing_extensions import ParamSpec, TypeVar

from indelible.concurrency.scope import CancelScope
from indelible.content import TOOL_NAME, ToolSpec
from indelible.tools.output import render_output
from indelible.tools.schema import Arguments, NamedArguments, WholeObject, find_definition, split_docstring

P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)
D = TypeVar("D", default=Any)


# --- what a running tool is given --------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolTurn:
    """Whose turn a tool works for, and the value that the program gave to `indelible.open(deps=…)`."""

    chat_id: str | None = None
    user_id: str | None = None
    turn_id: str | None = None
    deps: Any = None


tool_turn: ContextVar[ToolTurn] = ContextVar("tool_turn", default=ToolTurn())  # noqa: B039  (it is frozen)
"""Set by the worker in the task of a chat. The loop between it and the tools knows neither chats nor users."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class ToolContext(Generic[D]):
    """One call, seen from inside the tool.

    `idempotency_key` is the same when the call is run again after a crash. `scope` says whether
    the result is still wanted: a long-running plain function checks `scope.cancelled`.

    `chat_id`, `user_id` and `turn_id` are None where the loop is used without a worker. `deps` is
    what was given to `indelible.open(deps=…)`; annotate `ToolContext[MyDeps]` to have its type.
    """

    call_id: str
    name: str
    idempotency_key: str
    scope: CancelScope
    publish_progress: Callable[[str], Awaitable[None]] = field(repr=False)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, repr=False)
    turn: ToolTurn = field(default_factory=tool_turn.get, repr=False)
    _closed: concurrent.futures.Future[None] = field(default_factory=concurrent.futures.Future, init=False, repr=False)

    @property
    def chat_id(self) -> str | None:
        return self.turn.chat_id

    @property
    def user_id(self) -> str | None:
        return self.turn.user_id

    @property
    def turn_id(self) -> str | None:
        return self.turn.turn_id

    @property
    def deps(self) -> D:
        deps: D = self.turn.deps
        return deps

    async def progress(self, text: str) -> None:
        """Show the progress of the tool to people. The model hears of it only if the tool is interrupted."""
        if not self._closed.done():
            await self.publish_progress(render_output(text))

    def report(self, text: str) -> None:
        """`progress` for plain functions, which run in a thread: returns when it is published."""
        try:
            would_block = asyncio.get_running_loop() is self.loop
        except RuntimeError:  # a thread has none
            would_block = False
        if would_block:
            raise RuntimeError("report() would block the event loop; use 'await context.progress(...)' here")
        if self._closed.done():
            return
        progress = self.progress(text)
        try:
            publishing = asyncio.run_coroutine_threadsafe(progress, self.loop)
        except RuntimeError:  # the loop was closed under an abandoned tool: no reader is left
            progress.close()
            return
        concurrent.futures.wait((publishing, self._closed), return_when=concurrent.futures.FIRST_COMPLETED)
        if publishing.done() and not publishing.cancelled():
            publishing.result()

    def close(self) -> None:
        """The call was settled or abandoned: publish nothing more, and release a waiting `report`."""
        if not self._closed.done():
            self._closed.set_result(None)


# --- the tool ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Tool(Generic[P, R]):
    """Something a model can ask for. Made by `tool` or `Tool.from_schema`.

    `serial`: never at the same time as another serial tool of the step.
    `exclusive`: only alone; called together with others, none of them runs.
    `idempotent`: running a call again does no harm, so a crash may be followed by another run.
    `timeout_s`: how long it may take; None is the setting.
    """

    name: str
    description: str
    function: Callable[P, R] = field(repr=False)
    arguments: Arguments = field(repr=False)
    serial: bool = False
    exclusive: bool = False
    idempotent: bool = False
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(TOOL_NAME, self.name):
            raise ValueError(
                f"{self.name!r} cannot be a tool's name; give it one of 1 to 64 letters a-z, digits, '_' and '-' "
                f"with tool(name=...)"
            )
        if self.timeout_s is not None and not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise ValueError(
                f"tool {self.name!r}: timeout_s must be a positive number of seconds, not {self.timeout_s}"
            )

    @classmethod
    def from_schema(
        cls,
        name: str,
        description: str,
        input_schema: dict[str, Any],
        function: Callable[P, R],
        *,
        serial: bool = False,
        exclusive: bool = False,
        idempotent: bool = False,
        timeout_s: float | None = None,
    ) -> Tool[P, R]:
        """A tool whose schema comes from elsewhere.

        `function` gets the parsed arguments as a dict, and the `ToolContext` if it takes a
        second parameter. Only that they are a JSON object has been checked.
        """
        _check_function(function, name=name)
        return Tool(
            name=name,
            description=description,
            function=function,
            arguments=WholeObject(function, input_schema, name=name),
            serial=serial,
            exclusive=exclusive,
            idempotent=idempotent,
            timeout_s=timeout_s,
        )

    @property
    def input_schema(self) -> dict[str, Any]:
        return self.arguments.schema

    @property
    def spec(self) -> ToolSpec:
        """Its description for a model."""
        return ToolSpec(name=self.name, description=self.description, input_schema=self.input_schema)

    @property
    def is_async(self) -> bool:
        """Whether calling it gives a coroutine. If not, it belongs in a thread."""
        return inspect.iscoroutinefunction(_find_entry(self.function))

    def validate(self, arguments_json: str) -> dict[str, Any]:
        """The checked arguments, or `BadArguments` with a text for the model."""
        return self.arguments.read(arguments_json)

    def bind(self, arguments_json: str, context: ToolContext) -> Callable[[], Any]:
        """The call, checked and ready: calling it gives a coroutine (`is_async`) or the value."""
        return self.arguments.bind(self.function, self.validate(arguments_json), context)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)


@overload
def tool(
    function: Callable[P, R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    serial: bool = False,
    exclusive: bool = False,
    idempotent: bool = False,
    timeout_s: float | None = None,
) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    serial: bool = False,
    exclusive: bool = False,
    idempotent: bool = False,
    timeout_s: float | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    serial: bool = False,
    exclusive: bool = False,
    idempotent: bool = False,
    timeout_s: float | None = None,
) -> Any:
    """Make a tool of a typed function. With or without brackets; see `Tool` for the options.

    The name is the function's, the description its docstring (an `Args:` section describes the
    arguments), the schema comes from its annotations, and a parameter annotated `ToolContext`
    is filled in when the tool runs.
    """
    if function is None:
        return functools.partial(
            tool,
            name=name,
            description=description,
            serial=serial,
            exclusive=exclusive,
            idempotent=idempotent,
            timeout_s=timeout_s,
        )
    if isinstance(function, staticmethod):
        function = function.__func__
    name = _find_name(function) if name is None else name
    _check_function(function, name=name)
    arguments = NamedArguments(function, name=name, injected=ToolContext)
    from_docstring, parameters = split_docstring(_find_docstring(function), arguments.parameter_names)
    arguments.describe(parameters)
    return Tool(
        name=name,
        description=from_docstring if description is None else description,
        function=function,
        arguments=arguments,
        serial=serial,
        exclusive=exclusive,
        idempotent=idempotent,
        timeout_s=timeout_s,
    )


def _check_function(function: object, *, name: str) -> None:
    if isinstance(function, Tool):
        raise TypeError(f"{function.name!r} is a tool already; make the new one from its function: .function")
    if not callable(function) or isinstance(function, type | classmethod):
        raise TypeError(f"a tool is made from a function, not from {function!r}; its name goes in as name=...")
    entry = _find_entry(function)
    if inspect.isasyncgenfunction(entry) or inspect.isgeneratorfunction(entry):
        raise TypeError(
            f"tool {name!r}: a generator gives no single result; return the result, "
            f"and use 'await context.progress(...)' to show what happens meanwhile"
        )


def _peel(function: Any) -> Any:
    """The callable that a partial calls in the end."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _find_entry(function: Callable[..., Any]) -> Any:
    """The routine that a call goes into: the function, or the `__call__` of an object."""
    inner = _peel(function)
    return inner if inspect.isroutine(inner) else inner.__call__


def _find_name(function: Callable[..., Any]) -> str:
    inner = _peel(function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _find_docstring(function: Callable[..., Any]) -> str:
    inner = _peel(function)
    docstring = find_definition(function).__doc__
    if not docstring and not inspect.isroutine(inner):
        docstring = type(inner).__doc__
    return inspect.cleandoc(docstring or "")


# --- what is recorded --------------------------------------------------------------------


class ToolCallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A local call as a ledger knows it (`TurnHost.record`, loop/host.py).

    After a crash a call that was started and never settled is not run again unless its tool is `idempotent`; the
    model reads "outcome unknown" (P5). One that never started is safe to run.

    `step` counts from 1 in the turn, `index` from 0 among the step's local calls. The two and
    the turn make `idempotency_key`, and not `id`: providers' ids repeat.
    """

    id: str
    name: str
    arguments: str
    step: int
    index: int
    idempotency_key: str
    idempotent: bool = False
