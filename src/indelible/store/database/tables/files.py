"""The tables of files: what was uploaded, its bytes, and which chats use it.

A file belongs to a user, not to a chat: a fork uses the same bytes, and an upload is there before its message is. So a
chat's use of a file is a row of its own (`file_uses`), deleted with the chat, and the file goes with its last use.
`unused_since` is null exactly while a chat uses the file; every other row is a candidate for the sweep, which finds
them by one small index however many files there are.

A file has a row before its bytes arrive (`uploading`), so that whatever a crash leaves behind is found again by the
sweep, and it keeps its row until its bytes are gone (`deleted`). Only `ready` files exist for anybody else.

Bytes are rows of at most a quarter of a megabyte: each is written, read and deleted in a short transaction, so that a
large file does not block other writers (R12).

Must stay true (tests/store/test_schema.py, tests/store/test_migrations.py, tests/files/test_file_store.py).
chats.py has the conversation.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
)

from indelible.store.database.tables.chats import metadata
from indelible.store.database.tables.constraints import check_one_of, index_where
from indelible.store.database.tables.enumerations import FilePlace, FileState, FileVariant, PreviewState
from indelible.store.database.tables.types import Id, Label, UtcTime, Word

files: Final = Table(
    "files",
    metadata,
    Column("id", Id, primary_key=True),
    Column("owner_id", Id, ForeignKey("users.id"), nullable=False),
    Column("state", Word, nullable=False, comment="FileState. Only a ready file exists for its owner."),
    Column("name", Label(), nullable=False),
    Column("media_type", Label(), nullable=False, comment="By its first bytes, not by what the client claims."),
    Column("size_bytes", BigInteger, nullable=False, comment="While it is uploading: as many as were announced."),
    Column("sha256", LargeBinary, comment="Null while it is uploading."),
    Column("width", Integer, comment="Of an image, in pixels."),
    Column("height", Integer),
    Column("place", Word, nullable=False, comment="FilePlace: where its bytes are. The setting may change."),
    Column("preview", Word, nullable=False, comment="PreviewState: none: there can be none."),
    Column("unused_since", UtcTime(), comment="Null: a chat uses it. Otherwise the sweep deletes it a day later."),
    Column("created_at", UtcTime(), nullable=False),
    CheckConstraint("size_bytes >= 0", name="size_bytes"),
    CheckConstraint("state <> 'ready' OR sha256 IS NOT NULL", name="complete"),
    check_one_of("state", FileState),
    check_one_of("place", FilePlace),
    check_one_of("preview", PreviewState),
    Index("files_of_owner", "owner_id", "id"),
    index_where("files_unused", "unused_since", where="unused_since IS NOT NULL"),
    comment="What was uploaded, or made by a tool.",
)

file_chunks: Final = Table(
    "file_chunks",
    metadata,
    Column("file_id", Id, ForeignKey("files.id", ondelete="CASCADE"), nullable=False),
    Column("variant", Word, nullable=False, comment="FileVariant."),
    Column("n", Integer, nullable=False, autoincrement=False, comment="Counts from 0."),
    Column("content", LargeBinary, nullable=False),
    PrimaryKeyConstraint("file_id", "variant", "n"),
    check_one_of("variant", FileVariant),
    comment="The bytes of files that are stored in the database.",
)

file_uses: Final = Table(
    "file_uses",
    metadata,
    Column("chat_id", Id, ForeignKey("chats.id", ondelete="CASCADE"), nullable=False),
    Column("file_id", Id, ForeignKey("files.id", ondelete="CASCADE"), nullable=False, index=True),
    PrimaryKeyConstraint("chat_id", "file_id"),
    comment="Which chats use which files. A file is deleted with the last chat that uses it.",
)
