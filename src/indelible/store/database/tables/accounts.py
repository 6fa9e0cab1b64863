"""The tables of logins and shares. `users` and `tokens` are in chats.py, where chats refer to users.

A secret (a token, the id of a session, the key of a link) is 256 random bits, and only its SHA-256 is stored: whoever
reads the database, or a backup of it, cannot log in with what they find. Nothing slower than SHA-256 is needed, because
nobody guesses 256 bits.

A session ends with the token that opened it, and all of them with their user. A share belongs to its chat, whose id
leads its key, and is deleted with it.

Must stay true (tests/store/test_schema.py, tests/store/test_accounts.py).
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import CheckConstraint, Column, ForeignKey, LargeBinary, PrimaryKeyConstraint, Table, UniqueConstraint

from indelible.api.shapes import LoginMethod
from indelible.store.database.tables.chats import metadata
from indelible.store.database.tables.constraints import check_one_of
from indelible.store.database.tables.types import Id, Label, UtcTime, Word

sessions: Final = Table(
    "sessions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("user_id", Id, ForeignKey("users.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("token_id", Id, ForeignKey("tokens.id", ondelete="CASCADE"), index=True, comment="What it was opened with."),
    Column("hash", LargeBinary, nullable=False, unique=True, comment="SHA-256 of the cookie's value."),
    Column("method", Word, nullable=False, comment="How the user logged in."),
    Column("scopes", Label(), nullable=False, comment="Words, separated by spaces."),
    Column("created_at", UtcTime(), nullable=False),
    Column("last_used_at", UtcTime(), nullable=False, comment="To the minute."),
    Column("expires_at", UtcTime(), nullable=False, index=True, comment="It moves while the session is used."),
    check_one_of("method", LoginMethod),
    comment="Logins of browsers.",
)

shares: Final = Table(
    "shares",
    metadata,
    Column("chat_id", Id, ForeignKey("chats.id", ondelete="CASCADE"), nullable=False),
    Column("id", Id, nullable=False),
    Column("user_id", Id, ForeignKey("users.id", ondelete="CASCADE"), index=True, comment="Null: by link."),
    Column("hash", LargeBinary, index=True, comment="SHA-256 of the link's key; null: with a user."),
    Column("created_at", UtcTime(), nullable=False),
    PrimaryKeyConstraint("chat_id", "id"),
    UniqueConstraint("chat_id", "user_id"),
    CheckConstraint("(user_id IS NULL) <> (hash IS NULL)", name="link_or_user"),
    comment="Who else may read a chat.",
)
