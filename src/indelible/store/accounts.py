"""Users, their tokens and sessions. Shares are in shares.py.

A secret is returned once, by the method that makes it, and is nowhere else. Whatever takes a right away (revoking a
token, ending a session, disabling a user, deleting a share) calls `on_changed` with the user's id after the commit, so
that open streams are cut (server/revocation.py).

A credential is found by one statement, by the unique hash of its secret, with its user in the same row. Whether it is
still valid is part of that statement, once (`_VALID`), so that no caller can forget a condition: not revoked, not
expired, its user not disabled, and for a session the token that opened it.

Times come from the clock of the app. Servers whose clocks differ disagree for that long about an expiry, and about
nothing else.

Must stay true (tests/store/test_accounts.py): every method below, on both databases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from indelible.api.inputs import LONGEST_USER_NAME, check_user_name
from indelible.api.shapes import LoginMethod, Scope, TokenInfo, UserRole
from indelible.clock import Clock
from indelible.errors import Invalid, NotFound
from indelible.ids import is_id, new_id
from indelible.store.database.transaction import Database, Row, Transaction, clean_label, insert, to_time
from indelible.store.queries.listing import insert_user
from indelible.store.shares import PREFIX_LENGTH, hash_secret, ignore, load_all, load_one, new_secret


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A user."""

    id: str
    name: str
    role: UserRole
    disabled: bool
    created_at: datetime


CredentialKind = Literal["token", "session", "user", "share"]


class CredentialKey(NamedTuple):
    """The row that a request's rights come from; while it is valid, so are they."""

    kind: CredentialKind
    id: str


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """A valid token or session, and the user it acts for. `token_expires_at`: the end of the token it comes from."""

    key: CredentialKey
    user_id: str
    user: str
    role: UserRole
    scopes: tuple[Scope, ...]
    expires_at: datetime | None
    token_expires_at: datetime | None


_KEPT_EXPIRED: Final = timedelta(days=1)
_ACCOUNT: Final = "SELECT id, name, role, disabled_at, created_at FROM users"
_TOKEN: Final = "id, name, prefix, scopes, created_at, last_used_at, expires_at"  # noqa: S105  (columns)
_VALID: Final[dict[CredentialKind, str]] = {
    "token": """
        FROM tokens AS c JOIN users AS u ON u.id = c.user_id
        WHERE c.revoked_at IS NULL AND (c.expires_at IS NULL OR c.expires_at > $2) AND u.disabled_at IS NULL
        """,
    "session": """
        FROM sessions AS c JOIN users AS u ON u.id = c.user_id LEFT JOIN tokens AS t ON t.id = c.token_id
        WHERE c.expires_at > $2 AND u.disabled_at IS NULL AND (t.id IS NULL
            OR (t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > $2)))
        """,
    "user": "FROM users AS c WHERE c.disabled_at IS NULL",
    "share": "FROM shares AS c WHERE TRUE",
}
"""`$2` is the time, in the first two."""

_FOUND: Final[dict[CredentialKind, str]] = {
    "token": "SELECT c.id, c.user_id, u.name, u.role, c.scopes, c.expires_at, c.expires_at AS token_expires_at",
    "session": "SELECT c.id, c.user_id, u.name, u.role, c.scopes, c.expires_at, t.expires_at AS token_expires_at",
}


