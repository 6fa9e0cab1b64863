"""Collecting what the service lists in pages: a program asks for as many items as it wants, or for all of them.

Nothing is asked for beyond the limit, and the cursor of a page leads to the next one until there is none. The pages
stay apart, because messages come newest page first with the oldest message of each page first: only the caller knows
how to join them.

Must stay true (tests/app/test_collect_pages.py): no page is larger than the service allows, or than what is still
wanted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from indelible.service.protocol import MAX_PAGE

T_co = TypeVar("T_co", covariant=True)


class ItemPage(Protocol[T_co]):
    """Some items, and the cursor of the next page, if there is one."""

    @property
    def items(self) -> Sequence[T_co]: ...

    @property
    def next(self) -> str | None: ...


async def collect_pages(
    fetch: Callable[[str | None, int], Awaitable[ItemPage[T_co]]], limit: int | None, *, start: str | None = None
) -> list[Sequence[T_co]]:
    """The items of each page from the cursor `start` on, at most `limit` in all. `fetch` gets a cursor and a size."""
    pages: list[Sequence[T_co]] = []
    cursor, count = start, 0
    while limit is None or count < limit:
        page = await fetch(cursor, MAX_PAGE if limit is None else min(MAX_PAGE, limit - count))
        pages.append(page.items)
        count += len(page.items)
        cursor = page.next
        if cursor is None:
            break
    return pages
