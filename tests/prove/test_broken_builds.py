"""Builds that break a promise fail the proof: a proof that cannot fail proves nothing.

Each is broken in the server process only (sabotage.py), and is killed in the way that its fault shows in. A lease
can be lost only where there is somebody to lose it to, so fencing is a matter of PostgreSQL.

A server that does not come to the chosen point in time, on a machine that is too busy, is killed as it stands, and then
its fault need not show. So a broken build gets a few chances to be caught; one that is never caught fails the test.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from sqlalchemy import delete
from tests.prove.sabotage import drop_fencing, drop_ledger, publish_first
from tests.support.engine import open_engine
from tests.support.tables import chats, file_uses, files

from indelible.prove.evidence import Fault
from indelible.prove.faults import Way
from indelible.prove.report import Report, describe_verdict
from indelible.prove.run import Plan, prove

MORE_CHANCES = 4
MANY_TOOLS = 411
"""A seed whose users wish for tools again and again, and stop nothing at first."""


async def prove_broken(
    database: str, prepare: Callable[[], None], way: Way, *, expected: str, kills: int = 2, seed: int = 3
) -> Report:
    """A failed proof that found this fault, among others: a busy machine may add that a reply came too late."""
    plan = Plan(
        seed=seed,
        database=database,
        kills=kills,
        chats=3,
        short_leases=True,
        retry_for_s=3.0,
        replay_s=10.0,
        ways=(way,),
        prepare=prepare,
    )
    found: list[Fault] = []
    for _ in range(1 + MORE_CHANCES):
        report = await prove(plan)
        if report.is_proof:
            continue
        assert report.kept_directory is not None
        shutil.rmtree(report.kept_directory)
        verdict = describe_verdict(report)
        assert verdict.startswith("FAILED:")
        assert f"Seed {seed}." in verdict
        if any(expected in fault.sentence and fault.chat_id is not None for fault in report.faults):
            return report
        found += report.faults
        await empty(database)
    pytest.fail(f"not caught: {expected!r} is not among {found}")


async def empty(database: str) -> None:
    """A failed proof leaves everything for people to look at. The next one wants an empty database."""
    engine = await open_engine(database)
    try:
        async with engine.begin() as connection:
            for table in (file_uses, files, chats):
                await connection.execute(delete(table))
    finally:
        await engine.dispose()


async def test_telling_readers_before_the_commit_is_caught(database: str) -> None:
    await prove_broken(
        database, publish_first, "before_flush", expected="a reader got a snapshot instead of what it had missed"
    )


async def test_tools_without_a_ledger_are_caught(database: str) -> None:
    await prove_broken(database, drop_ledger, "after_effect", expected="jot_once ran ", seed=MANY_TOOLS)


@pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)
async def test_a_stale_worker_whose_writes_are_taken_is_caught(database: str) -> None:
    await prove_broken(database, drop_fencing, "sigstop", expected="should be its last", kills=4)