class AccountStore:
    """`on_changed` gets the ids of users whose rights were taken away, after the commit."""

    def __init__(
        self, database: Database, *, clock: Clock, on_changed: Callable[[Iterable[str]], None] | None = None
    ) -> None:
        self._database = database
        self._clock = clock
        self._on_changed = on_changed or ignore

    # --- users ---

    async def add_user(self, name: str, *, role: UserRole = "user") -> Account:
        """Create a user. A name that exists already, or looks like another user's, is `Invalid`."""
        check_user_name(name)

        async def add(transaction: Transaction) -> Account:
            if await transaction.one(f"{_ACCOUNT} WHERE name = $1", name) is not None:
                raise Invalid(f"There is already a user named {name}.")
            await insert_user(transaction, name, role, self._clock.now())
            return _read_account(await transaction.one(f"{_ACCOUNT} WHERE name = $1", name))

        return await self._database.write(add)

    async def ensure_account(self, name: str) -> Account:
        """The user of this name, created with the role `user` if missing. Concurrent calls get the same user.

        A new name that looks like another user's is `Invalid`.
        """
        check_user_name(name)
        found = await self.find_user(name)
        if found is not None:
            return found

        async def ensure(transaction: Transaction) -> Account:
            await insert_user(transaction, name, "user", self._clock.now())
            return _read_account(await transaction.one(f"{_ACCOUNT} WHERE name = $1", name))

        return await self._database.write(ensure)

    async def find_user(self, name: str) -> Account | None:
        """The user of this name."""
        row = await load_one(self._database, f"{_ACCOUNT} WHERE name = $1", clean_label(name))
        return None if row is None else _read_account(row)

    async def list_users(self) -> list[Account]:
        """All users, by name."""
        rows = await load_all(self._database, f"{_ACCOUNT} ORDER BY name")
        return [_read_account(row) for row in rows]

    async def update_user(self, name: str, *, role: UserRole | None = None, disabled: bool | None = None) -> Account:
        """Change the role, or disable or enable the user. An unknown name is `NotFound`.

        A disabled user's tokens and sessions are not valid until the user is enabled.
        """
        now = self._clock.now()

        async def change(transaction: Transaction) -> Account:
            row = await transaction.one(f"{_ACCOUNT} WHERE name = $1", clean_label(name))
            if row is None:
                raise NotFound(f"There is no user named {name[:LONGEST_USER_NAME]}.")
            old = _read_account(row)
            is_disabled = old.disabled if disabled is None else disabled
            disabled_at = (to_time(row["disabled_at"]) or now) if is_disabled else None
            changed = "UPDATE users SET role = $1, disabled_at = $2 WHERE id = $3"
            await transaction.run(changed, role or old.role, disabled_at, old.id)
            return _read_account(await transaction.one(f"{_ACCOUNT} WHERE id = $1", old.id))

        return await self._database.write(change, on_committed=lambda account: self._on_changed([account.id]))

    # --- tokens ---

    async def create_token(
        self,
        user_id: str,
        *,
        label: str,
        scopes: Sequence[Scope],
        expires_at: datetime | None = None,
        single_use: bool = False,
    ) -> tuple[TokenInfo, str]:
        """Create a token; returns it with its secret. One of `single_use` can only open a session, once."""
        secret = new_secret("token")
        row = {
            "id": new_id("token"),
            "user_id": user_id,
            "hash": hash_secret(secret),
            "name": label,
            "prefix": secret[:PREFIX_LENGTH],
            "scopes": " ".join(scopes),
            "created_at": self._clock.now(),
            "expires_at": expires_at,
            "single_use": single_use,
        }
        await self._database.write(lambda transaction: insert(transaction, "tokens", row), single=True)
        return _read_token({**row, "last_used_at": None}), secret

    async def list_tokens(self, user_id: str) -> list[TokenInfo]:
        """The user's valid tokens, newest first; not those of `single_use`."""
        sql = f"""
            SELECT {_TOKEN} FROM tokens WHERE user_id = $1 AND revoked_at IS NULL AND NOT single_use
                AND (expires_at IS NULL OR expires_at > $2)
            ORDER BY id DESC
            """
        return [_read_token(row) for row in await load_all(self._database, sql, user_id, self._clock.now())]

    async def revoke_token(self, token_id: str, *, user_id: str | None = None) -> None:
        """Revoke a token, and end the sessions that were opened with it. With `user_id`, only that user's.

        A token that does not exist is `NotFound`.
        """
        now = self._clock.now()

        async def revoke(transaction: Transaction) -> str:
            found = "SELECT user_id FROM tokens WHERE id = $1 AND revoked_at IS NULL"
            row = await transaction.one(found, token_id) if is_id(token_id) else None
            if row is None or user_id not in (None, row["user_id"]):
                raise NotFound("Token not found. It may have been revoked.")
            await transaction.run("UPDATE tokens SET revoked_at = $1 WHERE id = $2", now, token_id)
            await transaction.run("DELETE FROM sessions WHERE token_id = $1", token_id)
            return str(row["user_id"])

        await self._database.write(revoke, on_committed=lambda owner: self._on_changed([owner]))

    async def find_token(self, secret: str) -> Credential | None:
        """The valid token with this secret. One of `single_use` is not found."""
        return await self._find("token", hash_secret(secret), "AND NOT c.single_use")

    # --- sessions ---

    async def open_session(self, token: str, *, expires_at: datetime) -> tuple[Credential, str] | None:
        """Open a session with a token; returns it with its secret. None if the token is not valid.

        It has the token's scopes and does not outlive the token. One of `single_use` is revoked in the same
        transaction, and the session does outlive it.
        """
        secret, now = new_secret("session"), self._clock.now()
        sql = f"{_FOUND['token']}, c.single_use {_VALID['token']} AND c.hash = $1"
        if await load_one(self._database, sql, hash_secret(token), now) is None:
            return None  # a wrong token costs no more than a read

        async def open_one(transaction: Transaction) -> Credential | None:
            row = await transaction.one(sql, hash_secret(token), now)
            if row is None:
                return None
            is_single = bool(row["single_use"])
            if is_single and not await transaction.run(
                "UPDATE tokens SET revoked_at = $1 WHERE id = $2 AND revoked_at IS NULL", now, row["id"]
            ):
                return None  # another request was first
            session_id = await _insert_session(
                transaction,
                hash_secret(secret),
                now=now,
                user_id=row["user_id"],
                token_id=None if is_single else row["id"],
                method="token",
                scopes=row["scopes"],
                expires_at=expires_at,
            )
            opened = {**dict(row), "id": session_id, "expires_at": expires_at}
            return _read_credential("session", opened | ({"token_expires_at": None} if is_single else {}))

        opened = await self._database.write(open_one)
        return None if opened is None else (opened, secret)

    async def add_session(
        self, user_id: str, *, method: LoginMethod, scopes: Sequence[Scope], expires_at: datetime, bound_to: str = ""
    ) -> str:
        """Create a session for a user who has logged in elsewhere; returns its secret.

        It is found only by who knows `bound_to` as well, so it ends when that changes.
        """
        secret, now = new_secret("session"), self._clock.now()
        given: dict[str, Any] = {"user_id": user_id, "token_id": None, "method": method, "expires_at": expires_at}
        await self._database.write(
            lambda transaction: _insert_session(
                transaction, hash_secret(secret, bound_to=bound_to), now=now, scopes=" ".join(scopes), **given
            )
        )
        return secret

    async def find_session(self, secret: str, *, bound_to: str = "") -> Credential | None:
        """The valid session with this secret."""
        return await self._find("session", hash_secret(secret, bound_to=bound_to), "")

    async def end_session(self, session_id: str) -> None:
        """End a session. One that does not exist has ended."""

        async def end(transaction: Transaction) -> list[str]:
            row = await transaction.one("SELECT user_id FROM sessions WHERE id = $1", session_id)
            await transaction.run("DELETE FROM sessions WHERE id = $1", session_id)
            return [] if row is None else [str(row["user_id"])]

        await self._database.write(end, on_committed=self._on_changed)

    # --- both ---

    async def note_used(self, keys: Sequence[CredentialKey], *, session_expires_at: datetime) -> None:
        """Note that these were used now. Sessions then expire at this time, or with their token."""
        now = self._clock.now()
        of_kind = {kind: [key.id for key in keys if key.kind == kind] for kind in ("token", "session")}

        async def note(transaction: Transaction) -> None:
            if of_kind["token"]:
                await transaction.run("UPDATE tokens SET last_used_at = $1 WHERE id = ANY($2)", now, of_kind["token"])
            if of_kind["session"]:
                moved = "UPDATE sessions SET last_used_at = $1, expires_at = $2 WHERE id = ANY($3) AND expires_at > $1"
                await transaction.run(moved, now, session_expires_at, of_kind["session"])

        if any(of_kind.values()):
            await self._database.write(note)

    async def find_valid(self, keys: Sequence[CredentialKey]) -> set[CredentialKey]:
        """Which of these are still valid."""
        now = self._clock.now()

        async def find(transaction: Transaction) -> set[CredentialKey]:
            found: set[CredentialKey] = set()
            for kind, valid in _VALID.items():
                ids = [key.id for key in keys if key.kind == kind]
                if ids:
                    given = (ids, now) if "$2" in valid else (ids,)
                    rows = await transaction.all(f"SELECT c.id {valid} AND c.id = ANY($1)", *given)
                    found.update(CredentialKey(kind, row["id"]) for row in rows)
            return found

        return await self._database.read(find)

    async def forget_expired(self) -> None:
        """Delete sessions and tokens that can never be valid again."""
        before = self._clock.now() - _KEPT_EXPIRED

        async def forget(transaction: Transaction) -> None:
            await transaction.run("DELETE FROM sessions WHERE expires_at < $1", before)
            await transaction.run("DELETE FROM tokens WHERE expires_at < $1 OR revoked_at < $1", before)

        await self._database.write(forget)

    async def _find(self, kind: CredentialKind, hashed: bytes, rule: str) -> Credential | None:
        sql = f"{_FOUND[kind]} {_VALID[kind]} AND c.hash = $1 {rule}"
        row = await load_one(self._database, sql, hashed, self._clock.now())
        return None if row is None else _read_credential(kind, row)


