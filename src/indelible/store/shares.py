"""Shares: who else may read a chat; and the secrets that we make. One statement decides each question.

The owner of the chat is checked in the transaction that writes, so a share can only be made or removed by them.

Secrets are tokens, session ids and keys of links: 256 random bits each; the store keeps the hash alone. The first
characters name the kind, so that a leaked secret is recognised, by people and by scanners of repositories.
`PREFIX_LENGTH` characters of a token may be shown: 24 bits of it, so that its user knows which one it is.

Must stay true (tests/store/test_accounts.py): every method below, on both databases.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from indelible.api.shapes import ChatSummary, Link, Share
from indelible.clock import Clock
from indelible.errors import ChatNotFound, Invalid, NotFound
from indelible.ids import is_id, new_id
from indelible.store.database.transaction import Database, Row, Transaction, clean_label, insert, to_time
from indelible.store.queries.listing import find_owner, load_summary

_SHARE: Final = "SELECT s.id, u.name, s.created_at FROM shares AS s LEFT JOIN users AS u ON u.id = s.user_id"
_ACTIVE: Final = "SELECT id FROM users WHERE name = $1 AND disabled_at IS NULL"
"""Whoever shares a chat learns no difference between a user who is disabled and none."""
_SHARED: Final = """
    SELECT c.id FROM shares AS s JOIN chats AS c ON c.id = s.chat_id WHERE s.user_id = $1
    ORDER BY c.updated_at DESC, c.id DESC LIMIT $2
    """
_OF_FILE: Final = """
    SELECT s.id, s.chat_id, c.owner_id FROM file_uses AS f
    JOIN shares AS s ON s.chat_id = f.chat_id JOIN chats AS c ON c.id = f.chat_id
    WHERE f.file_id = $1 AND s.user_id = $2 ORDER BY s.created_at, s.id
    """


class ShareStore:
    """`on_changed` gets the id of the owner of a share that was deleted, after the commit."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        lease_timeout_s: float,
        on_changed: Callable[[Iterable[str]], None] | None = None,
    ) -> None:
        self._database = database
        self._lease_timeout_s = lease_timeout_s
        self._clock = clock
        self._on_changed = on_changed or ignore

    async def share_with_user(self, chat_id: str, user: str, *, owner_id: str) -> Share:
        """Let another user read the chat. Sharing again returns the same share.

        A chat that is not this owner's, and an unknown or disabled user, are `NotFound`; the owner is `Invalid`.
        """

        async def share(transaction: Transaction) -> Share:
            await _check_owner(transaction, chat_id, owner_id)
            named = await transaction.one(_ACTIVE, clean_label(user))
            if named is None:
                raise NotFound("There is no user of this name.")
            if named["id"] == owner_id:
                raise Invalid("The chat is yours. Name another user, or null for a link.")
            await transaction.run(
                "INSERT INTO shares (chat_id, id, user_id, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
                chat_id,
                new_id("share"),
                named["id"],
                self._clock.now(),
            )
            found = f"{_SHARE} WHERE s.chat_id = $1 AND s.user_id = $2"
            return _read_share(await transaction.one(found, chat_id, named["id"]))

        return await self._database.write(share)

    async def share_by_link(self, chat_id: str, *, owner_id: str) -> tuple[Share, str]:
        """Create a link; returns it with its key. A chat that is not this owner's is `NotFound`."""
        key, now = new_secret("link"), self._clock.now()

        async def share(transaction: Transaction) -> Share:
            await _check_owner(transaction, chat_id, owner_id)
            made = Share(id=new_id("share"), user=None, created_at=now)
            row = {"chat_id": chat_id, "id": made.id, "hash": hash_secret(key), "created_at": now}
            await insert(transaction, "shares", row)
            return made

        return await self._database.write(share), key

    async def list_shares(self, chat_id: str, *, owner_id: str) -> list[Share]:
        """The shares of a chat, oldest first. A chat that is not this owner's is `NotFound`."""

        async def load(transaction: Transaction) -> list[Share]:
            await _check_owner(transaction, chat_id, owner_id)
            rows = await transaction.all(f"{_SHARE} WHERE s.chat_id = $1 ORDER BY s.id", chat_id)
            return [_read_share(row) for row in rows]

        return await self._database.read(load)

    async def delete_share(self, chat_id: str, share_id: str, *, owner_id: str) -> None:
        """Take the right away. What does not exist, or is another owner's, is `NotFound`."""

        async def delete(transaction: Transaction) -> None:
            await _check_owner(transaction, chat_id, owner_id)
            gone = "DELETE FROM shares WHERE chat_id = $1 AND id = $2"
            if not is_id(share_id) or not await transaction.run(gone, chat_id, share_id):
                raise NotFound("Share not found. It may have been removed.")

        await self._database.write(delete, on_committed=lambda _: self._on_changed([owner_id]))

    async def find_share(self, chat_id: str, user_id: str) -> str | None:
        """The id of the share with this user; None if the chat is not shared with them."""
        if not is_id(chat_id):
            return None
        sql = "SELECT id FROM shares WHERE chat_id = $1 AND user_id = $2"
        row = await load_one(self._database, sql, chat_id, user_id)
        return None if row is None else str(row["id"])

    async def find_file_shares(self, user_id: str, file_id: str) -> list[Link]:
        """The shares with this user of chats that use this file, oldest first."""
        if not is_id(file_id):
            return []
        rows = await load_all(self._database, _OF_FILE, file_id, user_id)
        return [Link(row["id"], row["chat_id"], row["owner_id"]) for row in rows]

    async def find_link(self, key: str) -> Link | None:
        """The link with this key."""
        sql = """
            SELECT s.id, s.chat_id, c.owner_id FROM shares AS s JOIN chats AS c ON c.id = s.chat_id WHERE s.hash = $1
            """
        row = await load_one(self._database, sql, hash_secret(key))
        return None if row is None else Link(row["id"], row["chat_id"], row["owner_id"])

    async def list_shared(self, user_id: str, *, limit: int = 200) -> list[ChatSummary]:
        """The chats that are shared with this user, most recently updated first, as their owners see them."""

        async def load(transaction: Transaction) -> list[ChatSummary]:
            rows = await transaction.all(_SHARED, user_id, limit)
            return [await load_summary(transaction, row["id"], lease_timeout_s=self._lease_timeout_s) for row in rows]

        return await self._database.read(load)


