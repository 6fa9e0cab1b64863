"""Pages of a list, and the cursors between them.

The cursor of a list of chats is opaque text. It encodes the position at which a page ended, so that a chat that moves
up meanwhile is never listed twice. Other lists use the id of the last item.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from indelible.errors import Invalid, NotFound
from indelible.store.database.transaction import to_utc
from indelible.store.queries.listing import ChatSummary, ListCursor

T = TypeVar("T")
MAX_SEARCH: Final = 500
"""In characters."""


def split_page(found: Sequence[T], limit: int) -> tuple[list[T], T | None]:
    """The page, and its last item if another page follows. `found` was queried with one item more than `limit`."""
    page = list(found[:limit])
    return page, page[-1] if len(found) > limit else None


def write_list_cursor(chat: ChatSummary) -> str:
    place = msgspec.json.encode(ListCursor(chat.pinned, chat.updated_at, chat.id))
    return base64.urlsafe_b64encode(place).rstrip(b"=").decode()


def read_list_cursor(cursor: str) -> ListCursor:
    try:
        place = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=ListCursor)
        to_utc(place.updated_at)
    except (binascii.Error, ValueError, OverflowError):  # the last one for a time that no calendar has
        raise Invalid("cursor: must be the `next` of the previous page.") from None
    return place


def check_search(search: str | None) -> str | None:
    if search is not None and len(search) > MAX_SEARCH:
        raise Invalid(f"q: at most {MAX_SEARCH:,} characters.")
    return search


def check_name(name: str) -> str:
    """Check an id from a client. Text that cannot be an id is not found; a database might even reject it."""
    if not name.isascii() or not name.isprintable():
        raise NotFound("Not found. It may have been deleted.")
    return name
