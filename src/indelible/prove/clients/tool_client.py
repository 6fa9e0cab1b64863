"""The client that runs a chat's own tools: it answers the calls that a reply waits for, not always politely.

Once, twice at the same time, or too late: after a stop, and again while a later reply waits for calls with the same
ids. Of two that are submitted at the same time exactly one is accepted, and of those that come too late none.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

from indelible.client.remote import RemoteService
from indelible.content import ToolResult
from indelible.errors import IndelibleError, Invalid, NotAllowed
from indelible.prove.clients.reader import SimulatedReader
from indelible.prove.clients.user import SimulatedUser
from indelible.prove.model import read_note

_TWICE: Final = 0.3
_LATE: Final = 0.2

Results = list[ToolResult]


class ToolClient:
    """`submitted` and its like are in the user's deeds."""

    def __init__(self, client: RemoteService, user: SimulatedUser, reader: SimulatedReader, *, seed: int) -> None:
        self._client = client
        self._user = user
        self._reader = reader
        self._chance = random.Random(seed)  # noqa: S311  (it only has to be reproducible)
        self._late: tuple[str, Results] | None = None
        self._seen: set[str] = set()

    async def run(self) -> None:
        """Answer every call, without end."""
        try:
            while True:
                await self._reader.wait_until(lambda seen: self._find_new(seen.action) is not None)
                action = self._reader.transcript.action
                if self._find_new(action) is not None:
                    await self.answer(action or {})
        except IndelibleError as error:
            self._user.faults.append(f"a client tool was refused: {error}")

    def _find_new(self, action: dict[str, Any] | None) -> list[str] | None:
        """The notes of the calls, if they were not answered yet."""
        notes = [] if action is None else [read_note(call["arguments"]) for call in action["calls"]]
        return notes if notes and not self._seen.issuperset(notes) else None

    async def answer(self, action: dict[str, Any]) -> None:
        """Answer the calls that a reply waits for, in one way or another."""
        turn_id = action["turn"]
        notes = [read_note(call["arguments"]) for call in action["calls"]]
        self._seen.update(notes)
        results = [
            ToolResult(call["id"], call["name"], output=f"answer {note}")
            for call, note in zip(action["calls"], notes, strict=True)
        ]
        await self._try_late_results()
        mood = self._chance.random()
        if mood < _LATE:
            await self._stop_first(turn_id, results)
            return
        times = 2 if mood < _LATE + _TWICE else 1
        submits = [self._submit(turn_id, results) for _ in range(times)]
        accepted = sum(await asyncio.gather(*submits))
        if accepted > 1:
            self._user.faults.append(f"the results of {turn_id} were accepted {accepted} times")
        if accepted:
            self._user.deeds.submitted.setdefault(turn_id, []).extend(notes)

    async def _stop_first(self, turn_id: str, results: Results) -> None:
        self._user.deeds.stops += 1
        self._user.deeds.count("stop while waiting")
        await self._client.interrupt(self._user.chat_id, turn=turn_id, wait_s=10)
        self._late = (turn_id, results)
        await self._try_late_results()
        self._late = (turn_id, results)

    async def _try_late_results(self) -> None:
        """Submit the results of a reply that was stopped. Nobody may accept them."""
        late, self._late = self._late, None
        if late is not None:
            self._user.deeds.count("late results")
            if await self._submit(*late):
                self._user.faults.append(f"the results of {late[0]} were accepted after it had ended")

    async def _submit(self, turn_id: str, results: Results) -> bool:
        self._user.deeds.count("client results")
        try:
            await self._client.submit_tool_results(self._user.chat_id, results, turn=turn_id)
        except (NotAllowed, Invalid):
            return False
        return True
