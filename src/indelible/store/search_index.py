"""Bringing the search index up to date: which messages it lacks, and adding them.

A command only marks its chat (`unindexed_at`, in the row that it writes anyway), so a turn pays nothing for the index:
splitting and inserting a reply's words in its transaction cost 0.2 ms per turn, and on PostgreSQL a round trip and now
and then the merging of the whole pending list. The words are added outside the turn: by a worker's sweep once a minute,
and by a search, for its own user, before it queries the index. So a search finds what was committed before it, and the
sweep only bounds how much there is left to do (docs/decisions/0013-lists.md).

An entry's number is the second in which its message was written, and a counter within that second, so that the newest
messages have the highest numbers in whatever order they are indexed. One process at a time gives numbers.

What has to be added is read from the chat's events after `indexed_seq`, under the chat's lock. A crash in between loses
nothing: entries and `indexed_seq` are one transaction. The sweep leaves busy chats alone: acquiring skips a locked
chat, so its reply would begin later.

What people wrote and what models answered is indexed: the text of user and assistant messages of every branch, and the
title, unless it is only the beginning of the first message. Reasoning, tools' arguments and results, notices and what
only a model sees are not.

A text is split into words by us, the same way for both databases and for queries (`split_words`).

Must stay true (tests/store/test_search.py): every message is indexed once; what is deleted is found no more.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

from indelible.api.shapes import Snippet
from indelible.content import decode_blocks
from indelible.content.blocks import text_of
from indelible.store.database.transaction import Database, Dialect, Transaction, clean_label, to_time
from indelible.store.queries.liveness import BUSY_STATUSES

_CHUNK_EVENTS: Final = 100
_CHATS_PER_COMMIT: Final = 16
_CHUNK_ENTRIES: Final = 200
_PER_SECOND: Final = 256
_FIRST_SECOND: Final = 1_577_836_800  # 2020
_NUMBERING: Final = 0x1DE11B1F
"""The advisory lock of the process that gives numbers."""
_OWNER_MARK: Final = "\ue000"
"""Begins the word that names the owner. It is in no text's word, so no query finds it."""

_PENDING: Final = f"""
    SELECT id FROM chats WHERE unindexed_at IS NOT NULL AND status NOT IN {BUSY_STATUSES}
    ORDER BY unindexed_at DESC LIMIT $1
    """
_PENDING_OF: Final = """
    SELECT id FROM chats WHERE owner_id = $2 AND unindexed_at IS NOT NULL ORDER BY unindexed_at DESC LIMIT $1
    """
_CHAT: Final = """
    SELECT owner_id, CASE WHEN title_is_provisional THEN NULL ELSE title END AS title, indexed_seq, updated_at
    FROM chats WHERE id = $1 AND unindexed_at IS NOT NULL FOR NO KEY UPDATE
    """
_NEW: Final = """
    SELECT e.seq, e.kind, m.id, m.blocks, m.created_at FROM events AS e
    LEFT JOIN messages AS m ON m.chat_id = e.chat_id AND m.id = e.ref AND e.kind = 'message'
        AND m.visibility <> 'model' AND m.role IN ('user', 'assistant')
    WHERE e.chat_id = $1 AND e.seq > $2 AND e.kind IN ('message', 'chat') ORDER BY e.seq LIMIT $3
    """
_LAST_NUMBER: Final = "SELECT max(id) AS id FROM search_entries WHERE id >= $1 AND id < $2"
_DONE: Final = "UPDATE chats SET indexed_seq = $2, unindexed_at = NULL WHERE id = $1"
_MORE: Final = "UPDATE chats SET indexed_seq = $2 WHERE id = $1"
_FORGET_TITLE: Final = "DELETE FROM search_entries WHERE chat_id = $1 AND message_id IS NULL"
_FORGET_SOME: Final = """
    DELETE FROM search_entries WHERE id IN (SELECT id FROM search_entries WHERE chat_id = $1 LIMIT $2)
    """
_FORGOTTEN: Final = "UPDATE chats SET indexed_seq = 0, unindexed_at = updated_at WHERE id = $1"


