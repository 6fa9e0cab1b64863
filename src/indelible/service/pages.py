"""Pages of a list, and the cursors between them, forward and backward.

The cursor of a list of chats is opaque text. It encodes the position at which a page ended, or began if it leads back,
so that a chat that moves up meanwhile is never listed twice. Other lists use the id of the first or the last item:
`next` of such a page is the `before` of the next one, `previous` the `after` of the one that came before.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from indelible.api.shapes import ChatSummary
from indelible.errors import Invalid, NotFound
from indelible.ids import is_id
from indelible.store.database.transaction import to_utc
from indelible.store.lists.search import SearchCursor
from indelible.store.queries.listing import ListCursor

T = TypeVar("T")
_NO_CURSOR: Final = "cursor: must be the `next` or the `previous` of a page of the same list."
MAX_SEARCH: Final = 500
"""In characters."""


def split_page(found: Sequence[T], limit: int) -> tuple[list[T], T | None]:
    """The page, and its last item if another page follows. `found` was queried with one item more than `limit`."""
    page = list(found[:limit])
    return page, page[-1] if len(found) > limit else None


def split_either(found: Sequence[T], limit: int, *, is_backward: bool) -> tuple[list[T], bool]:
    """The page, and whether more follows in the direction of reading. `found` is in the order of the list."""
    page = list(found[-limit:] if is_backward else found[:limit])
    return page, len(found) > limit


def name_neighbours(
    items: Sequence[T], *, before: str | None, after: str | None, has_more: bool, name: Callable[[T], str]
) -> tuple[str | None, str | None]:
    """`next` and `previous` of a page of a list from the newest on, which was asked for with `before` or `after`."""
    if not items:
        return None, None
    has_older = has_more if after is None else True
    has_newer = before is not None if after is None else has_more
    return name(items[-1]) if has_older else None, name(items[0]) if has_newer else None


def write_list_cursor(chat: ChatSummary, *, backward: bool = False) -> str:
    return write_place(ListCursor(chat.pinned, chat.updated_at, chat.id, backward))


def write_place(place: ListCursor | SearchCursor) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).rstrip(b"=").decode()


def read_list_cursor(cursor: str) -> ListCursor:
    place = _read_place(cursor, ListCursor)
    try:
        to_utc(place.updated_at)
    except (ValueError, OverflowError):  # the last one for a time that no calendar has
        raise Invalid(_NO_CURSOR) from None
    return place


def read_search_cursor(cursor: str) -> SearchCursor:
    place = _read_place(cursor, SearchCursor)
    if not (0 <= place.top < 2**63 and 0 <= place.id < 2**63):
        raise Invalid(_NO_CURSOR)
    return place


def _read_place(cursor: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=kind)
    except (binascii.Error, ValueError, OverflowError):
        raise Invalid(_NO_CURSOR) from None


def check_search(search: str | None) -> str | None:
    if search is not None and len(search) > MAX_SEARCH:
        raise Invalid(f"q: at most {MAX_SEARCH:,} characters.")
    return search


def check_name(name: str) -> str:
    """Check an id from a client. Text that cannot be an id is not found; a database might even reject it."""
    if not is_id(name):
        raise NotFound("Not found. It may have been deleted.")
    return name
