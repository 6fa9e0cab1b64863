"""The detector of tests/blocking.py: it sees what blocks the event loop, from our code and nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.blocking import OURS, noted


def compile_as(file: str, line: str) -> Callable[[Path], Any]:
    """A function that has this one line, as if it stood in that file."""
    names: dict[str, Any] = {}
    source = f"import pathlib, shutil, sqlite3, subprocess\n\ndef block(path):\n    {line}\n"
    exec(compile(source, file, "exec"), names)  # noqa: S102  (the text is this file's own)
    found: Callable[[Path], Any] = names["block"]
    return found


LINES = {
    "open": "open(path, 'w').close()",
    "read_text": "path.parent.joinpath('there').read_text()",
    "listdir": "list(path.parent.iterdir())",
    "sqlite": "sqlite3.connect(':memory:').close()",
    "process": "subprocess.run(['true'], check=True)",
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
async def test_a_blocking_call_of_ours_is_noted_on_the_loop_and_not_in_a_thread(line: str, tmp_path: Path) -> None:
    tmp_path.joinpath("there").touch()
    block = compile_as(f"{OURS}/made_up.py", line)
    await asyncio.to_thread(block, tmp_path / "new")
    assert noted == []
    block(tmp_path / "new")
    assert noted != []
    assert all("in block (made_up.py:4)" in each for each in noted)
    noted.clear()


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
async def test_what_somebody_else_does_is_not_noted(line: str, tmp_path: Path) -> None:
    tmp_path.joinpath("there").touch()
    compile_as("/site-packages/other.py", line)(tmp_path / "new")
    assert noted == []


def test_without_an_event_loop_anybody_may_block(tmp_path: Path) -> None:
    compile_as(f"{OURS}/made_up.py", LINES["open"])(tmp_path / "new")
    assert noted == []
