"""How the cost of a chat grows with what is in it: part of `python -m bench growth`.

*A reply of 1 MB.* The first and the last kilobytes are said token by token: the next token comes when the last one is
committed and has reached its reader, so each has a row and a commit of its own. What is between them comes at once.
CPU is that of the whole process: model, loop, journal, SQLite's threads and reader (not of the PostgreSQL server), and
the best of three replies, so that another process can make it only dearer.

*Sending* into a chat of 10 and of 10,000 messages, and *the first pages* of a user's 100,000 chats: the time until the
answer, with the statistics that the database gathers by itself on PostgreSQL sooner or later (ANALYZE).
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.engine import begin_write, close_databases, get_database, is_sqlite, open_engine

import indelible
from bench.databases import OWNER_ID, add_owner, add_waiting_chat, start_databases
from bench.findings import Finding
from bench.options import IS_FULL
from indelible.content import Finish, Part, Text, TextDelta
from indelible.machine.commands import Interrupt, Send
from indelible.models import Call
from indelible.models.protocol import ModelTraits
from indelible.settings import load_settings
from indelible.store.payloads import UserInput
from indelible.store.queries.listing import ListCursor
from indelible.store.store import Store

_WORD: Final = "a token "
_KB: Final = 1000 // len(_WORD)
_MEASURED_KB: Final = 8 if IS_FULL else 4
_REPLY_KB: Final = 1000
_REPLIES: Final = 3
_SENDS: Final = 20
_CHATS: Final = 100_000
_PAGES: Final = 20
_GROWTH_AIM: Final = 1.5
_LIST_AIM_MS: Final = 20.0

# Made by the database itself: 100,000 rows as parameters would take longer than everything else here.
_ADD_CHATS_SQLITE: Final = """
WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < :count)
INSERT INTO chats (id, owner_id, status, epoch, title, created_at, updated_at)
SELECT printf('chat_listed%08d', n), :owner, 'idle', 0, 'Title ' || n,
    strftime('%Y-%m-%d %H:%M:%f000+00:00', 1700000000 + n, 'unixepoch'),
    strftime('%Y-%m-%d %H:%M:%f000+00:00', 1700000000 + n, 'unixepoch')
FROM counted
"""
_ADD_CHATS_POSTGRES: Final = """
INSERT INTO chats (id, owner_id, status, epoch, title, created_at, updated_at)
SELECT 'chat_listed' || lpad(n::text, 8, '0'), :owner, 'idle', 0, 'Title ' || n,
    to_timestamp(1700000000 + n), to_timestamp(1700000000 + n)
