"""The results of the use cases about logins, users and shares: what the HTTP API answers with."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from indelible.store.accounts.protocol import Share, TokenInfo
from indelible.store.database.tables.enumerations import Scope, UserRole


class SessionUser(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    role: UserRole


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who is logged in. `login` is `none` where nobody has to; `methods` are the ways to log in."""

    user: SessionUser
    login: Literal["none", "required"]
    methods: list[Literal["token", "oidc"]]
    scopes: list[Scope]
    expires_at: datetime | None


class CreatedToken(TokenInfo, frozen=True, kw_only=True):
    """A new token. `token` is shown once."""

    token: str


class TokenPage(msgspec.Struct, frozen=True, kw_only=True):
    """The user's valid tokens, newest first."""

    items: list[TokenInfo]


class UserInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A user, as an admin sees them."""

    name: str
    role: UserRole
    disabled: bool
    created_at: datetime


class UserPage(msgspec.Struct, frozen=True, kw_only=True):
    """All users, by name."""

    items: list[UserInfo]


class CreatedShare(Share, frozen=True, kw_only=True):
    """A new share. `url` is that of a link, and is shown once; null if the chat is shared with a user."""

    url: str | None


class SharePage(msgspec.Struct, frozen=True, kw_only=True):
    """Who else may read the chat, oldest first."""

    items: list[Share]
