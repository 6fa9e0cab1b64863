"""Ten kills at random instants on each database, while people send, stop and read.

Nothing here knows what a worker was doing when it died. Afterwards every message has its turn, every turn its one
end, every reply is the known one as far as it was let, and every reader has seen exactly what is stored.

A turn whose workers die three times before it has said a word is given up, as it should be. So in every second round
each running chat gets to say something first. And nobody is taken for dead who is only slow, on a machine that stalls:
the leases are endless, and a worker that was killed is buried when the next one is there. That the dead are found by
their silence is test_takeover.py.
"""

from __future__ import annotations

import random

from sqlalchemy import func, select
from tests.faults.checked_reader import CheckedReader, reading
from tests.support.counting_model import ask_to_count
from tests.support.engine import begin_read
from tests.support.process_harness import ENDLESS_LEASES, ProcessHarness
from tests.support.tables import attempts, chats, journal
from tests.support.waiting import poll_until

from indelible.app.app import App
from indelible.clock import SystemClock

SEED = 6
ROUNDS = 10
CHATS = 3
LONGEST_WAIT_S = 0.1


async def test_whenever_workers_die_all_that_was_seen_is_kept_and_every_turn_ends(
    harness: ProcessHarness, app: App
) -> None:
    chance = random.Random(SEED)  # noqa: S311  (it only has to be the same next time)
    is_sqlite = not harness.database.startswith("postgresql")
    for _ in range(1 if is_sqlite else 3):
        await harness.start_worker(**ENDLESS_LEASES)
    opened = [await app.create_chat() for _ in range(CHATS)]
    readers = [CheckedReader(chat, restless=restless) for chat in opened for restless in (False, True)]
    sent = dict.fromkeys(opened, 0)
    async with reading(*readers):
        for number in range(ROUNDS):
            for chat in chance.sample(opened, 2):
                await chat.post(ask_to_count(chance.randint(5, 40)))
                sent[chat] += 1
            await wait_for_rows(harness, chance, everybody=number % 2 == 1)
            if chance.random() < 0.3:
                await chance.choice(opened).interrupt(wait=False)
            await SystemClock().sleep(chance.uniform(0, LONGEST_WAIT_S))
            victim = chance.choice([process for process in harness.workers if process.is_alive()])
            await victim.kill()
            await harness.start_worker(**ENDLESS_LEASES)
            await harness.retire_worker(victim)
        for reader in readers:
            await reader.wait_for_ends(sent[reader.chat])
    for reader in readers:
        stored = await reader.check(harness.engine)
        assert len(stored.turns) == sent[reader.chat]
        assert (stored.chat.status, list(stored.queue)) == ("idle", [])
        assert all(turn.outcome in ("complete", "interrupted") for turn in stored.turns)


async def wait_for_rows(harness: ProcessHarness, chance: random.Random, *, everybody: bool) -> None:
    """Until something more was said, or by every running chat."""
    before = await count_rows(harness)
    enough = chance.randint(0, 5)

    async def is_enough() -> bool:
        now = await count_rows(harness)
        more = {chat_id: rows - before.get(chat_id, 0) for chat_id, rows in now.items()}
        return all(more.values()) if everybody else sum(more.values()) >= enough or not more

    await poll_until(is_enough, what="something that is said")


async def count_rows(harness: ProcessHarness) -> dict[str, int]:
    """How much each running chat has said, over all its turns."""
    said = select(func.count()).select_from(journal).join(attempts, attempts.c.id == journal.c.attempt_id)
    counted = said.where(attempts.c.chat_id == chats.c.id).scalar_subquery()
    async with begin_read(harness.engine) as connection:
        rows = await connection.execute(select(chats.c.id, counted.label("rows")).where(chats.c.status == "running"))
        return {row.id: row.rows for row in rows}
