"""A reader that remembers everything it saw, and is asked at the end whether all of it is true.

It reads a chat's feed from the beginning, in the test's own process, whoever writes it. Told to be `restless`, it goes
away every few events and comes back with its cursor. While it reads, it holds the feed to its word: text that was
shown is not taken back, and the reply to every message is, at any moment, the beginning of the one that is known in
advance (counting_model.py). `check` then compares what it saw with every row that is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.counting_model import read_reply_to
from tests.support.engine import get_database
from tests.support.waiting import Watched

from indelible.api.events import FeedEvent
from indelible.app.chat import Chat
from indelible.content import Text, TextDelta, decode_blocks
from indelible.testing.invariants import StoredChat, find_faults, load_chat

_RESTLESS_AFTER: Final = 7


class CheckedReader(Watched):
    """Of one chat. `ended` are the turns whose end it has received."""

    def __init__(self, chat: Chat, *, restless: bool = False) -> None:
        super().__init__()
        self.chat = chat
        self.said: dict[str, str] = {}
        self.ended: list[str] = []
        self._restless = restless

    @property
    def text(self) -> str:
        """All text that was shown, of all turns."""
        return "".join(self.said.values())

    async def read(self) -> None:
        cursor = "start"
        while True:
            taken = 0
            async for event in self.chat.events(after=cursor):
                self._note(event)
                self.changed()
                cursor = event.cursor or cursor
                taken += 1
                if event.kind in ("resync", "end") or (self._restless and taken == _RESTLESS_AFTER):
                    break

    def _note(self, event: FeedEvent) -> None:
        data: dict[str, Any] = event.data
        if event.kind == "part":
            said = "".join(part.delta for part in event.parts if isinstance(part, TextDelta))
            assert data["attempt"] == next(reversed(self.said)), "an earlier attempt speaks"
            self.said[data["attempt"]] += said
        elif event.kind == "attempt":
            assert data["attempt"] not in self.said, "an attempt begins twice"
            self.said[data["attempt"]] = ""
        elif event.kind == "reset":
            assert self.said[data["attempt"]] == "", "what was shown is taken back"
        elif event.kind == "status" and data.get("ended") is not None:
            self.ended.append(data["ended"]["turn"])
        elif event.kind == "message" and data["attempt"] is not None:
            shown = "".join(block.get("text", "") for block in data["message"]["blocks"] if block["type"] == "text")
            assert shown == self.said[data["attempt"]], "the message is not what was shown"

    async def wait_for_ends(self, count: int) -> None:
        """Until it has seen this many turns end."""
        await self.wait_until(lambda: len(self.ended) >= count, what=f"the end of {count} turns of {self.chat.id}")

    async def check(self, engine: AsyncEngine) -> StoredChat:
        """What was seen is what is stored, and what is stored is whole."""
        stored = await load_chat(get_database(engine), self.chat.id)
        assert stored is not None
        faults = find_faults(stored)
        assert not faults, faults
        kept = {row.id: read_text_of(stored, row.id) for row in stored.attempts}
        assert self.said == kept, (self.said, kept)
        assert len(set(self.ended)) == len(self.ended), "a turn ends twice"
        assert self.ended == [row.id for row in stored.turns if row.ended_at is not None]
        check_replies(stored)
        check_epochs(stored)
        return stored


def read_text_of(stored: StoredChat, attempt_id: str) -> str:
    return "".join(part.delta for part in stored.parts_of(attempt_id) if isinstance(part, TextDelta))


def check_replies(stored: StoredChat) -> None:
    """Every reply is the known one: all of it if the turn was not stopped, and its beginning in any case."""
    wishes = {row.id: row for row in stored.messages if row.role == "user"}
    for turn in stored.turns:
        blocks = decode_blocks(wishes[turn.message_id].blocks)
        wanted = read_reply_to("".join(block.text for block in blocks if isinstance(block, Text)))
        said = "".join(read_text_of(stored, row.id) for row in stored.attempts if row.turn_id == turn.id)
        assert wanted.startswith(said), (turn.id, said)
        assert turn.outcome in ("complete", "interrupted", None), (turn.id, turn.outcome)
        assert turn.outcome != "complete" or said == wanted, (turn.id, said)


def check_epochs(stored: StoredChat) -> None:
    """No attempt began before the last one had ended, and none under an older lease."""
    for earlier, later in zip(stored.attempts, stored.attempts[1:], strict=False):
        assert earlier.ended_at <= later.started_at
        assert earlier.epoch <= later.epoch


@asynccontextmanager
async def reading(*readers: CheckedReader) -> AsyncIterator[None]:
    """They read until the end of the block. What one of them objects to fails the test at once."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(reader.read()) for reader in readers]
        yield
        for task in tasks:
            task.cancel()


async def wait_for_words(readers: Sequence[CheckedReader], words: int) -> None:
    """Until each of them has seen so many more."""
    wanted = {reader: len(reader.text.split()) + words for reader in readers}
    for reader, count in wanted.items():
        await reader.wait_until(
            lambda reader=reader, count=count: len(reader.text.split()) >= count,  # type: ignore[misc]
            what=f"{words} words of {reader.chat.id}",
        )
