"""The tools of the servers, and the notebook that they write to.

A run of a tool is a line in the notebook, a file that outlives every server: its name and its idempotency key, written
in one piece before the tool returns. `jot_once` must not run twice; `jot_again` is declared idempotent. The model calls
them by name (model.py); checker.py checks the notebook.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Final

from indelible.prove.servers.crash_points import CrashPoints
from indelible.tools.tool import Tool, ToolContext, tool

ONCE: Final = "jot_once"
AGAIN: Final = "jot_again"
SAFE_TOOLS: Final = frozenset({AGAIN})
_TOOL_S: Final = 0.05


def make_tools(notebook: Path, crash_points: CrashPoints) -> list[Tool[Any, Any]]:
    async def jot(context: ToolContext) -> str:
        await crash_points.pass_by("before_effect")
        line = f"{context.name} {context.idempotency_key}\n"
        handle = os.open(notebook, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
        await crash_points.pass_by("after_effect")
        await asyncio.sleep(_TOOL_S)
        return f"noted {context.idempotency_key}"

    return [
        tool(jot, name=ONCE, description="Note something. Twice would be wrong."),
        tool(jot, name=AGAIN, description="Note something. Twice does no harm.", idempotent=True),
    ]


def read_notebook(notebook: Path) -> list[tuple[str, str]]:
    """Every run of a tool: its name and its idempotency key."""
    if not notebook.exists():
        return []
    return [(name, key) for name, key in (line.split() for line in notebook.read_text().splitlines())]
