"""Finding the newest entries of a user that have all words of a query, in a time that does not grow with the matches.

*SQLite.* FTS5 walks the entries that have all words from the newest on, and stops at the limit.

*PostgreSQL.* Its GIN index has no order, so there are two ways: walk the user's entries from the newest on and look at
each, or let the index find all matches and sort them. The first is right for frequent words, the second for rare ones.
With one statement the planner has to guess, and it assumes that matches are spread evenly: for a word that was frequent
a year ago and is not any more it walked over everything (docs/lists.md has the numbers). So there are two statements.
The first looks at the user's newest `RECENT` entries only, so that a wrong guess costs little. If that is not enough,
the matches in them are few, and the second lets the index find the others; `MATERIALIZED` keeps its limit from the
planner. `force_custom_plan` lets it see the words each time.

Must stay true (tests/store/test_search.py): the two statements find what one would, whatever `RECENT` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from indelible.store.database.transaction import Transaction
from indelible.store.lists.indexing import spell_match
from indelible.store.lists.words import Query

RECENT: Final = 20_000
"""Entries that PostgreSQL looks at before it asks the index for the older ones."""
_SQLITE: Final = """
    SELECT i.rowid AS id, e.chat_id, e.message_id FROM search_index AS i CROSS JOIN search_entries AS e
    WHERE i.search_index MATCH $1 AND i.rowid <= $2 AND e.id = i.rowid ORDER BY i.rowid DESC LIMIT $3
    """
_OLDEST_RECENT: Final = """
    SELECT id FROM search_entries WHERE owner_id = $1 AND id <= $2 ORDER BY id DESC OFFSET $3 LIMIT 1
    """
_RECENT: Final = """
    SELECT id, chat_id, message_id FROM search_entries
    WHERE words @@ CAST(CAST($1 AS TEXT) AS TSQUERY) AND owner_id = $2 AND id <= $3 AND id >= $4
    ORDER BY id DESC LIMIT $5
    """
_OLDER: Final = """
    WITH found AS MATERIALIZED (
        SELECT id, chat_id, message_id FROM search_entries
        WHERE words @@ CAST(CAST($1 AS TEXT) AS TSQUERY) AND owner_id = $2 AND id < $3
    )
    SELECT id, chat_id, message_id FROM found ORDER BY id DESC LIMIT $4
    """


async def find_matches(transaction: Transaction, owner_id: str, query: Query, *, top: int, limit: int) -> Sequence[Any]:
    """The newest entries up to `top`: rows of id, chat_id and message_id, the newest first."""
    match = spell_match(query.words, owner_id, transaction.dialect)
    if transaction.dialect == "sqlite":
        return await transaction.all(_SQLITE, match, top, limit)
    await transaction.run("SET LOCAL plan_cache_mode = force_custom_plan")
    oldest = await transaction.one(_OLDEST_RECENT, owner_id, top, RECENT - 1)
    bottom = 0 if oldest is None else oldest["id"]
    found = await transaction.all(_RECENT, match, owner_id, top, bottom, limit)
    if oldest is None or len(found) == limit:
        return found
    older = await transaction.all(_OLDER, match, owner_id, bottom, limit - len(found))
    return [*found, *older]
