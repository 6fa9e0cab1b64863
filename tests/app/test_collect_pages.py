"""Collecting pages: the right sizes, the right cursors, and an end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from indelible.api.operations import MAX_PAGE
from indelible.app.chat import collect_pages

TOTAL = 2 * MAX_PAGE + 5


class NumberPage(NamedTuple):
    items: Sequence[int]
    next: str | None


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [
        (None, [MAX_PAGE, MAX_PAGE, 5]),
        (0, []),
        (3, [3]),
        (MAX_PAGE, [MAX_PAGE]),
        (MAX_PAGE + 1, [MAX_PAGE, 1]),
        (TOTAL + 1, [MAX_PAGE, MAX_PAGE, 5]),
    ],
)
async def test_pages_are_fetched_until_there_is_enough_or_no_more(limit: int | None, sizes: list[int]) -> None:
    async def fetch(cursor: str | None, size: int) -> NumberPage:
        assert 0 < size <= MAX_PAGE
        first = int(cursor or 0)
        last = min(first + size, TOTAL)
        return NumberPage(range(first, last), str(last) if last < TOTAL else None)

    pages = await collect_pages(fetch, limit)

    assert [len(items) for items in pages] == sizes
    assert [number for items in pages for number in items] == list(range(sum(sizes)))
