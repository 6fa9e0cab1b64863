"""The tools of the servers, and the notebook that they write to.

A run of a tool is a line in the notebook, a file that outlives every server: its name, its idempotency key and the note
that the model gave it, written in one piece before the tool returns. `jot_once` must not run twice; `jot_again` is
declared idempotent. `ask_user` is run by the client, so no server has it. The model calls them by name (model.py);
checks/tools.py checks the notebook.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from indelible.prove.servers.crash_points import CrashPoints
from indelible.tools.tool import Tool, ToolContext, tool

ONCE: Final = "jot_once"
AGAIN: Final = "jot_again"
ASK: Final = "ask_user"
SAFE_TOOLS: Final = frozenset({AGAIN})
CLIENT_TOOLS: Final[list[dict[str, Any]]] = [
    {
        "name": ASK,
        "description": "Ask the user.",
        "input_schema": {"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]},
    }
]
_TOOL_S: Final = 0.05


class ToolRun(NamedTuple):
    """A line of the notebook. The key begins with the turn."""

    name: str
    key: str
    note: str


def make_tools(notebook: Path, crash_points: CrashPoints) -> list[Tool[Any, Any]]:
    async def jot(note: str, context: ToolContext) -> str:
        await crash_points.pass_by("before_effect")
        line = f"{context.name} {context.idempotency_key} {note}\n"
        handle = os.open(notebook, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
        await crash_points.pass_by("after_effect")
        await asyncio.sleep(_TOOL_S)
        return f"noted {note}"

    return [
        tool(jot, name=ONCE, description="Note something. Twice would be wrong."),
        tool(jot, name=AGAIN, description="Note something. Twice does no harm.", idempotent=True),
    ]


def read_notebook(notebook: Path) -> list[ToolRun]:
    """Every run of a tool."""
    if not notebook.exists():
        return []
    return [ToolRun(*line.split()) for line in notebook.read_text().splitlines()]
