"""A user: sends, queues, stops, edits, goes to other branches, and notes what the server accepted.

Each user has its own random numbers, so the same seed gives the same user. One round is a message or two, something
done while they are answered, and, once the chat is at rest, something done with the answers. At the end it sends
nothing more and waits for its last reply; a proof has to end with every chat at rest.

acts.py has what a user can do; tool_client.py answers the calls of the client's tools meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from indelible.client.wire import WireClient
from indelible.errors import IndelibleError
from indelible.prove.checks.evidence import Deeds
from indelible.prove.clients.acts import AT_REST, MEANWHILE, Act, Acts
from indelible.prove.clients.reader import SimulatedReader
from indelible.prove.clients.sending import Sender
from indelible.prove.servers.tools import CLIENT_TOOLS

HABITS: Final[tuple[Act, ...]] = (*MEANWHILE, *AT_REST)


class SimulatedUser:
    """The user of one chat. `deeds` are what the server accepted, `forks` the chats that it forked from this one."""

    def __init__(
        self,
        client: WireClient,
        *,
        number: int,
        seed: int,
        models: Sequence[str],
        phrases: Sequence[str] | None,
        habits: Sequence[Act] = HABITS,
        rounds: int = 0,
    ) -> None:
        """`phrases`: what to send to a server with another model. `models`: those that it may choose from.

        `rounds`: at least so many, even if it is enough before.
        """
        self.deeds = Deeds()
        self.faults: list[str] = []
        self.chat_id = ""
        self.forks: dict[str, Deeds] = {}
        self._client = client
        self._chance = random.Random(seed * 1000 + number)  # noqa: S311  (it only has to be reproducible)
        self._sender = Sender(client, self._chance, number=number, models=models, phrases=phrases)
        self._habits = habits
        self._rounds = rounds

    async def begin(self) -> None:
        """Open the chat with a first message."""
        text, _ = self._sender.draw(may_ask=True)
        model = self._sender.default_model
        tools = CLIENT_TOOLS if self._sender.knows_replies else None
        created = await self._client.create_chat(text, model=model, title="Proof", tools=tools)
        self.chat_id = created["id"]
        self._sender.note(self.deeds, text, model)

    async def chat(self, reader: SimulatedReader, enough: asyncio.Event) -> None:
        """Send until it is enough and every message is answered."""
        acts = Acts(self._client, self._chance, self._sender, self, reader)
        try:
            while self._rounds > 0 or not enough.is_set():
                self._rounds -= 1
                await self._run_round(acts)
            await acts.wait_for_rest()
        except IndelibleError as error:
            self.faults.append(f"a request of a user was refused: {error}")

    async def _run_round(self, acts: Acts) -> None:
        chance = self._chance
        await acts.send("queue")
        if chance.random() < 0.3:
            await acts.send("queue")
        meanwhile = [act for act in MEANWHILE if act in self._habits]
        if meanwhile and chance.random() < 0.6:
            await acts.listen(rows=chance.randint(0, 12))
            await acts.carry_out(chance.choice(meanwhile))
        await acts.wait_for_rest()
        at_rest = [act for act in AT_REST if act in self._habits]
        if at_rest and chance.random() < 0.5:
            await acts.carry_out(chance.choice(at_rest))
            await acts.wait_for_rest()

    async def stop(self, reader: SimulatedReader) -> None:
        """Stop the reply that this user sees running. If it has ended meanwhile, nothing happens."""
        turn_id = reader.transcript.turn_id
        if turn_id is not None:
            self.deeds.stops += 1
            await self._client.interrupt(self.chat_id, turn=turn_id)
