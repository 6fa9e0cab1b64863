"""A worker dies, or leaves, while its tools run: what each tool has done, and what the model is told (P5).

One step calls four tools (counting_model.py). When the worker goes, one has settled, two hang in the middle of their
work, and one waits for its turn. The notebook counts how often each really ran.
"""

from __future__ import annotations

import signal

import pytest
from sqlalchemy import select
from tests.support.counting_model import CALL_TOOLS, TOOL_NAMES, read_notebook
from tests.support.engine import begin_read, get_database
from tests.support.process_harness import SHORT_LEASES, ProcessHarness
from tests.support.tables import tool_runs
from tests.support.waiting import poll_until

from indelible.app.app import App
from indelible.content.assemble import OUTCOME_UNKNOWN
from indelible.testing.invariants import find_faults, load_chat


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to leave"])
async def test_no_tool_runs_twice_unless_it_may_and_the_model_learns_it(
    harness: ProcessHarness, app: App, how: signal.Signals
) -> None:
    first = await harness.start_worker(**SHORT_LEASES)
    chat = await app.create_chat(CALL_TOOLS)
    await poll_until(lambda: has_begun(harness), what="tools that have begun")
    first.send_signal(how)
    await first.wait()
    assert [name for name, _ in read_notebook(harness.notebook)].count("late") == 0

    await harness.start_worker(**SHORT_LEASES)

    async def has_ended() -> bool:
        return await chat.status() == "idle"

    await poll_until(has_ended, what="the end of the turn")
    runs = read_notebook(harness.notebook)
    assert {name: [ran for ran, _ in runs].count(name) for name in TOOL_NAMES} == {
        "quick": 1,
        "risky": 1,
        "repeatable": 2,
        "late": 1,
    }
    assert len({key for name, key in runs if name == "repeatable"}) == 1
    assert len({key for _, key in runs}) == len(TOOL_NAMES)
    report = (await chat.messages())[-1].text
    assert report == f"quick: run 1\nrisky: {OUTCOME_UNKNOWN}\nrepeatable: run 2\nlate: run 1"
    stored = await load_chat(get_database(harness.engine), chat.id)
    assert stored is not None
    assert find_faults(stored) == []
    assert [turn.takeovers for turn in stored.turns] == [1 if how == signal.SIGKILL else 0]


async def has_begun(harness: ProcessHarness) -> bool:
    """Whether one tool has settled and two others are running."""
    async with begin_read(harness.engine) as connection:
        states = {row.name: row.state for row in await connection.execute(select(tool_runs))}
    ran = {name for name, _ in read_notebook(harness.notebook)}
    return states.get("quick") == "settled" and ran == {"quick", "risky", "repeatable"}
