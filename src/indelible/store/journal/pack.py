"""Packing the journal of ended attempts: one compressed row instead of many, with every boundary kept (R11).

The journal lives as long as its chat: any reply can be replayed from any cursor, for ever. But an attempt of ten
minutes leaves thousands of rows that will not change again. A sweep replaces them by one row, number 0, that holds
each row's number, time and bytes. It packs one attempt per transaction and stops when its time is up, so that it
blocks no writer for long (R12).

Must stay true (tests/store/test_chat_view.py): reading a packed attempt gives what reading it before gave.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import Row, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from indelible.clock import Clock
from indelible.store.database.engine import begin_write
from indelible.store.database.tables import attempts, journal

SWEEP_TIME_S: Final = 0.05


class PackedRow(msgspec.Struct, frozen=True, array_like=True):
    n: int
    at: datetime
    parts: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[PackedRow]).decode


def pack_rows(rows: Sequence[Row[Any]]) -> bytes:
    return zlib.compress(_encode([PackedRow(row.n, row.at, row.parts) for row in rows]))


def unpack_rows(packed: bytes) -> list[PackedRow]:
    return _decode(zlib.decompress(packed))


async def sweep(engine: AsyncEngine, *, ended_before: datetime, clock: Clock, time_s: float = SWEEP_TIME_S) -> int:
    """Pack attempts that ended before this, oldest first, as many as the time allows; returns how many were packed."""
    started_s = clock.monotonic()
    packed = 0
    while True:
        async with begin_write(engine) as connection:
            if not await _pack_next(connection, ended_before):
                return packed
        packed += 1
        if clock.monotonic() - started_s >= time_s:
            return packed


async def _pack_next(connection: AsyncConnection, ended_before: datetime) -> bool:
    due = (
        select(attempts.c.chat_id, attempts.c.id, attempts.c.ended_at)
        .where(attempts.c.packed.is_(False), attempts.c.ended_at < ended_before)
        .order_by(attempts.c.ended_at)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    attempt = (await connection.execute(due)).first()
    if attempt is None:
        return False
    own = (journal.c.chat_id == attempt.chat_id) & (journal.c.attempt_id == attempt.id)
    rows = (await connection.execute(select(journal).where(own).order_by(journal.c.n))).all()
    if rows:
        await connection.execute(delete(journal).where(own))
        packed = {
            "chat_id": attempt.chat_id,
            "attempt_id": attempt.id,
            "n": 0,
            "parts": pack_rows(rows),
            "at": rows[-1].at,
        }
        await connection.execute(insert(journal).values(**packed))
    await connection.execute(update(attempts).where(attempts.c.id == attempt.id).values(packed=True))
    return True
