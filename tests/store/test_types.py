"""What the store writes into a column comes out of it, in its order, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.engine import OpenDatabase

from indelible.store.database.migrate import translate_for_sqlite
from indelible.store.database.transaction import Transaction, format_time, to_time

ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TIMES = st.datetimes(datetime(1900, 1, 1), datetime(9000, 1, 1), timezones=ZONES)  # noqa: DTZ001  (hypothesis adds it)
TABLE = """
CREATE TEMPORARY TABLE kept (
    id TEXT COLLATE "C",
    at TIMESTAMPTZ,
    json BYTEA,
    label TEXT
);
"""


async def keep(opened: OpenDatabase, column: str, values: list[Any]) -> list[Any]:
    """Write these into a column; what is read, in the order of the column."""

    async def work(transaction: Transaction) -> list[Any]:
        for statement in translate_for_sqlite(TABLE) if transaction.dialect == "sqlite" else [TABLE]:
            await transaction.run(statement)
        for value in values:
            await transaction.run(f"INSERT INTO kept ({column}) VALUES ($1)", value)  # noqa: S608
        rows = await transaction.all(f"SELECT {column} AS value FROM kept ORDER BY {column}")  # noqa: S608
        await transaction.run("DROP TABLE kept")
        return [row["value"] for row in rows]

    return await opened.write(work)


async def test_times_come_back_in_utc_and_in_order(opened: OpenDatabase) -> None:
    moment = datetime(2026, 11, 15, 9, 59, 32, 120, tzinfo=UTC)
    oslo = timezone(timedelta(hours=1))
    times = [moment + timedelta(microseconds=1), moment.astimezone(oslo) - timedelta(seconds=1), moment]

    found = [to_time(value) for value in await keep(opened, "at", times)]

    assert found == sorted(times)
    assert [time.tzinfo for time in found] == [UTC] * 3


async def test_a_time_without_a_zone_is_refused(opened: OpenDatabase) -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        await keep(opened, "at", [datetime(2026, 11, 15)])  # noqa: DTZ001  (which is the point)


@given(TIMES, TIMES)
def test_the_text_that_sqlite_keeps_sorts_as_the_times_do(one: datetime, other: datetime) -> None:
    assert (format_time(one) < format_time(other)) == (one < other)
    assert to_time(format_time(one)) == one


async def test_ids_are_in_the_order_of_their_bytes_whatever_the_locale(opened: OpenDatabase) -> None:
    ids = ["b", "a_1", "B", "a-2", "é", "a1"]

    assert await keep(opened, "id", ids) == sorted(ids, key=str.encode)


async def test_bytes_of_json_are_kept_whatever_they_mean(opened: OpenDatabase) -> None:
    assert await keep(opened, "json", [b'"\\u0000"', b'"\x00\xff"']) == [b'"\x00\xff"', b'"\\u0000"']


async def test_no_label_is_refused(opened: OpenDatabase) -> None:
    assert await keep(opened, "label", ["nul \0", "pair \ud83d\ude00", "half \ud83d"]) == [
        "half \ufffd",
        "nul \ufffd",
        "pair \U0001f600",
    ]
