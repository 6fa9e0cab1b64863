"""Packing the journal of ended attempts: one compressed row instead of many, with every boundary kept (R11).

The journal lives as long as its chat: any reply can be replayed from any cursor, forever. But an attempt of ten
minutes leaves thousands of rows that never change again. A sweep replaces them with one row, number 0, that holds
each row's number, time and bytes. It packs one attempt per transaction and stops when its time is up, so that it
blocks no writer for long (R12).

Must stay true (tests/store/test_chat_view.py): a packed attempt reads exactly as it did before it was packed.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Final

import msgspec

from indelible.clock import Clock
from indelible.store.database.transaction import Database, Row, Transaction, insert, to_time, update

SWEEP_TIME_S: Final = 0.05
_DUE: Final = """
SELECT chat_id, id FROM attempts WHERE NOT packed AND ended_at < $1 ORDER BY ended_at LIMIT 1 FOR UPDATE SKIP LOCKED
"""
_ROWS: Final = "SELECT n, parts, at FROM journal WHERE chat_id = $1 AND attempt_id = $2 ORDER BY n"


class PackedRow(msgspec.Struct, frozen=True, array_like=True):
    n: int
    at: datetime
    parts: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[PackedRow]).decode


def pack_rows(rows: Sequence[Row]) -> bytes:
    return zlib.compress(_encode([PackedRow(row["n"], to_time(row["at"]), row["parts"]) for row in rows]))


def unpack_rows(packed: bytes) -> list[PackedRow]:
    return _decode(zlib.decompress(packed))


async def sweep(database: Database, *, ended_before: datetime, clock: Clock, time_s: float = SWEEP_TIME_S) -> int:
    """Pack attempts that ended before this, oldest first, until `time_s` is used up; returns how many were packed."""
    started_s = clock.monotonic()
    packed = 0
    while await database.write(partial(_pack_next, ended_before=ended_before), slow=True):
        packed += 1
        if clock.monotonic() - started_s >= time_s:
            break
    return packed


async def _pack_next(transaction: Transaction, ended_before: datetime) -> bool:
    attempt = await transaction.one(_DUE, ended_before)
    if attempt is None:
        return False
    chat_id, attempt_id = attempt["chat_id"], attempt["id"]
    rows = await transaction.all(_ROWS, chat_id, attempt_id)
    if rows:
        await transaction.run("DELETE FROM journal WHERE chat_id = $1 AND attempt_id = $2", chat_id, attempt_id)
        packed = {"n": 0, "parts": pack_rows(rows), "at": to_time(rows[-1]["at"])}
        await insert(transaction, "journal", {"chat_id": chat_id, "attempt_id": attempt_id, **packed})
    await update(transaction, "attempts", {"packed": True}, chat_id=chat_id, id=attempt_id)
    return True
