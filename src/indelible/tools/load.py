"""Tools named on the command line: `package.module:NAME`, a tool, a typed function, or a list of them.

The working directory is searched too, as `python -m` does. Whatever is wrong, an error inside the module included,
is one sentence that says what to do.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from indelible.content import ToolSpec
from indelible.errors import Invalid
from indelible.tools.tool import Tool, tool


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
