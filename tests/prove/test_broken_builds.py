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
from tests.prove.sabotage import drop_fencing, drop_ledger, publish_first

from indelible.prove.fault_injector import Way
from indelible.prove.report import Report, describe_verdict
from indelible.prove.run import Plan, prove

MORE_CHANCES = 4
MANY_TOOLS = 411
"""A seed whose users wish for tools again and again, and stop nothing at first."""


async def prove_broken(
    database: str, prepare: Callable[[], None], way: Way, *, kills: int = 2, seed: int = 3
) -> Report:
    plan = Plan(
        seed=seed,
        database=database,
        kills=kills,
        chats=3,
        short_leases=True,
        retry_for_s=3.0,
        ways=(way,),
        prepare=prepare,
    )
    report = await prove(plan)
    for _ in range(MORE_CHANCES):
        if report.is_proof:
            report = await prove(plan)
    assert not report.is_proof
    assert report.kept is not None
    shutil.rmtree(report.kept)
    verdict = describe_verdict(report)
    assert verdict.startswith("FAILED:")
    assert f"Seed {seed}." in verdict
    return report


async def test_telling_readers_before_the_commit_is_caught(database: str) -> None:
    report = await prove_broken(database, publish_first, "before_flush")

    assert any("a reader got a snapshot instead of what it had missed" in fault.sentence for fault in report.faults)
    assert all(fault.chat_id is not None for fault in report.faults)


async def test_tools_without_a_ledger_are_caught(database: str) -> None:
    report = await prove_broken(database, drop_ledger, "after_effect", seed=MANY_TOOLS)

    assert all(fault.sentence.startswith("jot_once ran ") for fault in report.faults)
    assert all(fault.chat_id is not None for fault in report.faults)


@pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)
async def test_a_stale_worker_whose_writes_are_taken_is_caught(database: str) -> None:
    report = await prove_broken(database, drop_fencing, "sigstop", kills=4)

    assert any(fault.chat_id is not None for fault in report.faults)
