"""A user: sends, queues, stops, edits, goes to other branches, and notes what the server accepted.

Each user has its own random numbers, so the same seed gives the same user. One round is a message or two, something
done while they are answered, and, once the chat is at rest, something done with the answers. At the end it sends
nothing more and waits for its last reply; a proof has to end with every chat at rest.

actions.py has what a user can do; tool_client.py answers the calls of the client's tools meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from indelible.client.remote import RemoteService
from indelible.errors import IndelibleError
from indelible.prove.checks.evidence import Deeds, UploadLog
from indelible.prove.clients.actions import AT_REST, MEANWHILE, ActionName, UserActions
from indelible.prove.clients.reader import SimulatedReader
from indelible.prove.clients.sending import MessageSender
from indelible.prove.clients.uploads import Uploader
from indelible.prove.servers.tools import CLIENT_TOOLS

HABITS: Final[tuple[ActionName, ...]] = (*MEANWHILE, *AT_REST)


class SimulatedUser:
    """The user of one chat. `deeds` are what the server accepted, `forks` the chats that it forked from this one."""

    def __init__(
        self,
        client: RemoteService,
        *,
        number: int,
        seed: int,
        models: Sequence[str],
        phrases: Sequence[str] | None,
        habits: Sequence[ActionName] = HABITS,
        rounds: int = 0,
        uploads: UploadLog | None = None,
    ) -> None:
        """`phrases`: what to send to a server with another model. `models`: those that it may choose from.

        `rounds`: at least so many, even if it is enough before. `uploads`: where all users note their uploads.
        """
        self.deeds = Deeds()
        self.faults: list[str] = []
        self.chat_id = ""
        self.forks: dict[str, Deeds] = {}
        self._client = client
        self._chance = random.Random(seed * 1000 + number)  # noqa: S311  (it only has to be reproducible)
        self.uploader = Uploader(client, uploads or UploadLog(), number=number, seed=seed)
        self.sender = MessageSender(
            client, self._chance, number=number, models=models, phrases=phrases, uploader=self.uploader
        )
        self._habits = habits
        self._rounds = rounds

    async def begin(self) -> None:
        """Open the chat with a first message."""
        text, _ = self.sender.draw(may_ask=True)
        model = self.sender.default_model
        tools = CLIENT_TOOLS if self.sender.knows_replies else None
        message = await self.sender.attach(text)
        created = await self._client.create_chat(message, model=model, title="Proof", tools=tools)
        self.chat_id = created.id
        self.sender.note(self.deeds, text, model)

    async def chat(self, reader: SimulatedReader, enough: asyncio.Event) -> None:
        """Send until it is enough and every message is answered."""
        actions = UserActions(self._client, self._chance, self.sender, self, reader)
        try:
            while self._rounds > 0 or not enough.is_set():
                self._rounds -= 1
                await self._run_round(actions)
            await actions.wait_for_rest()
        except IndelibleError as error:
            self.faults.append(f"a request of a user was refused: {error}")

    async def _run_round(self, actions: UserActions) -> None:
        chance = self._chance
        await actions.send("queue")
        if chance.random() < 0.3:
            await actions.send("queue")
        meanwhile = [action for action in MEANWHILE if action in self._habits]
        if meanwhile and chance.random() < 0.6:
            await actions.listen(rows=chance.randint(0, 12))
            await actions.perform(chance.choice(meanwhile))
        await actions.wait_for_rest()
        at_rest = [action for action in AT_REST if action in self._habits]
        if at_rest and chance.random() < 0.5:
            await actions.perform(chance.choice(at_rest))
            await actions.wait_for_rest()

    async def stop(self, reader: SimulatedReader) -> None:
        """Stop the reply that this user sees running. If it has ended meanwhile, nothing happens."""
        turn_id = reader.transcript.turn_id
        if turn_id is not None:
            self.deeds.stops += 1
            await self._client.interrupt(self.chat_id, turn=turn_id)
