"""A user: sends, queues, stops, sends again, and notes what the server accepted.

Each user has its own random numbers, so the same seed gives the same user. At the end it sends
nothing more and waits for its last reply; a proof has to end with every chat at rest.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from indelible.client.wire import WireClient
from indelible.errors import IndelibleError
from indelible.prove.clients.reader import SimulatedReader
from indelible.prove.script import draw_wish

_NUMBERS_PER_CHAT: Final = 100_000


class SimulatedUser:
    """The user of one chat. `sent` are the accepted messages, `stops` counts its requests to stop a reply."""

    def __init__(
        self, client: WireClient, *, number: int, seed: int, model: str | None, phrases: Sequence[str] | None
    ) -> None:
        """`phrases`: what to send to a server with another model."""
        self.sent: list[str] = []
        self.stops = 0
        self.faults: list[str] = []
        self.chat_id = ""
        self._client = client
        self._chance = random.Random(seed * 1000 + number)  # noqa: S311  (it only has to be reproducible)
        self._next_number = number * _NUMBERS_PER_CHAT
        self._model = model
        self._phrases = phrases

    async def begin(self) -> None:
        """Open the chat with a first message."""
        text = self._draw_message()
        created = await self._client.create_chat(text, model=self._model, title="Proof")
        self.chat_id = created["id"]
        self.sent.append(text)

    async def chat(self, reader: SimulatedReader, enough: asyncio.Event) -> None:
        """Send until it is enough and every message is answered."""
        try:
            await self._chat(reader, enough)
        except IndelibleError as error:
            self.faults.append(f"a request of a user was refused: {error}")

    async def _chat(self, reader: SimulatedReader, enough: asyncio.Event) -> None:
        chance = self._chance
        while not enough.is_set():
            await self._send("queue")
            if chance.random() < 0.3:
                await self._send("queue")
            mood = chance.random()
            if mood < 0.4:
                await self._listen(reader, rows=chance.randint(0, 12))
                await (self.stop(reader) if mood < 0.25 else self._interrupt())
            await self._wait_for_answers(reader)
        await self._wait_for_answers(reader)

    async def stop(self, reader: SimulatedReader) -> None:
        """Stop the reply that this user sees running. If it has ended meanwhile, nothing happens."""
        turn_id = reader.transcript.turn_id
        if turn_id is not None:
            self.stops += 1
            await self._client.interrupt(self.chat_id, turn=turn_id)

    async def _wait_for_answers(self, reader: SimulatedReader) -> None:
        await reader.wait_until(lambda transcript: transcript.ended >= len(self.sent))

    async def _send(self, if_busy: str) -> None:
        text = self._draw_message()
        await self._client.send(self.chat_id, text, if_busy=if_busy)
        self.sent.append(text)

    async def _interrupt(self) -> None:
        self.stops += 1
        await self._send("interrupt")

    async def _listen(self, reader: SimulatedReader, *, rows: int) -> None:
        """To so much more, or to the end of all replies."""
        enough = reader.transcript.rows + rows
        await reader.wait_until(lambda transcript: transcript.rows >= enough or transcript.ended >= len(self.sent))

    def _draw_message(self) -> str:
        self._next_number += 1
        if self._phrases is not None:
            return f"{self._chance.choice(self._phrases)} ({self._next_number})"
        return draw_wish(self._chance, number=self._next_number).to_text()
