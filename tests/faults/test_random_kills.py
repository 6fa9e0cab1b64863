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
from tests.faults.counting import ask_to_count
from tests.faults.fleet import ENDLESS_LEASES, Fleet, wait_until
from tests.faults.witness import Witness, watching

from indelible.app.app import App
from indelible.clock import SystemClock
from indelible.store.database.engine import begin_read
from indelible.store.database.tables import attempts, chats, journal

SEED = 6
ROUNDS = 10
CHATS = 3
LONGEST_WAIT_S = 0.1


async def test_whenever_workers_die_all_that_was_seen_is_kept_and_every_turn_ends(fleet: Fleet, app: App) -> None:
    chance = random.Random(SEED)  # noqa: S311  (it only has to be the same next time)
    is_sqlite = not fleet.database.startswith("postgresql")
    for _ in range(1 if is_sqlite else 3):
        await fleet.start(**ENDLESS_LEASES)
    opened = [await app.create_chat() for _ in range(CHATS)]
    witnesses = [Witness(chat, restless=restless) for chat in opened for restless in (False, True)]
    sent = dict.fromkeys(opened, 0)
    async with watching(*witnesses):
        for number in range(ROUNDS):
            for chat in chance.sample(opened, 2):
                await chat.post(ask_to_count(chance.randint(5, 40)))
                sent[chat] += 1
            await wait_for_rows(fleet, chance, everybody=number % 2 == 1)
            if chance.random() < 0.3:
                await chance.choice(opened).interrupt(wait=False)
            await SystemClock().sleep(chance.uniform(0, LONGEST_WAIT_S))
            victim = chance.choice([process for process in fleet.processes if process.is_alive()])
            await victim.kill()
            await fleet.start(**ENDLESS_LEASES)
            await fleet.bury(victim)
        for witness in witnesses:
            await witness.wait_for_ends(sent[witness.chat])
    for witness in witnesses:
        stored = await witness.check(fleet.engine)
        assert len(stored.turns) == sent[witness.chat]
        assert (stored.chat.status, list(stored.queue)) == ("idle", [])
        assert all(turn.outcome in ("complete", "interrupted") for turn in stored.turns)


async def wait_for_rows(fleet: Fleet, chance: random.Random, *, everybody: bool) -> None:
    """Until something more was said, or by every running chat."""
    before = await count_rows(fleet)
    enough = chance.randint(0, 5)

    async def is_enough() -> bool:
        now = await count_rows(fleet)
        more = {chat_id: rows - before.get(chat_id, 0) for chat_id, rows in now.items()}
        return all(more.values()) if everybody else sum(more.values()) >= enough or not more

    await wait_until(is_enough, what="something that is said")


async def count_rows(fleet: Fleet) -> dict[str, int]:
    """How much each running chat has said, over all its turns."""
    said = select(func.count()).select_from(journal).join(attempts, attempts.c.id == journal.c.attempt_id)
    counted = said.where(attempts.c.chat_id == chats.c.id).scalar_subquery()
    async with begin_read(fleet.engine) as connection:
        rows = await connection.execute(select(chats.c.id, counted.label("rows")).where(chats.c.status == "running"))
        return {row.id: row.rows for row in rows}
