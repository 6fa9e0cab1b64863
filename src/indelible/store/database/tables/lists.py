"""The tables behind lists of chats: the search index, labels, usage by day, ephemeral chats, and drafts of new ones.

They are on the same `metadata` as those of chats.py, and the columns of `chats` that only lists need are added here, so
that chats.py stays about the conversation.

*Search.* `search_entries` has one row per message (and title), numbered by the time of the message. Its words are those
of store/lists/search_words.py, folded and without repetition, so that both databases find the same: PostgreSQL
holds them as a `tsvector` with a GIN index; SQLite holds them as text, and triggers keep the FTS5 table `search_index`
in step with it, whoever writes or deletes. `unindexed_at` marks chats with something new to index; everything up to
event `indexed_seq` is done (store/lists/indexing.py).

*Labels* are rows as well as a column, because a filter needs an index. *Usage* has several rows per day (`shard`):
turns that end together would otherwise wait for each other's commit.

Must stay true (tests/store/test_migrations.py): the migrations build exactly this.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    event,
    text,
)
from sqlalchemy.dialects.postgresql import TSVECTOR

from indelible.store.database.tables.chats import chats, metadata
from indelible.store.database.tables.constraints import index_where
from indelible.store.database.tables.search_index import SQLITE_INDEX
from indelible.store.database.tables.types import Id, Json, Label, UtcTime, Word

_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")

chats.append_column(
    Column(
        "replied_seq",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="The event of the last reply; beyond `last_read_seq` the chat is unread.",
    )
)
chats.append_column(
    Column(
        "indexed_seq",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="How far its events are in the search index.",
    )
)
chats.append_column(
    Column("unindexed_at", UtcTime(), comment="When something came that the search index lacks; null: nothing.")
)

index_where(
    "chats_unread",
    chats.c.owner_id,
    chats.c.archived,
    chats.c.pinned,
    chats.c.updated_at,
    chats.c.id,
    where="replied_seq > last_read_seq",
)
index_where("chats_unindexed", chats.c.owner_id, chats.c.unindexed_at, where="unindexed_at IS NOT NULL")

search_entries: Final = Table(
    "search_entries",
    metadata,
    Column("id", _NUMBER, nullable=False, autoincrement=False, comment="By time: see store/lists/indexing.py."),
    Column("chat_id", Id, ForeignKey("chats.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("message_id", Id, comment="Null: the title."),
    Column("owner_id", Id, nullable=False, comment="The chat's."),
    Column("words", Text().with_variant(TSVECTOR(), "postgresql"), nullable=False, comment="Folded, each word once."),
    PrimaryKeyConstraint("id"),
    Index("search_entries_of_owner", "owner_id", "id"),
    comment="The search index: the words of each message and title.",
)
Index("search_entries_words", search_entries.c.words, postgresql_using="gin").ddl_if(dialect="postgresql")


def _on_sqlite(when: str, statement: str) -> None:
    ddl: Any = DDL  # it has no types
    event.listen(search_entries, when, ddl(statement).execute_if(dialect="sqlite"))


for _statement in SQLITE_INDEX.strip().split("\n\n"):
    _on_sqlite("after_create", _statement)
_on_sqlite("before_drop", "DROP TABLE IF EXISTS search_index")

chat_labels: Final = Table(
    "chat_labels",
    metadata,
    Column("chat_id", Id, ForeignKey("chats.id", ondelete="CASCADE"), nullable=False),
    Column("label", Label(), nullable=False),
    Column("owner_id", Id, nullable=False, comment="The chat's."),
    PrimaryKeyConstraint("chat_id", "label"),
    Index("chat_labels_of_owner", "owner_id", "label", "chat_id"),
    comment="The labels of a chat, one row each, for filters. The chat's row has them in order.",
)

usage_days: Final = Table(
    "usage_days",
    metadata,
    Column("user_id", Id, ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("day", Word, nullable=False, comment="In UTC: 2026-11-15."),
    Column("model", Label(), nullable=False, comment="The model that answered; empty: not known."),
    Column("shard", Integer, nullable=False, autoincrement=False, comment="By the chat. Add the shards up."),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cost_nanousd", BigInteger, nullable=False, comment="Of what has a known price."),
    Column("turns", BigInteger, nullable=False, comment="Turns that were begun with this model."),
    PrimaryKeyConstraint("user_id", "day", "model", "shard"),
    comment="What a user's chats used, by day and model. It stays when a chat is deleted.",
)

ephemeral_chats: Final = Table(
    "ephemeral_chats",
    metadata,
    Column("chat_id", Id, ForeignKey("chats.id", ondelete="CASCADE"), primary_key=True),
    comment="Chats that are put away after their one turn: see store/lists/ephemeral.py.",
)

new_drafts: Final = Table(
    "new_drafts",
    metadata,
    Column("user_id", Id, ForeignKey("users.id", ondelete="CASCADE"), primary_key=True),
    Column("content", Json, nullable=False, comment="A JSON list of content.Block."),
    Column("updated_at", UtcTime(), nullable=False),
    comment="What a user has typed for a chat that does not exist yet.",
)
