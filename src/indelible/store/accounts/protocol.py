"""What the store promises about users, logins and shares. sql_accounts.py and sql_shares.py keep it.

A secret is returned once, by the method that makes it, and is nowhere else. Whatever takes a right away (revoking a
token, ending a session, disabling a user, deleting a share) calls `on_changed` with the user's id after the commit, so
that open streams are cut (server/revocation.py).

Must stay true (tests/store/test_accounts.py): every method below, on both databases.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

import msgspec

from indelible.api.shapes import ChatSummary, Link, LoginMethod, Scope, Share, TokenInfo, UserRole


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


class AccountStore(Protocol):
    # --- users ---

    async def add_user(self, name: str, *, role: UserRole = "user") -> Account:
        """Create a user. A name that exists already, or looks like another user's, is `Invalid`."""

    async def ensure_account(self, name: str) -> Account:
        """The user of this name, created with the role `user` if missing. Concurrent calls get the same user.

        A new name that looks like another user's is `Invalid`.
        """

    async def find_user(self, name: str) -> Account | None:
        """The user of this name."""

    async def list_users(self) -> list[Account]:
        """All users, by name."""

    async def update_user(self, name: str, *, role: UserRole | None = None, disabled: bool | None = None) -> Account:
        """Change the role, or disable or enable the user. An unknown name is `NotFound`.

        A disabled user's tokens and sessions are not valid until the user is enabled.
        """

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

    async def list_tokens(self, user_id: str) -> list[TokenInfo]:
        """The user's valid tokens, newest first; not those of `single_use`."""

    async def revoke_token(self, token_id: str, *, user_id: str | None = None) -> None:
        """Revoke a token, and end the sessions that were opened with it. With `user_id`, only that user's.

        A token that does not exist is `NotFound`.
        """

    async def find_token(self, secret: str) -> Credential | None:
        """The valid token with this secret. One of `single_use` is not found."""

    # --- sessions ---

    async def open_session(self, token: str, *, expires_at: datetime) -> tuple[Credential, str] | None:
        """Open a session with a token; returns it with its secret. None if the token is not valid.

        It has the token's scopes and does not outlive the token. One of `single_use` is revoked in the same
        transaction, and the session does outlive it.
        """

    async def add_session(
        self,
        user_id: str,
        *,
        method: LoginMethod,
        scopes: Sequence[Scope],
        expires_at: datetime,
        bound_to: str = "",
    ) -> str:
        """Create a session for a user who has logged in elsewhere; returns its secret.

        It is found only by who knows `bound_to` as well, so it ends when that changes.
        """

    async def find_session(self, secret: str, *, bound_to: str = "") -> Credential | None:
        """The valid session with this secret."""

    async def end_session(self, session_id: str) -> None:
        """End a session. One that does not exist has ended."""

    # --- both ---

    async def note_used(self, keys: Sequence[CredentialKey], *, session_expires_at: datetime) -> None:
        """Note that these were used now. Sessions then expire at this time, or with their token."""

    async def find_valid(self, keys: Sequence[CredentialKey]) -> set[CredentialKey]:
        """Which of these are still valid."""

    async def forget_expired(self) -> None:
        """Delete sessions and tokens that can never be valid again."""


class ShareStore(Protocol):
    async def share_with_user(self, chat_id: str, user: str, *, owner_id: str) -> Share:
        """Let another user read the chat. Sharing again returns the same share.

        A chat that is not this owner's, and an unknown or disabled user, are `NotFound`; the owner is `Invalid`.
        """

    async def share_by_link(self, chat_id: str, *, owner_id: str) -> tuple[Share, str]:
        """Create a link; returns it with its key. A chat that is not this owner's is `NotFound`."""

    async def list_shares(self, chat_id: str, *, owner_id: str) -> list[Share]:
        """The shares of a chat, oldest first. A chat that is not this owner's is `NotFound`."""

    async def delete_share(self, chat_id: str, share_id: str, *, owner_id: str) -> None:
        """Take the right away. What does not exist, or is another owner's, is `NotFound`."""

    async def find_share(self, chat_id: str, user_id: str) -> str | None:
        """The id of the share with this user; None if the chat is not shared with them."""

    async def find_file_shares(self, user_id: str, file_id: str) -> list[Link]:
        """The shares with this user of chats that use this file, oldest first."""

    async def find_link(self, key: str) -> Link | None:
        """The link with this key."""

    async def list_shared(self, user_id: str, *, limit: int = 200) -> list[ChatSummary]:
        """The chats that are shared with this user, most recently updated first, as their owners see them."""
