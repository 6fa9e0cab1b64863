"""What use cases have in common: what they answer, answering a repeated request once, and pages.

A result depends on the outcome of its command alone, because the one that is stored with an idempotency key is made
inside the transaction: the store commits the write, its result and the request's key together, and raises
`RequestRepeated` if the key is there already (rule 3.5). So a use case is written once, for requests with a key and
without one.

The cursor of a list of chats is opaque text. It encodes the position at which a page ended, or began if it leads back,
so that a chat that moves up meanwhile is never listed twice. Other lists use the id of the first or the last item:
`next` of such a page is the `before` of the next one, `previous` the `after` of the one that came before.

Must stay true (tests/service/test_local.py, tests/server/test_idempotency_over_http.py): a repeated request changes
nothing and gets the same result; a reader that begins at the cursor of a result misses nothing that follows from it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import msgspec

from indelible.api.events import Position
from indelible.api.shapes import Accepted, ChatSummary, CreatedChat, UpdatedChat
from indelible.content import encode
from indelible.errors import Invalid, NotFound
from indelible.feed import Cursors
from indelible.ids import is_id
from indelible.store.database.transaction import to_utc
from indelible.store.outcome import IdempotencyKey, Outcome, RequestRepeated, StoredResponse
from indelible.store.queries.listing import ListCursor
from indelible.store.search import SearchCursor


def write_cursor(outcome: Outcome) -> str:
    """The cursor right after a command: everything that follows from it can be read from there."""
    return Cursors(outcome.chat_id).write(Position(seq=outcome.seq, attempt=outcome.live_id))


def describe_accepted(outcome: Outcome) -> Accepted:
    """The sent message may be queued while an older queued one enters history: then it is not `message`."""
    sent = next((message.id for message in reversed(outcome.messages) if message.role == "user"), None)
    return Accepted(
        status=str(outcome.status),
        turn=outcome.turn_id,
        cursor=write_cursor(outcome),
        message=sent if outcome.queued_id is None else None,
        queued=outcome.queued_id,
    )


def describe_updated(outcome: Outcome) -> UpdatedChat:
    chat = outcome.summary
    assert chat is not None
    return UpdatedChat(
        id=chat.id,
        status=chat.status,
        cursor=write_cursor(outcome),
        title=chat.title,
        model=chat.model,
        labels=chat.labels,
        pinned=chat.pinned,
        archived=chat.archived,
        debug=chat.debug,
    )


def describe_copy(outcome: Outcome) -> CreatedChat:
    chat = outcome.summary
    assert chat is not None
    return CreatedChat(
        id=chat.id,
        status=chat.status,
        turn=outcome.turn_id,
        cursor=write_cursor(outcome),
        title=chat.title,
        model=chat.model,
    )


def describe_nothing(_outcome: Outcome) -> None:
    """The result of a write that has none."""


T = TypeVar("T")


async def perform_once(
    key: IdempotencyKey | None,
    write: Callable[..., Coroutine[Any, Any, Outcome]],
    describe: Callable[[Outcome], T],
    result_type: type[T],
) -> T:
    """Call `write(key=…)` and describe its outcome; None is a request without a key. The route knows the status."""
    if key is not None:
        key = key._replace(respond=lambda outcome: StoredResponse(200, encode(describe(outcome))))
    try:
        return describe(await write(key=key))
    except RequestRepeated as repeated:
        return msgspec.json.decode(repeated.response.body, type=result_type)


_NO_CURSOR: Final = "cursor: must be the `next` or the `previous` of a page of the same list."
MAX_SEARCH: Final = 500
"""In characters."""


def split_either(found: Sequence[T], limit: int, *, is_backward: bool) -> tuple[list[T], bool]:
    """The page, and whether more follows in the direction of reading. `found` is in the order of the list."""
    page = list(found[-limit:] if is_backward else found[:limit])
    return page, len(found) > limit


async def load_page(
    page_type: Callable[..., T],
    load: Callable[..., Coroutine[Any, Any, Sequence[Any]]],
    *,
    before: str | None,
    after: str | None,
    limit: int,
) -> T:
    """A page of a list of things with ids, from the newest on, which was asked for with `before` or `after`."""
    named = {"before": before and check_name(before), "after": after and check_name(after)}
    items, has_more = split_either(await load(**named, limit=limit + 1), limit, is_backward=after is not None)
    if not items:
        return page_type(items=[], next=None, previous=None)
    has_older, has_newer = (has_more, before is not None) if after is None else (True, has_more)
    return page_type(items=items, next=items[-1].id if has_older else None, previous=items[0].id if has_newer else None)


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