class _Indexed(NamedTuple):
    entries: int
    is_all: bool


async def index_pending(database: Database, *, owner_id: str | None = None, limit: int) -> int:
    """Index what is new in up to `limit` chats, those that changed last first; returns how many chats it tried."""

    async def find(transaction: Transaction) -> list[str]:
        found = transaction.all(_PENDING, limit) if owner_id is None else transaction.all(_PENDING_OF, limit, owner_id)
        return [row["id"] for row in await found]

    chat_ids = (await database.read(find, single=True))[::-1]
    size = _CHATS_PER_COMMIT if database.dialect == "sqlite" else 1  # PostgreSQL holds the lock of a chat meanwhile
    for start in range(0, len(chat_ids), size):
        left = chat_ids[start : start + size]
        while left:
            left = await database.write(partial(_index_chats, chat_ids=left), slow=True)
    return len(chat_ids)


async def _index_chats(transaction: Transaction, chat_ids: list[str]) -> list[str]:
    """Index some events of these chats; returns the chats that are left, so that no commit takes long."""
    count = 0
    if transaction.dialect == "postgresql":
        await transaction.one("SELECT pg_advisory_xact_lock($1)", _NUMBERING)
    for place, chat_id in enumerate(chat_ids):
        indexed = await index_chat(transaction, chat_id)
        count += indexed.entries
        if not indexed.is_all:
            return chat_ids[place:]
        if count >= _CHUNK_EVENTS:
            return chat_ids[place + 1 :]
    return []


async def index_chat(transaction: Transaction, chat_id: str) -> _Indexed:
    """Index the next events of a chat, unless another process has just done so."""
    chat = await transaction.one(_CHAT, chat_id)
    if chat is None:
        return _Indexed(0, is_all=True)
    rows = await transaction.all(_NEW, chat_id, chat["indexed_seq"], _CHUNK_EVENTS)
    owner_id, dialect = chat["owner_id"], transaction.dialect
    entries = [
        (to_time(row["created_at"]), row["id"], tokens_for(text_of(decode_blocks(row["blocks"])), owner_id, dialect))
        for row in rows
        if row["id"] is not None
    ]
    if chat["indexed_seq"] == 0 or any(row["kind"] == "chat" for row in rows):
        await transaction.run(_FORGET_TITLE, chat_id)
        if chat["title"]:
            entries.append((to_time(chat["updated_at"]), None, tokens_for(chat["title"], owner_id, dialect)))
    if entries:
        numbers = await _number(transaction, [at for at, *_ in entries])
        numbered = zip(numbers, entries, strict=True)
        given = [(number, chat_id, message_id, owner_id, words) for number, (_, message_id, words) in numbered]
        await transaction.many(build_insert(dialect), given)
    is_all = len(rows) < _CHUNK_EVENTS
    await transaction.run(_DONE if is_all else _MORE, chat_id, rows[-1]["seq"] if rows else chat["indexed_seq"])
    return _Indexed(len(entries), is_all)


async def _number(transaction: Transaction, moments: Sequence[datetime]) -> list[int]:
    """Free numbers for entries of these times. A second that is full overflows into the next one."""
    last: dict[int, int] = {}
    numbers: list[int] = []
    for moment in moments:
        base = number_second(moment)
        while True:
            if base not in last:
                row = await transaction.one(_LAST_NUMBER, base, base + _PER_SECOND)
                last[base] = base - 1 if row["id"] is None else row["id"]
            if last[base] < base + _PER_SECOND - 1:
                break
            base += _PER_SECOND
        last[base] += 1
        numbers.append(last[base])
    return numbers


def number_second(moment: datetime) -> int:
    """The first number of the second of this moment."""
    return max(0, int(moment.timestamp()) - _FIRST_SECOND) * _PER_SECOND


async def forget_chat(database: Database, chat_id: str) -> None:
    """Remove from the index a chat that is about to be deleted, in short transactions (R12).

    If it is not deleted after all, it is indexed again.
    """
    while await database.write(partial(_forget_some, chat_id=chat_id), slow=True):
        continue