async def _insert_session(transaction: Transaction, hashed: bytes, *, now: datetime, **columns: Any) -> str:
    session_id = new_id("session")
    times = {"created_at": now, "last_used_at": now}
    await insert(transaction, "sessions", {"id": session_id, "hash": hashed, **columns, **times})
    return session_id


def _read_account(row: Row) -> Account:
    return Account(
        id=row["id"],
        name=row["name"],
        role=row["role"],
        disabled=row["disabled_at"] is not None,
        created_at=to_time(row["created_at"]),
    )


def _read_token(row: Row) -> TokenInfo:
    return TokenInfo(
        id=row["id"],
        label=row["name"],
        prefix=row["prefix"],
        scopes=_read_scopes(row["scopes"]),
        created_at=to_time(row["created_at"]),
        last_used_at=to_time(row["last_used_at"]),
        expires_at=to_time(row["expires_at"]),
    )


def _read_credential(kind: CredentialKind, row: Row) -> Credential:
    return Credential(
        key=CredentialKey(kind, row["id"]),
        user_id=row["user_id"],
        user=row["name"],
        role=row["role"],
        scopes=tuple(_read_scopes(row["scopes"])),
        expires_at=to_time(row["expires_at"]),
        token_expires_at=to_time(row["token_expires_at"]),
    )


def _read_scopes(stored: str) -> list[Scope]:
    return cast(list[Scope], stored.split())
