"""The tools of the servers, and the notebook that they write to.

A run of a tool is a line in the notebook, a file that outlives every server: its name, its idempotency key and the note
that the model gave it, written in one piece before the tool returns. `jot_once` must not run twice; `jot_again` is
declared idempotent, and so is `draw`, whose result also has a picture (files.py). `ask_user` is run by the client, so
no server has it. The model calls them by name (model.py); checks/tools.py checks the notebook.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from indelible.content import File, ToolSpec
from indelible.prove.files import make_file
from indelible.prove.servers.crash_points import CrashPoints
from indelible.tools.tool import Tool, ToolContext, tool

ONCE: Final = "jot_once"
AGAIN: Final = "jot_again"
DRAW: Final = "draw"
ASK: Final = "ask_user"
SAFE_TOOLS: Final = frozenset({AGAIN, DRAW})
CLIENT_TOOLS: Final = [
    ToolSpec(
        name=ASK,
        description="Ask the user.",
        input_schema={"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]},
    )
]
_TOOL_S: Final = 0.05
_REPORT: Final = re.compile(r'(?:\[")?noted (\d+-\d+)')


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

    async def draw(note: str, context: ToolContext) -> list[str | File]:
        drawn = make_file(note)
        report = await jot(note, context)
        return [report, File(drawn.media_type, name=drawn.name, data=drawn.data)]

    return [
        tool(jot, name=ONCE, description="Note something. Twice would be wrong."),
        tool(jot, name=AGAIN, description="Note something. Twice does no harm.", idempotent=True),
        tool(draw, name=DRAW, description="Note something and draw it.", idempotent=True),
    ]


def read_report(output: str) -> str | None:
    """The note in the result of a tool; None if the result does not say that the tool ran."""
    found = _REPORT.match(output)
    return None if found is None else found[1]


def read_notebook(notebook: Path) -> list[ToolRun]:
    """Every run of a tool."""
    if not notebook.exists():
        return []
    return [ToolRun(*line.split()) for line in notebook.read_text().splitlines()]