FROM generate_series(1, :count) AS n
"""


async def measure_long_chats(report: Callable[[str], None]) -> list[Finding]:
    found: list[Finding] = []
    async with start_databases() as addresses:
        for name, address in addresses.items():
            report(f"{name}: a reply of {_REPLY_KB:,} kB")
            found += await _measure_reply(name, address)
            engine = await open_engine(address)
            try:
                await add_owner(engine)
                store = Store(get_database(engine))
                report(f"{name}: sending")
                found += await _measure_sends(name, engine, store)
                report(f"{name}: {_CHATS:,} chats")
                found += await _measure_lists(name, engine, store)
            finally:
                await close_databases()
                await engine.dispose()
    return found


# --- a long reply ----------------------------------------------------------------------------


class LongReply:
    """Says 1 MB, and waits for each token of the first and the last kilobytes to arrive."""

    provider: Final = "bench"
    name: Final = "bench"
    context_limit: Final = None
    traits: Final = ModelTraits(makes_titles=False)

    def __init__(self) -> None:
        self.arrived = 0
        self.arrival = asyncio.Event()
        self.costs_us: list[float] = []

    async def stream(self, _call: Call) -> AsyncIterator[Part]:
        sent = 0
        for count, is_measured in (
            (_MEASURED_KB * _KB, True),
            ((_REPLY_KB - 2 * _MEASURED_KB) * _KB, False),
            (_MEASURED_KB * _KB, True),
        ):
            started = time.process_time()
            for _ in range(count):
                sent += 1
                yield TextDelta("1", _WORD)
                if is_measured:
                    await self._wait_for(sent)
            await self._wait_for(sent)
            if is_measured:
                self.costs_us.append((time.process_time() - started) / count * 1e6)
        yield Finish("stop")

    def note_arrival(self, part: Part) -> None:
        self.arrived += len(part.text or "") // len(_WORD)
        self.arrival.set()

    async def _wait_for(self, sent: int) -> None:
        while self.arrived < sent:
            self.arrival.clear()
            await self.arrival.wait()


async def _measure_reply(name: str, address: str) -> list[Finding]:
    costs_us = [await _read_reply(address) for _ in range(_REPLIES)]
    first_us, last_us = (min(each) for each in zip(*costs_us, strict=True))
    what = f"CPU of a token with a commit of its own, 1 MB reply, its {{}} {_MEASURED_KB} kB"
    return [
        Finding(what=what.format("first"), database=name, value=first_us, unit="µs"),
        Finding(what=what.format("last"), database=name, value=last_us, unit="µs"),
        Finding(what="last ÷ first", database=name, value=last_us / first_us, unit="×", aim=_GROWTH_AIM),
    ]


async def _read_reply(address: str) -> list[float]:
    """Microseconds of a token, at the start and at the end of the reply."""
    model = LongReply()
    async with indelible.open(address, model=model, settings=load_settings(journal_interval_s=0)) as app:
        chat = await app.create_chat()
        async with chat.stream("Speak.") as reply:
            async for part in reply:
                model.note_arrival(part)
        assert len(reply.text) == _REPLY_KB * _KB * len(_WORD), "not every token arrived"
    return model.costs_us


# --- sending and listing ---------------------------------------------------------------------


async def _measure_sends(name: str, engine: AsyncEngine, store: Store) -> list[Finding]:
    long_id = await add_waiting_chat(engine, 10_000)
    short_ids = [await add_waiting_chat(engine, 10) for _ in range(_SENDS)]
    await _analyze(engine)
    await _time_send(store, long_id)
    pairs = [(await _time_send(store, short_id), await _time_send(store, long_id)) for short_id in short_ids]
    short_ms, long_ms = (statistics.median(times) for times in zip(*pairs, strict=True))
    return [
        Finding(what="send after 10 messages", database=name, value=short_ms, unit="ms"),
        Finding(what="send after 10,000 messages", database=name, value=long_ms, unit="ms"),
        Finding(what="send, 10,000 ÷ 10 messages", database=name, value=long_ms / short_ms, unit="×", aim=_GROWTH_AIM),
    ]


async def _time_send(store: Store, chat_id: str) -> float:
    """One send into an idle chat. Then its turn is taken back, so that the next one finds the chat idle."""
    sent_ms = await _time(
        lambda: store.execute(chat_id, Send(), UserInput(author_id=OWNER_ID, blocks=[Text("And now?")]))
    )
    await store.execute(chat_id, Interrupt())
    return sent_ms


async def _measure_lists(name: str, engine: AsyncEngine, store: Store) -> list[Finding]:
    async with begin_write(engine) as connection:
        sql = _ADD_CHATS_SQLITE if is_sqlite(engine) else _ADD_CHATS_POSTGRES
        await connection.execute(text(sql), {"count": _CHATS, "owner": OWNER_ID})
    await _analyze(engine)
    page = await store.list_chats(OWNER_ID, limit=50)
    assert len(page) == 50
    after = ListCursor(page[-1].pinned, page[-1].updated_at, page[-1].id)
    queries: dict[str, Callable[[], Awaitable[object]]] = {
        "its first page": lambda: store.list_chats(OWNER_ID, limit=50),
        "its second page": lambda: store.list_chats(OWNER_ID, limit=50, after=after),
    }
    return [
        Finding(
            what=f"list of {_CHATS:,} chats, {what}",
            database=name,
            value=statistics.median([await _time(query) for _ in range(_PAGES)]),
            unit="ms",
            aim=_LIST_AIM_MS if what.endswith("page") else None,
        )
        for what, query in queries.items()
    ]


async def _time(call: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await call()
    return (time.perf_counter() - started) * 1e3


async def _analyze(engine: AsyncEngine) -> None:
    async with begin_write(engine) as connection:
        await connection.execute(text("ANALYZE"))
