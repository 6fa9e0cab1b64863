"""Workers that died: what they left in the database, made exactly.

A ghost takes a chat as a worker would, says what it is told to, and has never had a heartbeat, so it is dead from
the start. What it leaves is what a worker leaves that is killed at just that moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.worker.workshop import Workshop

from indelible.app.chat import Chat
from indelible.content import Part, ToolResult, ToolStarted, encode
from indelible.ids import new_id
from indelible.machine.commands import StartAttempt
from indelible.store.journal.append import JournalRow
from indelible.store.journal.tool_ledger import RunChange, RunKey, RunSettled, RunStarted
from indelible.store.payloads import AttemptStart
from indelible.store.protocol import Outcome


class Ghost:
    def __init__(self, workshop: Workshop, chat: Chat, taken: Outcome) -> None:
        self.epoch = taken.epoch
        self.turn_id = taken.turn_id or ""
        self.attempt_id = ""
        self.step = 0
        self._workshop = workshop
        self._chat = chat
        self._n = 0

    @classmethod
    async def take(cls, workshop: Workshop, chat: Chat) -> Ghost:
        (taken,) = await workshop.store.acquire(new_id("worker"), limit=1)
        assert taken.chat_id == chat.id
        return cls(workshop, chat, taken)

    async def begin(self, *, provider: str = "scripted") -> Ghost:
        command = StartAttempt(epoch=self.epoch, turn_id=self.turn_id)
        start = AttemptStart(model="scripted", provider=provider)
        outcome = await self._workshop.store.execute(self._chat.id, command, start)
        assert outcome.attempt is not None
        self.attempt_id, self.step, self._n = outcome.attempt.id, outcome.attempt.step, 0
        return self

    async def say(self, *said: Part) -> Ghost:
        return await self._append(said)

    async def start(self, index: int, call_id: str, name: str) -> Ghost:
        change = RunStarted(
            key=RunKey(self.turn_id, self.step, index),
            attempt_id=self.attempt_id,
            call_id=call_id,
            name=name,
            arguments="{}",
            idempotency_key=f"{self.turn_id}/{self.step}/{index}",
        )
        return await self._append([ToolStarted(call_id, name)], change)

    async def settle(self, index: int, result: ToolResult) -> Ghost:
        change = RunSettled(key=RunKey(self.turn_id, self.step, index), result=result)
        return await self._append([result], change)

    async def _append(self, said: Sequence[Part], *changes: RunChange) -> Ghost:
        self._n += 1
        row = JournalRow(self._chat.id, self.attempt_id, self.epoch, self._n, encode(list(said)), changes)
        appended = await self._workshop.store.append([row])
        assert appended.written == {self.attempt_id}
        return self


async def haunt(workshop: Workshop, chat: Chat, *said: Part) -> Ghost:
    """A worker takes the chat, asks the model, and dies after this was said."""
    ghost = await (await Ghost.take(workshop, chat)).begin()
    return await ghost.say(*said) if said else ghost
