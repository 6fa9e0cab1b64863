"""One process on a SQLite file: killed and started again, and what others may do beside it.

The file's lock goes with the process that held it, so nobody waits for a lease to run out: those of a process that is
killed would last for an hour here.
"""

from __future__ import annotations

import pytest
from tests.faults.counting import ask_to_count
from tests.faults.fleet import ENDLESS_LEASES, SLOWLY, Fleet
from tests.faults.witness import Witness, wait_for_words, watching

from indelible.app.app import App

pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)


async def test_a_killed_process_that_is_started_again_goes_on_at_once(fleet: Fleet, app: App) -> None:
    first = await fleet.start(**ENDLESS_LEASES)
    witness = Witness(await app.create_chat(SLOWLY))
    async with watching(witness):
        await wait_for_words([witness], 5)
        await first.kill()
        await fleet.start(**ENDLESS_LEASES)
        await wait_for_words([witness], 5)
        fleet.hurry()
        await witness.wait_for_ends(1)
    stored = await witness.check(fleet.engine)
    [cut, *_, last] = stored.attempts
    assert (cut.outcome, last.outcome) == ("crashed", "complete")
    assert [turn.takeovers for turn in stored.turns] == [1]


async def test_a_second_process_is_told_who_has_the_file_and_the_first_goes_on(fleet: Fleet, app: App) -> None:
    await fleet.start()
    witness = Witness(await app.create_chat(ask_to_count(30)))
    process, answer = await fleet.try_to_start()
    process.join()
    assert f"chats.db is in use by another server or worker (process {fleet.processes[0].pid})" in answer
    async with watching(witness):
        await witness.wait_for_ends(1)
    await witness.check(fleet.engine)


async def test_whoever_does_not_work_may_read_and_send_beside_the_one_that_does(fleet: Fleet, app: App) -> None:
    chat = await app.create_chat()
    await chat.post(ask_to_count(3))
    await fleet.start()
    witness = Witness(chat)
    async with watching(witness):
        await witness.wait_for_ends(1)
        await chat.post(ask_to_count(4))
        await witness.wait_for_ends(2)
    assert witness.text == "1 2 3 1 2 3 4 "
    await witness.check(fleet.engine)
