"""Which content may come with which command: mypy is asked about every pair, and the store about what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver, dump, find_payloads

from indelible.machine import commands as c
from indelible.store import payloads
from indelible.store.payloads import Payload

ROOT = Path(__file__).parents[2]
ABSTRACT = {payloads.WithPending, payloads.WithStep}
COMMANDS = [
    kind
    for kind in vars(c).values()
    if isinstance(kind, type) and issubclass(kind, c.Command) and kind not in {c.Command, c.WorkerCommand}
]
PAYLOADS: list[type[Payload[Any]]] = [
    kind
    for kind in vars(payloads).values()
    if isinstance(kind, type) and issubclass(kind, Payload) and kind is not Payload and kind not in ABSTRACT
]
HEAD = """
from indelible.machine import commands as c
from indelible.store import payloads as p
from indelible.store.store import Store

"""


def test_mypy_accepts_exactly_the_payloads_that_a_command_reads(tmp_path: Path) -> None:
    """Every command with every payload. A command of unknown kind accepts none at all.

    All in one file: mypy takes a second to begin.
    """
    lines, expected = HEAD.splitlines(), set()
    for command in COMMANDS:
        for payload in PAYLOADS:
            name = f"{command.__name__}_{payload.__name__}".lower()
            lines.append(f"async def {name}(s: Store, c_: c.{command.__name__}, p_: p.{payload.__name__}) -> None:")
            lines.append("    await s.execute('chat_1', c_, p_)")
            if payload not in find_payloads(command):
                expected.add(len(lines))
    assert expected
    lines += [
        "async def unknown(s: Store, command: c.Command, given: p.UserInput) -> None:",
        "    await s.execute('chat_1', command)",
        "    await s.execute('chat_1', command, given)",
    ]
    expected.add(len(lines))
    judged = tmp_path / "judged.py"
    judged.write_text("\n".join(lines) + "\n")
    assert judge(judged) == expected


def judge(path: Path) -> set[int]:
    """The lines that mypy refuses."""
    asked = [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", str(ROOT / ".mypy_cache"), str(path)]
    told = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode in {0, 1}, told.stdout + told.stderr
    return {int(line.split(":")[1]) for line in told.stdout.splitlines() if ": error:" in line}


def test_every_payload_names_a_command_that_reads_it() -> None:
    assert {payload for command in COMMANDS for payload in find_payloads(command)} == set(PAYLOADS)


@pytest.mark.parametrize("command", [c.Send(), c.UpdateChat()], ids=lambda command: command.name.value)
async def test_a_command_without_the_payload_that_it_needs_changes_nothing(
    chat: Driver, engine: AsyncEngine, command: c.Command
) -> None:
    before = await dump(engine)
    with pytest.raises(TypeError, match="needs a payload"):
        await chat.store.execute(chat.id, command)
    assert await dump(engine) == before
