"""Waits have a limit (tests/support/waiting.py, tests/waiting_limits.py), and what was awaited is what is said."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.support import waiting
from tests.support.waiting import Watched, deadline, poll_until, wait_for_any, wait_for_task

ROOT = Path(__file__).parents[1]


async def sleep_on() -> None:
    await asyncio.Event().wait()


async def wait_for_sleeper(wait: Callable[..., Awaitable[None]]) -> None:
    sleeper = asyncio.create_task(sleep_on())
    try:
        await wait(sleeper)
    finally:
        sleeper.cancel()


WAITS: dict[str, Callable[[], Awaitable[None]]] = {
    "watched": lambda: Watched().wait_until(lambda: False, what="rain"),
    "polled": lambda: poll_until(lambda: False, what="rain"),
    "task": lambda: wait_for_sleeper(lambda task: wait_for_task(task, what="rain")),
    "any": lambda: wait_for_sleeper(lambda task: wait_for_any([task], what="rain")),
}


async def test_a_wait_in_vain_names_what_it_was_for_and_the_line() -> None:
    never = asyncio.Event()
    with pytest.raises(
        AssertionError, match=r"in vain for the bus: await never\.wait\(\) \(tests/test_waiting\.py:\d+"
    ):
        async with deadline("the bus", limit_s=0):
            await never.wait()


async def test_a_timeout_of_the_code_under_test_stays_what_it_is() -> None:
    with pytest.raises(TimeoutError, match="its own"):
        async with deadline("the bus"):
            raise TimeoutError("its own")


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
async def test_every_way_of_waiting_has_the_limit(
    wait: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "DEADLINE_S", 0)
    with pytest.raises(AssertionError, match=r"waited in vain for .*rain"):
        await wait()


CONFTEST = """
from tests import waiting_limits

pytest_plugins = ["tests.waiting_limits"]
waiting_limits.SHARE = 0
"""
SUITE = """
import asyncio
from hypothesis import given, settings, strategies

async def test_plain():
    never = asyncio.Event()
    await never.wait()

@settings(max_examples=1, deadline=None, database=None)
@given(strategies.none())
async def test_drawn(nothing):
    drawn = asyncio.Event()
    await drawn.wait()

async def test_in_time():
    pass
"""


def test_a_test_that_waits_for_ever_ends_before_its_time_limit_and_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_suite.py").write_text(SUITE)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-c",
            "/dev/null",
            "--rootdir",
            ".",
            "-o",
            "asyncio_mode=auto",
            "--timeout=50",
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 failed, 1 passed" in done.stdout, done.stdout
    assert "waited in vain for await never.wait()" in done.stdout
    assert "waited in vain for await drawn.wait()" in done.stdout
