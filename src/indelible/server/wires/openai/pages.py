"""A list as OpenAI pages it: `after` names the last item of the page before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from indelible.errors import Invalid

MAX_ITEMS: Final = 100


def show_page(items: Sequence[dict[str, Any]], *, limit: int, after: str | None, order: str) -> dict[str, Any]:
    """One page of these items, which are oldest first. The client has chosen `limit`."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        at = next((at for at, item in enumerate(ordered) if item["id"] == after), None)
        if at is None:
            raise Invalid("after: there is no such item.")
        ordered = ordered[at + 1 :]
    page = ordered[: max(1, min(limit, MAX_ITEMS))]
    return show_list(page, has_more=len(ordered) > len(page))


def show_list(items: Sequence[dict[str, Any]], *, has_more: bool = False) -> dict[str, Any]:
    """These items, all of them."""
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }
