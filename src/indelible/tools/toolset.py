"""The tools of a turn, and the verdict on each call of the model; and tools that a command line names.

Pure rules. The model may call anything, so every call gets a verdict: it is run here, it is the
client's to run, or it is answered with an error that the model can read and learn from. Nothing a
model writes can abort a step.

`active` is a whitelist for advertising *and* executing; empty means all. Tools that the provider
runs are always advertised. An exclusive tool is called alone or not at all: together with any other
call that is not the provider's, none runs.

`load_tools` reads `package.module:NAME`, which is a tool, a typed function, or a list of them. The working directory is
searched too, as `python -m` does. Whatever is wrong, an error inside the module included, is one sentence that says
what to do.

Must stay true (tests/tools/test_toolset.py). Running what is to be run is run.py.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

from indelible.content import ToolCall, ToolResult, ToolSpec
from indelible.content.assemble import answer_unrun
from indelible.errors import Invalid
from indelible.tools.output import BadArguments
from indelible.tools.schema import parse_arguments
from indelible.tools.tool import Tool, tool

AnyTool = Tool | ToolSpec | Callable[..., Any]
"""A tool; or, for `tools`, a typed function that becomes one, or the spec of a provider's own tool."""


class RunHere(NamedTuple):
    call: ToolCall
    tool: Tool


class DeferToClient(NamedTuple):
    call: ToolCall


class RejectCall(NamedTuple):
    """The call is not run: this is its result, whose output is an error that the model can read."""

    call: ToolCall
    result: ToolResult


ToolPlan = RunHere | DeferToClient | RejectCall


class Toolset:
    def __init__(
        self,
        tools: Iterable[AnyTool] = (),
        *,
        active: Iterable[str | AnyTool] = (),
        client: Iterable[str | AnyTool] = (),
        exclusive: Iterable[str | AnyTool] = (),
    ) -> None:
        client = list(client)
        self._client = {name_of(given) for given in client}
        self._active = {name_of(given) for given in active}
        self._tools: dict[str, Tool] = {}
        self._specs: dict[str, ToolSpec] = {}
        self._chosen: list[ToolSpec] | None = None
        self._added: set[str] = set()
        for given in [*tools, *(given for given in client if not isinstance(given, str))]:
            self._add(given)
        self._exclusive = {name_of(given) for given in exclusive}
        self._exclusive |= {name for name, known in self._tools.items() if known.exclusive}

    def _add(self, given: AnyTool) -> None:
        if isinstance(given, ToolSpec):
            spec = given
        else:
            made = _make(given)
            spec = made.spec
            self._tools[made.name] = made
        if self._specs.get(spec.name, spec) != spec:
            raise ValueError(f"There are two tools named {spec.name!r}. Rename one of them.")
        self._specs[spec.name] = spec

    def extend(self, prepared: Iterable[AnyTool]) -> Toolset:
        """The tools of one step: exactly these are advertised, and those that are new can be called (rule 10.12).

        Raises `TypeError` for a spec that nothing can run: the model must not be offered it.
        """
        step = copy(self)
        step.choose(prepared)
        return step

    def choose(self, prepared: Iterable[AnyTool]) -> None:
        """See `extend`. Nothing is changed that a copy of this shares with it."""
        known = self._tools
        self._tools, self._specs, self._chosen = dict(known), dict(self._specs), []
        self._added = set()
        for given in prepared:
            spec = given if isinstance(given, ToolSpec) else (made := _make(given)).spec
            if not isinstance(given, ToolSpec):
                self._tools[spec.name] = made
                self._added.add(spec.name)
            elif not (spec.provider_executed or spec.name in known or spec.name in self._client):
                raise TypeError(
                    f"prepare_tools added the spec of {spec.name!r}, which nothing can run. Return the tool itself."
                )
            self._specs[spec.name] = spec
            self._chosen.append(spec)

    @property
    def advertised(self) -> list[ToolSpec]:
        if self._chosen is not None:
            return list(self._chosen)
        return [spec for spec in self._specs.values() if spec.provider_executed or self._is_active(spec.name)]

    def plan(self, calls: Sequence[ToolCall], is_whole: Callable[[ToolCall], bool]) -> list[ToolPlan]:
        """A verdict for each local call of a step, in order."""
        alone = next((call.name for call in calls if call.name in self._exclusive), None)
        if alone is not None and len(calls) > 1:
            text = f"Not run: {alone} must be called alone. None of these calls was run; call {alone} by itself."
            return [_reject(call, text) for call in calls]
        return [self._plan_call(call, whole=is_whole(call)) for call in calls]

    def _plan_call(self, call: ToolCall, *, whole: bool) -> ToolPlan:
        if not whole:
            return _reject(call, "Not run: the arguments were cut off before their end.")
        if call.name not in self._client and call.name not in self._tools:
            return _reject(call, f"There is no tool named {call.name!r}. {self._list_available()}")
        if not self._is_active(call.name):
            return _reject(call, f"The tool {call.name} is not available now. {self._list_available()}")
        try:
            parse_arguments(call.arguments)
        except BadArguments as error:
            return _reject(call, str(error))
        return DeferToClient(call) if call.name in self._client else RunHere(call, self._tools[call.name])

    def label(self, name: str) -> str:
        """The name for metrics: a model may invent names, and they must not become labels."""
        return name if name in self._specs or name in self._client else "unknown"

    def _is_active(self, name: str) -> bool:
        return not self._active or name in self._active or name in self._added

    def _list_available(self) -> str:
        names = sorted({*self._tools, *self._client} & (self._active or {*self._tools, *self._client}))
        return f"Available: {', '.join(names)}." if names else "There are no tools."


def _reject(call: ToolCall, text: str) -> RejectCall:
    return RejectCall(call, answer_unrun(call, "invalid", text))


def _make(given: Tool | Callable[..., Any]) -> Tool:
    return given if isinstance(given, Tool) else tool(given)


def name_of(given: str | AnyTool) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, Tool | ToolSpec):
        return given.name
    return given.__name__


def load_tools(names: Iterable[str], *, option: str = "--tools") -> list[Tool | ToolSpec]:
    """The tools of these names, in order. Raises `Invalid` with what is wrong."""
    tools = [found for name in names for found in _load(name, option)]
    for tool_name, count in Counter(found.name for found in tools).items():
        if count > 1:
            raise Invalid(f"{option}: there are two tools named {tool_name}. Rename one of them.")
    return tools


def _load(name: str, option: str) -> list[Tool | ToolSpec]:
    module_name, separator, attribute = name.partition(":")
    if not separator or not module_name or not attribute:
        raise Invalid(f"{option} {name}: write it as package.module:NAME.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise Invalid(f"{option} {name}: there is no module {error.name}.") from error
    except Exception as error:
        raise Invalid(f"{option} {name}: the module cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        raise Invalid(f"{option} {name}: the module {module_name} has no {attribute}.")
    found = getattr(module, attribute)
    listed = list(found) if isinstance(found, list | tuple) else [found]
    return [_check(name, option, given) for given in listed]


def _check(name: str, option: str, given: Any) -> Tool | ToolSpec:
    if isinstance(given, Tool | ToolSpec):
        return given
    if not callable(given):
        raise Invalid(f"{option} {name}: {given!r} is neither a tool nor a function.")
    try:
        return tool(given)
    except (TypeError, ValueError) as error:
        raise Invalid(f"{option} {name}: {error}") from error
