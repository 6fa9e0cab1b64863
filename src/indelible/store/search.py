"""Searching a user's chats: the chats with the newest matching messages first, with the piece that was found.

Common words must not make a search grow with the number of messages that have them. So it is ordered by recency, and
looks at the newest `WINDOW` matches only, of which each chat shows its newest. Older ones are not listed;
a longer query finds them.

Pages are pieces of one window, which a cursor fixes by its newest entry (`top`), so that messages that arrive meanwhile
move nothing.

There are two ways to the newest matches: walk the user's entries from the newest on and look at each, or let the
full-text index find the matches. The first is right for frequent words, the second for rare ones, and each is slow
where the other is right: for the last word of a query, a prefix, SQLite's FTS5 collects all matches first; PostgreSQL's
GIN index has no order, and its planner assumes that matches are spread evenly. So there are two statements
(docs/performance.md has the numbers). The first looks at the user's newest entries only, at most `RECENT` of them. If
they do not have enough matches, the words are not frequent, and the index finds the older ones. PostgreSQL is kept from
choosing again: by `OFFSET 0` in the first, by `MATERIALIZED` in the second, and by `force_custom_plan`.

Must stay true (tests/store/test_search.py): no chat of another user is found; pages forward and backward are the list,
each chat once; the two statements find
what one would, whatever `RECENT` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from indelible.api.shapes import ChatSummary, Match
from indelible.content import decode_blocks
from indelible.content.blocks import text_of
from indelible.store.database.transaction import Dialect, Transaction
from indelible.store.queries.listing import ChatFilter, load_summaries
from indelible.store.search_index import Query, build_match, make_snippet

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


RECENT: Final[dict[Dialect, int]] = {"sqlite": 5_000, "postgresql": 20_000}
"""Entries of a user that are looked at before the index is asked for the older ones. PostgreSQL looks at them faster,
and what its index finds has to be sorted."""
_OLDEST_RECENT: Final = """
    SELECT id FROM search_entries WHERE owner_id = $1 AND id <= $2 ORDER BY id DESC LIMIT 1 OFFSET $3
    """
_RECENT: Final[dict[Dialect, str]] = {
    "sqlite": """
    SELECT id, chat_id, message_id FROM search_entries
    WHERE owner_id = $1 AND id <= $2 AND id >= $3 AND {matches} ORDER BY id DESC LIMIT $4
    """,
    "postgresql": """
    SELECT id, chat_id, message_id FROM (
        SELECT id, chat_id, message_id, words FROM search_entries
        WHERE owner_id = $1 AND id <= $2 AND id >= $3 ORDER BY id DESC OFFSET 0
    ) AS recent
    WHERE {matches} ORDER BY id DESC LIMIT $4
    """,
}
_OLDER: Final[dict[Dialect, str]] = {
    "sqlite": """
    SELECT i.rowid AS id, e.chat_id, e.message_id FROM search_index AS i CROSS JOIN search_entries AS e
    WHERE i.search_index MATCH $4 AND i.rowid < $2 AND e.id = i.rowid ORDER BY i.rowid DESC LIMIT $3
    """,
    "postgresql": """
    WITH found AS MATERIALIZED (
        SELECT id, chat_id, message_id FROM search_entries
        WHERE owner_id = $1 AND id < $2 AND words @@ CAST(CAST($4 AS TEXT) AS TSQUERY)
    )
    SELECT id, chat_id, message_id FROM found ORDER BY id DESC LIMIT $3
    """,
}


async def find_matches(transaction: Transaction, owner_id: str, query: Query, *, top: int, limit: int) -> Sequence[Any]:
    """The newest entries up to `top`: rows of id, chat_id and message_id, the newest first."""
    dialect = transaction.dialect
    if dialect == "postgresql":
        await transaction.run("SET LOCAL plan_cache_mode = force_custom_plan")
    oldest = await transaction.one(_OLDEST_RECENT, owner_id, top, RECENT[dialect] - 1)
    bottom = 0 if oldest is None else oldest["id"]
    matches, values = _build_filter(query, owner_id, dialect)
    found = await transaction.all(_RECENT[dialect].format(matches=matches), owner_id, top, bottom, limit, *values)
    if oldest is None or len(found) == limit:
        return found
    match = build_match(query.words, owner_id, dialect)
    older = await transaction.all(_OLDER[dialect], owner_id, bottom, limit - len(found), match)
    return [*found, *older]


def _build_filter(query: Query, owner_id: str, dialect: Dialect) -> tuple[str, list[str]]:
    """The condition that an entry has all words, as the first statement has it, and its values, from $5 on.

    SQLite holds the words as text, separated by spaces. The first is the owner's name, so every other has a space
    before it.
    """
    if dialect == "postgresql":
        return "words @@ CAST(CAST($5 AS TEXT) AS TSQUERY)", [build_match(query.words, owner_id, dialect)]
    *whole, beginning = query.words
    has = [f"instr(words || ' ', ${place}) > 0" for place in range(6, 6 + len(whole))]
    return " AND ".join(["instr(words, $5) > 0", *has]), [f" {beginning}", *(f" {word} " for word in whole)]
