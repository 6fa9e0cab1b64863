"""Searching a user's chats: the chats with the newest matching messages first, with the piece that was found.

Common words must not make a search grow with the number of messages that have them. So it is ordered by recency, and
looks at the newest `WINDOW` matches only (matching.py), of which each chat shows its newest. Older ones are not listed;
a longer query finds them.

Pages are pieces of one window, which a cursor fixes by its newest entry (`top`), so that messages that arrive meanwhile
move nothing.

Must stay true (tests/store/test_search.py): no chat of another user is found; pages forward and backward are the list,
each chat once. indexing.py keeps the index; docs/lists.md has the plans.
"""

from __future__ import annotations

from typing import Final

import msgspec

from indelible.api.shapes import ChatSummary, Match
from indelible.content import decode_blocks
from indelible.content.blocks import text_of
from indelible.store.database.transaction import Transaction
from indelible.store.lists.matching import find_matches
from indelible.store.lists.search_words import Query, make_snippet
from indelible.store.queries.listing import ChatFilter, load_summaries

WINDOW: Final = 500
"""Matching messages that one search looks at."""
_CHUNK_CHATS: Final = 64
_NEWEST: Final = 2**63 - 1
_TEXTS: Final = "SELECT id, blocks FROM messages WHERE chat_id = ANY($1) AND id = ANY($2)"


class SearchCursor(msgspec.Struct, frozen=True, array_like=True):
    """The newest entry of the window, the entry of the last chat (or the first, if `backward`) of a page."""

    top: int
    id: int
    backward: bool = False


class SearchPage(msgspec.Struct, frozen=True, kw_only=True):
    items: list[ChatSummary]
    next: SearchCursor | None
    previous: SearchCursor | None


class _Hit(msgspec.Struct, frozen=True):
    id: int
    chat_id: str
    message_id: str | None


async def search_chats(
    transaction: Transaction,
    owner_id: str,
    query: Query,
    *,
    wanted: ChatFilter,
    cursor: SearchCursor | None = None,
    limit: int = 50,
    lease_timeout_s: float,
) -> SearchPage:
    top = _NEWEST if cursor is None else cursor.top
    hits: dict[str, _Hit] = {}
    for row in await find_matches(transaction, owner_id, query, top=top, limit=WINDOW):
        hits.setdefault(row["chat_id"], _Hit(row["id"], row["chat_id"], row["message_id"]))
    is_backward = cursor is not None and cursor.backward
    candidates = list(hits.values())
    if cursor is not None:
        candidates = [hit for hit in candidates if (hit.id > cursor.id if is_backward else hit.id < cursor.id)]
    ordered = candidates[::-1] if is_backward else candidates
    found: list[tuple[_Hit, ChatSummary]] = []
    for start in range(0, len(ordered), _CHUNK_CHATS):  # most of the window is not on the page
        chunk = ordered[start : start + _CHUNK_CHATS]
        chat_ids = [hit.chat_id for hit in chunk]
        known = await load_summaries(transaction, chat_ids, owner_id, wanted, lease_timeout_s=lease_timeout_s)
        found += [(hit, known[hit.chat_id]) for hit in chunk if hit.chat_id in known]
        if len(found) > limit:
            break
    page = found[:limit][::-1] if is_backward else found[:limit]
    if not page:
        return SearchPage(items=[], next=None, previous=None)
    if cursor is None:
        top = next(iter(hits.values())).id
    has_next, has_previous = (True, len(found) > limit) if is_backward else (len(found) > limit, cursor is not None)
    texts = await _load_texts(transaction, [hit for hit, _ in page])
    return SearchPage(
        items=[_show(summary, hit, texts, query) for hit, summary in page],
        next=SearchCursor(top, page[-1][0].id) if has_next else None,
        previous=SearchCursor(top, page[0][0].id, backward=True) if has_previous else None,
    )


async def _load_texts(transaction: Transaction, page: list[_Hit]) -> dict[str, str]:
    named = [hit for hit in page if hit.message_id is not None]
    if not named:
        return {}
    rows = await transaction.all(_TEXTS, [hit.chat_id for hit in named], [hit.message_id for hit in named])
    return {row["id"]: text_of(decode_blocks(row["blocks"])) for row in rows}


def _show(summary: ChatSummary, hit: _Hit, texts: dict[str, str], query: Query) -> ChatSummary:
    text = summary.title or "" if hit.message_id is None else texts.get(hit.message_id, "")
    match = Match(message_id=hit.message_id, snippet=make_snippet(text, query))
    return msgspec.structs.replace(summary, match=match)
