"""Finding the newest entries of a user that have all words of a query, in a time that does not grow with the matches.

There are two ways to the newest matches: walk the user's entries from the newest on and look at each, or let the
full-text index find the matches. The first is right for frequent words, the second for rare ones, and each is slow
where the other is right:

- SQLite's FTS5 walks the matches of whole *words* from the newest on. But the last word of a query is a prefix, and for
  a prefix FTS5 collects all matches first: a million, if nearly every message has the word.
- PostgreSQL's GIN index has no order. Its planner chooses between the two ways, assuming that matches are spread
  evenly: for a word that was frequent a year ago and is not any more it walked over everything.

So there are two statements (docs/lists.md has the numbers with one and with two). The first looks at the user's newest
entries only, at most `RECENT` of them: enough for a frequent word, and for all words of a user who has no more. If they
do not have enough matches, the words are not frequent, and the index finds the older ones.

PostgreSQL is kept from choosing again: the `OFFSET 0` of the first statement lets it walk, `MATERIALIZED` lets the
second use the index, and `force_custom_plan` shows it the words each time.

Must stay true (tests/store/test_search.py): the two statements find what one would, whatever `RECENT` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from indelible.store.database.transaction import Dialect, Transaction
from indelible.store.lists.indexing import spell_match
from indelible.store.lists.search_words import Query

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
    matches, values = _spell_filter(query, owner_id, dialect)
    found = await transaction.all(_RECENT[dialect].format(matches=matches), owner_id, top, bottom, limit, *values)
    if oldest is None or len(found) == limit:
        return found
    match = spell_match(query.words, owner_id, dialect)
    older = await transaction.all(_OLDER[dialect], owner_id, bottom, limit - len(found), match)
    return [*found, *older]


def _spell_filter(query: Query, owner_id: str, dialect: Dialect) -> tuple[str, list[str]]:
    """The condition that an entry has all words, as the first statement has it, and its values, from $5 on.

    SQLite holds the words as text, separated by spaces. The first is the owner's name, so every other has a space
    before it.
    """
    if dialect == "postgresql":
        return "words @@ CAST(CAST($5 AS TEXT) AS TSQUERY)", [spell_match(query.words, owner_id, dialect)]
    *whole, beginning = query.words
    has = [f"instr(words || ' ', ${place}) > 0" for place in range(6, 6 + len(whole))]
    return " AND ".join(["instr(words, $5) > 0", *has]), [f" {beginning}", *(f" {word} " for word in whole)]
