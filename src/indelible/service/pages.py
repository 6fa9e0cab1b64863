"""Pages of a list: where one ends, and how a client asks for the next.

The cursor of a list of chats is opaque text. It holds the place where a page ended in the order of the list, so that a
chat that moves up meanwhile is never listed twice. Other lists go on below an id.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from indelible.errors import Invalid, NotFound
from indelible.store.queries.listing import ChatSummary, ListCursor

T = TypeVar("T")


def split_page(found: Sequence[T], limit: int) -> tuple[list[T], T | None]:
    """The page, and the item that it ends with if another page follows. `found` was asked for one item more."""
    page = list(found[:limit])
    return page, page[-1] if len(found) > limit else None


def write_list_cursor(chat: ChatSummary) -> str:
    place = msgspec.json.encode(ListCursor(chat.updated_at, chat.id))
    return base64.urlsafe_b64encode(place).rstrip(b"=").decode()


def read_list_cursor(cursor: str) -> ListCursor:
    try:
        place = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=ListCursor)
    except (binascii.Error, ValueError):
        place = None
    if place is None or place.updated_at.tzinfo is None:
        raise Invalid("cursor: take it from `next` of the page before.")
    return place


def check_name(name: str) -> str:
    """An id that a client sent. What cannot be an id of ours names nothing, and a database may even refuse it."""
    if not name.isascii() or not name.isprintable():
        raise NotFound("Not found. It may have been deleted.")
    return name
