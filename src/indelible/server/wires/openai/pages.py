"""A list as OpenAI pages it: `after` names the last item of the page before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from indelible.errors import Invalid

MAX_ITEMS: Final = 100


def show_page(items: Sequence[dict[str, Any]], *, limit: int, after: str | None, order: str) -> dict[str, Any]:
    """One page of these items, which are oldest first."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        at = next((at for at, item in enumerate(ordered) if item["id"] == after), None)
        if at is None:
            raise Invalid("after: there is no such item.")
        ordered = ordered[at + 1 :]
    page = ordered[: max(1, min(limit, MAX_ITEMS))]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(ordered) > len(page),
    }
