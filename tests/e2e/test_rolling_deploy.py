"""A rolling deploy behind nginx, in short (rolling_deploy.py): no client takes half a reply for a whole one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.rolling_deploy import LONG_S, deploy, report

pytestmark = pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)


async def test_a_drain_that_is_long_enough_interrupts_nobody(database: str, tmp_path: Path) -> None:
    done = await deploy(database, tmp_path, streams=8, drain_s=LONG_S)
    assert done.faults == [], report(done)
    assert {each.raised for each in done.ended} == {None}
    assert done.statuses == [0, 0]


async def test_a_drain_that_is_too_short_makes_clients_raise_and_those_that_resume_end_whole(
    database: str, tmp_path: Path
) -> None:
    done = await deploy(database, tmp_path, streams=8, drain_s=0)
    assert done.faults == [], report(done)
    assert [each.kind for each in done.ended if each.raised is None] == ["native"]
    assert done.statuses == [0, 0]
