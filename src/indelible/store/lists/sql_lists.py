"""The `ListStore` on both databases (protocol.py says what each method promises): one transaction per method.

It is part of the store (`store.lists`) and shares its database, its lease timeout and its notifications. A write that
may be repeated takes `once`, as the store's own writes do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from indelible.api.shapes import ChatExtras, ChatSummary, Draft, UsageDay
from indelible.ids import new_id
from indelible.store.database.transaction import Transaction
from indelible.store.limits import check_payload
from indelible.store.lists import indexing, marks, transfer
from indelible.store.lists.ephemeral import find_left
from indelible.store.lists.search import SearchCursor, SearchPage, search_chats
from indelible.store.lists.search_words import parse_query
from indelible.store.lists.transfer import ChatFile
from indelible.store.lists.usage import load_usage
from indelible.store.protocol import Once, Outcome
from indelible.store.queries.listing import ALL_CHATS, ChatFilter, load_owned, load_summary

if TYPE_CHECKING:
    from indelible.store.sql_store import SqlStore

_INDEXED_BEFORE_A_SEARCH: Final = 1000
_STALE: Final = """
    SELECT id FROM chats
    WHERE updated_at < $1 AND status IN ('idle', 'error') AND NOT archived AND NOT pinned
        AND replied_seq <= last_read_seq
    ORDER BY updated_at LIMIT $2
    """


class SqlLists:
    """See the module header. `store` is the one that it belongs to."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._database = store.database

    async def search(
        self,
        owner_id: str,
        text: str,
        *,
        wanted: ChatFilter = ALL_CHATS,
        cursor: SearchCursor | None = None,
        limit: int = 50,
    ) -> SearchPage:
        query = parse_query(text)
        if query is None:
            return SearchPage(items=[], next=None, previous=None)
        await indexing.index_pending(self._database, owner_id=owner_id, limit=_INDEXED_BEFORE_A_SEARCH)
        given: dict[str, Any] = {"wanted": wanted, "cursor": cursor, "limit": limit}
        timeout_s = self._store.lease_timeout_s
        return await self._database.read(
            lambda transaction: search_chats(transaction, owner_id, query, lease_timeout_s=timeout_s, **given)
        )

    async def index(self, *, limit: int) -> int:
        return await indexing.index_pending(self._database, limit=limit)

    async def forget_chat(self, chat_id: str) -> None:
        await indexing.forget_chat(self._database, chat_id)

    async def summaries(self, chat_ids: Sequence[str]) -> dict[str, tuple[str, ChatSummary]]:
        timeout_s = self._store.lease_timeout_s
        return await self._database.read(
            lambda transaction: load_owned(transaction, chat_ids, lease_timeout_s=timeout_s), single=True
        )

    async def stale(self, *, updated_before: datetime, limit: int) -> list[str]:
        rows = await self._database.read(
            lambda transaction: transaction.all(_STALE, updated_before, limit), single=True
        )
        return [row["id"] for row in rows]

    async def find_ephemeral(self, *, updated_before: datetime, limit: int) -> list[str]:
        return await self._database.read(lambda transaction: find_left(transaction, updated_before, limit), single=True)

    async def mark_read(
        self, chat_id: str, user_id: str, seq: int | None = None, *, once: Once | None = None
    ) -> Outcome:
        async def mark(transaction: Transaction) -> Outcome:
            has_changed = await marks.mark_read(transaction, chat_id, user_id, seq)
            return _make_outcome(chat_id, has_changed=has_changed)

        return await self._store.commit(mark, once=once)

    async def extras(self, chat_id: str, user_id: str) -> ChatExtras:
        return await self._database.read(
            lambda transaction: marks.load_extras(transaction, chat_id, user_id), single=True
        )

    async def draft(self, chat_id: str, user_id: str) -> Draft:
        return await self._database.read(
            lambda transaction: marks.load_draft(transaction, chat_id, user_id), single=True
        )

    async def save_draft(self, chat_id: str, user_id: str, text: str, *, once: Once | None = None) -> Outcome:
        async def save(transaction: Transaction) -> Outcome:
            await marks.save_draft(transaction, chat_id, user_id, text)
            return _make_outcome(chat_id, has_changed=False)

        return await self._store.commit(save, once=once)

    async def usage(self, user_id: str | None, *, since: date, until: date, name: str | None = None) -> list[UsageDay]:
        return await self._database.read(
            lambda transaction: load_usage(transaction, user_id, since, until, name=name), single=True
        )

    async def export_chat(self, chat_id: str) -> ChatFile:
        async def export(transaction: Transaction) -> ChatFile:
            return await transfer.export_chat(transaction, chat_id, await transaction.now())

        return await self._database.read(export)

    async def import_chat(self, file: ChatFile, *, owner_id: str, once: Once | None = None) -> Outcome:
        check_payload(transfer.make_patch(file), self._store.limits)
        chat_id = new_id("chat")
        rows = await asyncio.to_thread(transfer.make_rows, file, chat_id)  # a large one would hold up everybody
        work = partial(self._import, file=file, rows=rows, new_chat_id=chat_id, owner_id=owner_id)
        return await self._store.commit(work, once=once, slow=True)

    async def _import(self, transaction: Transaction, *, new_chat_id: str, **given: Any) -> Outcome:
        outcome = await transfer.import_chat(transaction, new_chat_id=new_chat_id, **given)
        summary = await load_summary(transaction, new_chat_id, lease_timeout_s=self._store.lease_timeout_s)
        return replace(outcome, summary=summary)


def _make_outcome(chat_id: str, *, has_changed: bool) -> Outcome:
    """Readers of lists are woken by a change; no worker is, and no event was written."""
    return Outcome(
        chat_id=chat_id,
        effective=has_changed,
        status=None,
        seq=0,
        epoch=0,
        wakes_readers=has_changed,
        wakes_workers=False,
    )