async def _forget_some(transaction: Transaction, chat_id: str) -> bool:
    count = await transaction.run(_FORGET_SOME, chat_id, _CHUNK_ENTRIES)
    if count:
        await transaction.run(_FORGOTTEN, chat_id)
    return count == _CHUNK_ENTRIES


def tokens_for(text: str, owner_id: str, dialect: Dialect) -> str | list[str]:
    """The words of an entry, as the column takes them."""
    words = [name_owner(owner_id), *split_words(clean_label(text))]
    return " ".join(words) if dialect == "sqlite" else words


def build_insert(dialect: Dialect) -> str:
    words = "$5" if dialect == "sqlite" else "array_to_tsvector(CAST($5 AS TEXT[]))"
    return f"INSERT INTO search_entries (id, chat_id, message_id, owner_id, words) VALUES ($1, $2, $3, $4, {words})"


def name_owner(owner_id: str) -> str:
    """The word that every entry of a user's chats has. It is one word for every tokenizer."""
    return _OWNER_MARK + "".join(character for character in owner_id if character.isalnum())


def build_match(words: tuple[str, ...], owner_id: str, dialect: Dialect) -> Any:
    """The query in the database's own language. Words are letters and digits, so quotes need no escape."""
    quote, sign = ('"', " AND ") if dialect == "sqlite" else ("'", " & ")
    begins = "*" if dialect == "sqlite" else ":*"
    exact = [f"{quote}{word}{quote}" for word in (name_owner(owner_id), *words[:-1])]
    return sign.join([*exact, f"{quote}{words[-1]}{quote}{begins}"])


MAX_TEXT: Final = 200_000
"""Characters of a text that are indexed; the rest is not found."""
MAX_WORDS: Final = 20_000
MAX_WORD: Final = 64
"""Characters. Of a longer word only the beginning counts, in texts and in queries alike."""
MAX_QUERY_WORDS: Final = 16
SNIPPET: Final = 160
_BEFORE: Final = 40
_SINGLE: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD: Final = re.compile(rf"[{_SINGLE}]|[^\W_{_SINGLE}]+")
_SPACE: Final = re.compile(r"\s+")


class Query(NamedTuple):
    """Normalized words. The last one is a beginning."""

    words: tuple[str, ...]

    def matches(self, word: str) -> bool:
        return word in self.words or word.startswith(self.words[-1])


def split_words(text: str) -> list[str]:
    """The words of a text, each once, in a fixed order."""
    found = {word for match in _WORD.finditer(text[:MAX_TEXT]) for word in normalize(match[0])}
    return sorted(found)[:MAX_WORDS]


def parse_query(text: str) -> Query | None:
    """The words of a query; None if it has none."""
    words = [word for match in _WORD.finditer(text) for word in normalize(match[0])]
    return Query(tuple(words[-MAX_QUERY_WORDS:])) if words else None


def normalize(word: str) -> list[str]:
    """The normalized form of a word; a compatibility form may be several words (`½` is 1 and 2)."""
    if word.isascii():
        return [word[:MAX_WORD].lower()]
    plain = unicodedata.normalize("NFKD", word)
    kept = "".join(character for character in plain if not unicodedata.combining(character)).casefold()
    return [part[:MAX_WORD] for part in _WORD.findall(kept)]


def make_snippet(text: str, query: Query) -> Snippet:
    """The piece of the text around the first word that the query found, on one line."""
    text = text[:MAX_TEXT]
    first = next((match for match in _WORD.finditer(text) if _is_found(match[0], query)), None)
    start = 0 if first is None else max(0, first.start() - _BEFORE)
    if start:
        start = text.find(" ", start, first.start() if first is not None else None) + 1 or start
    piece = _SPACE.sub(" ", text[start : start + 2 * SNIPPET]).strip()
    lead = "…" if start else ""
    shown = lead + (piece if len(piece) <= SNIPPET else f"{piece[: SNIPPET - 1]}…")
    ranges = [match.span() for match in _WORD.finditer(shown) if _is_found(match[0], query)]
    return Snippet(text=shown, ranges=ranges)


def _is_found(word: str, query: Query) -> bool:
    return any(query.matches(plain) for plain in normalize(word))
