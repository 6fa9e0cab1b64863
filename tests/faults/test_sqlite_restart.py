"""One process on a SQLite file: killed and started again, and what others may do beside it.

The file's lock goes with the process that held it, so nobody waits for a lease to run out: those of a process that is
killed would last for an hour here.
"""

from __future__ import annotations

import pytest
from tests.faults.checked_reader import CheckedReader, reading, wait_for_words
from tests.support.counting_model import ask_to_count
from tests.support.process_harness import ENDLESS_LEASES, SLOWLY, ProcessHarness

from indelible.app.app import App

pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)


async def test_a_killed_process_that_is_started_again_goes_on_at_once(harness: ProcessHarness, app: App) -> None:
    first = await harness.start_worker(**ENDLESS_LEASES)
    reader = CheckedReader(await app.create_chat(SLOWLY))
    async with reading(reader):
        await wait_for_words([reader], 5)
        await first.kill()
        await harness.start_worker(**ENDLESS_LEASES)
        await wait_for_words([reader], 5)
        harness.finish_replies()
        await reader.wait_for_ends(1)
    stored = await reader.check(harness.engine)
    [cut, *_, last] = stored.attempts
    assert (cut.outcome, last.outcome) == ("crashed", "complete")
    assert [turn.takeovers for turn in stored.turns] == [1]


async def test_a_second_process_learns_who_has_the_file_and_the_first_goes_on(
    harness: ProcessHarness, app: App
) -> None:
    await harness.start_worker()
    reader = CheckedReader(await app.create_chat(ask_to_count(30)))
    process, answer = await harness.try_to_start_worker()
    process.join()
    assert f"chats.db is in use by another server or worker (process {harness.workers[0].pid})" in answer
    assert "worker=False" in answer
    async with reading(reader):
        await reader.wait_for_ends(1)
    await reader.check(harness.engine)


async def test_whoever_does_not_work_may_read_and_send_beside_the_one_that_does(
    harness: ProcessHarness, app: App
) -> None:
    chat = await app.create_chat()
    await chat.post(ask_to_count(3))
    await harness.start_worker()
    reader = CheckedReader(chat)
    async with reading(reader):
        await reader.wait_for_ends(1)
        await chat.post(ask_to_count(4))
        await reader.wait_for_ends(2)
    assert reader.text == "1 2 3 1 2 3 4 "
    await reader.check(harness.engine)
