"""Workers that died: what they left in the database, made exactly.

A dead worker acquires a chat as any would, writes what the test says, and has never had a heartbeat, so it is dead from
the start. What it leaves is what a worker leaves that is killed at just that moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.app_harness import AppHarness

from indelible.app.chat import Chat
from indelible.content import Part, ToolResult, ToolStarted, encode
from indelible.ids import new_id
from indelible.machine.commands import StartAttempt
from indelible.store.journal.append import JournalRow, RunChange, RunKey, RunSettled, RunStarted
from indelible.store.outcome import Outcome
from indelible.store.payloads import AttemptStart


class DeadWorker:
    def __init__(self, harness: AppHarness, chat: Chat, taken: Outcome) -> None:
        self.epoch = taken.epoch
        self.turn_id = taken.turn_id or ""
        self.attempt_id = ""
        self.step = 0
        self._harness = harness
        self._chat = chat
        self._n = 0

    @classmethod
    async def acquire(cls, harness: AppHarness, chat: Chat) -> DeadWorker:
        (taken,) = await harness.store.acquire(new_id("worker"), limit=1)
        assert taken.chat_id == chat.id
        return cls(harness, chat, taken)

    async def start_attempt(self, *, provider: str = "scripted") -> DeadWorker:
        command = StartAttempt(epoch=self.epoch, turn_id=self.turn_id)
        start = AttemptStart(model="scripted", provider=provider)
        outcome = await self._harness.store.execute(self._chat.id, command, start)
        assert outcome.attempt is not None
        self.attempt_id, self.step, self._n = outcome.attempt.id, outcome.attempt.step, 0
        return self

    async def write(self, *written: Part) -> DeadWorker:
        return await self._append(written)

    async def start_tool(self, index: int, call_id: str, name: str) -> DeadWorker:
        change = RunStarted(
            key=RunKey(self.turn_id, self.step, index),
            attempt_id=self.attempt_id,
            call_id=call_id,
            name=name,
            arguments="{}",
            idempotency_key=f"{self.turn_id}/{self.step}/{index}",
        )
        return await self._append([ToolStarted(call_id, name)], change)

    async def settle_tool(self, index: int, result: ToolResult) -> DeadWorker:
        change = RunSettled(key=RunKey(self.turn_id, self.step, index), result=result)
        return await self._append([result], change)

    async def _append(self, said: Sequence[Part], *changes: RunChange) -> DeadWorker:
        self._n += 1
        row = JournalRow(self._chat.id, self.attempt_id, self.epoch, self._n, encode(list(said)), changes)
        appended = await self._harness.store.append([row])
        assert appended.written == {self.attempt_id}
        return self


async def die_after(harness: AppHarness, chat: Chat, *written: Part) -> DeadWorker:
    """A worker acquires the chat, asks the model, and dies after it has written these parts."""
    dead = await (await DeadWorker.acquire(harness, chat)).start_attempt()
    return await dead.write(*written) if written else dead
