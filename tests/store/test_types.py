"""What goes into a column comes out of it, in its order, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, Integer, MetaData, Table, insert, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.engine import begin_write

from indelible.store.database.tables.types import Id, Json, Label, UtcTime
from indelible.store.database.transaction import format_time

ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TIMES = st.datetimes(datetime(1900, 1, 1), datetime(9000, 1, 1), timezones=ZONES)  # noqa: DTZ001  (hypothesis adds it)

values = Table(
    "values_of_a_test",
    MetaData(),
    Column("number", Integer, primary_key=True),
    Column("id", Id),
    Column("at", UtcTime()),
    Column("json", Json),
    Column("label", Label()),
    prefixes=["TEMPORARY"],
)


async def keep(engine: AsyncEngine, column: str, kept: list[object]) -> list[object]:
    """Write these into a column; what is read, in the order of the column."""
    async with begin_write(engine) as connection:
        await connection.run_sync(values.create)
        await connection.execute(insert(values), [{"number": n, column: value} for n, value in enumerate(kept)])
        found = await connection.scalars(select(values.c[column]).order_by(values.c[column]))
        await connection.run_sync(values.drop)
        return list(found)


async def test_times_come_back_in_utc_and_in_order(engine: AsyncEngine) -> None:
    moment = datetime(2026, 11, 15, 9, 59, 32, 120, tzinfo=UTC)
    oslo = timezone(timedelta(hours=1))
    times = [moment + timedelta(microseconds=1), moment.astimezone(oslo) - timedelta(seconds=1), moment]

    found = await keep(engine, "at", list(times))

    assert found == sorted(times)
    assert [time.tzinfo for time in found if isinstance(time, datetime)] == [UTC] * 3


async def test_a_time_without_a_zone_is_refused(engine: AsyncEngine) -> None:
    with pytest.raises(Exception, match="has no time zone"):
        await keep(engine, "at", [datetime(2026, 11, 15)])  # noqa: DTZ001  (which is the point)


@given(TIMES, TIMES)
def test_the_text_that_sqlite_keeps_sorts_as_the_times_do(one: datetime, other: datetime) -> None:
    assert (format_time(one) < format_time(other)) == (one < other)
    assert UtcTime().process_result_value(format_time(one), sqlite.dialect()) == one


async def test_ids_are_in_the_order_of_their_bytes_whatever_the_locale(engine: AsyncEngine) -> None:
    ids = ["b", "a_1", "B", "a-2", "é", "a1"]

    assert await keep(engine, "id", list(ids)) == sorted(ids, key=str.encode)


async def test_bytes_of_json_are_kept_whatever_they_mean(engine: AsyncEngine) -> None:
    assert await keep(engine, "json", [b'"\\u0000"', b'"\x00\xff"']) == [b'"\x00\xff"', b'"\\u0000"']


async def test_no_label_is_refused(engine: AsyncEngine) -> None:
    assert await keep(engine, "label", ["nul \0", "pair \ud83d\ude00", "half \ud83d"]) == [
        "half \ufffd",
        "nul \ufffd",
        "pair \U0001f600",
    ]