async def load_one(database: Database, sql: str, *values: Any) -> Row:
    return await database.read(lambda transaction: transaction.one(sql, *values), single=True)


async def load_all(database: Database, sql: str, *values: Any) -> list[Row]:
    return await database.read(lambda transaction: transaction.all(sql, *values), single=True)


def ignore(_user_ids: Iterable[str]) -> None:
    """The default `on_changed`: notify nobody."""


async def _check_owner(transaction: Transaction, chat_id: str, owner_id: str) -> None:
    if await find_owner(transaction, chat_id) != owner_id:
        raise ChatNotFound


def _read_share(row: Row) -> Share:
    return Share(id=row["id"], user=row["name"], created_at=to_time(row["created_at"]))


SecretKind = Literal["token", "session", "link"]
_MARKS: Final[dict[SecretKind, str]] = {"token": "idt_", "session": "ids_", "link": "idl_"}
PREFIX_LENGTH: Final = 8


def new_secret(kind: SecretKind) -> str:
    return _MARKS[kind] + secrets.token_urlsafe(32)


def hash_secret(secret: str, *, bound_to: str = "") -> bytes:
    """What is stored. Any text has a hash, also one that cannot be a secret of ours.

    With `bound_to`, the hash is keyed with that text. Hashing the two joined would not be enough: a client that knows
    both could send them as one secret, and would no longer depend on the text.
    """
    written = secret.encode("utf-8", "surrogatepass")
    if bound_to:
        return hmac.digest(bound_to.encode("utf-8", "surrogatepass"), written, "sha256")
    return hashlib.sha256(written).digest()
