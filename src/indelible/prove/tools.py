"""What a proof has inside the servers: tools that leave a trace, and named points at which a server kills itself.

A run of a tool is a line in the notebook, a file that outlives every server: its name, its idempotency key and the note
that the model gave it, written in one piece before the tool returns. `jot_once` must not run twice; `jot_again` is
declared idempotent, and so is `draw`, whose result also has a picture. `ask_user` is run by the client, so no server
has it. The model calls them by name (model.py); checks.py checks the notebook.

A kill from outside lands wherever the process happens to be. Crash points land at the worst moments: between a flush
and its commit, between a commit and its notification, in a tool, in a stop, in a takeover, in an upload. The product
has no code for them: public methods of the stores and the notifiers are wrapped before anything starts. At an armed
point the work pauses for a moment before the process dies, while everything else continues, so that anything published
too early has time to reach a reader. Passes are counted per process, from the moment of arming.

Must stay true (tests/prove/test_crash_points.py): an armed process dies at the point by SIGKILL, and one that is not
armed behaves as usual.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from indelible.content import File, ToolSpec
from indelible.files.bytes import DatabaseWriter, DirectoryWriter
from indelible.files.store import FileStore
from indelible.machine.commands import Acquire, Command, FinishInterruption
from indelible.notify import LocalNotifier, PostgresNotifier
from indelible.prove.script import make_file
from indelible.store.store import Store
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


# --- crash points ---


CrashPoint = Literal[
    "at_start",
    "during_takeover",
    "before_flush",
    "after_flush",
    "before_notify",
    "before_effect",
    "after_effect",
    "during_stop",
    "before_file",
    "after_file",
]

CRASH_POINTS: Final[tuple[CrashPoint, ...]] = get_args(CrashPoint)
_STANDSTILL_S: Final = 0.03


class CrashPoints:
    """The armed point, and how often it will still be passed before the process dies."""

    def __init__(self) -> None:
        self._armed: CrashPoint | None = None
        self._remaining = 0

    def arm(self, point: CrashPoint, count: int) -> None:
        """Die when this point is passed for the `count`-th time from now."""
        self._remaining = count
        self._armed = point

    async def pass_by(self, point: CrashPoint) -> None:
        if self._is_the_end(point):
            await asyncio.sleep(_STANDSTILL_S)
            _die()

    def pass_by_at_once(self, point: CrashPoint) -> None:
        """For synchronous work."""
        if self._is_the_end(point):
            _die()

    def _is_the_end(self, point: CrashPoint) -> bool:
        if point != self._armed:
            return False
        self._remaining -= 1
        return self._remaining == 0


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def install(crash_points: CrashPoints) -> None:
    """Wrap every store and notifier of this process in its crash points. This can't be undone."""
    _wrap(Store, "beat", lambda _: ["at_start"], crash_points)
    _wrap(Store, "execute", lambda arguments: _name_command(arguments[1]), crash_points, after=True)
    _wrap(Store, "append", lambda _: ["before_flush"], crash_points)
    _wrap(Store, "append", lambda _: ["after_flush"], crash_points, before=False, after=True)
    for writer in (DatabaseWriter, DirectoryWriter):
        _wrap(writer, "commit", lambda _: ["before_file"], crash_points)
    _wrap(FileStore, "upload", lambda _: ["after_file"], crash_points, before=False, after=True)
    for notifier in (LocalNotifier, PostgresNotifier):
        for method in ("notify", "notify_readers"):
            _wrap_at_once(notifier, method, "before_notify", crash_points)


def _name_command(command: Command) -> Iterable[CrashPoint]:
    if isinstance(command, Acquire):
        return ["during_takeover"]
    return ["during_stop"] if isinstance(command, FinishInterruption) else []


def _wrap(
    owner: type,
    method: str,
    name_points: Callable[[tuple[Any, ...]], Iterable[CrashPoint]],
    crash_points: CrashPoints,
    *,
    before: bool = True,
    after: bool = False,
) -> None:
    original = getattr(owner, method)

    async def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
        passed = list(name_points(arguments))
        if before:
            for point in passed:
                await crash_points.pass_by(point)
        done = await original(self, *arguments, **named)
        if after:
            for point in passed:
                await crash_points.pass_by(point)
        return done

    setattr(owner, method, wrapped)


def _wrap_at_once(owner: type, method: str, point: CrashPoint, crash_points: CrashPoints) -> None:
    original = getattr(owner, method)

    def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
        crash_points.pass_by_at_once(point)
        return original(self, *arguments, **named)

    setattr(owner, method, wrapped)
