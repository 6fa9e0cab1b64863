"""Who sends a request: a user, and what this login may do.

Ownership is not a scope: a user has their own chats, and reads what is shared with them (chat_access.py), whatever
their role. A scope limits a token: `read` may look, `write` may change chats, `admin` may manage tokens, and users too
if the user's role is admin. A session has the scopes of the token that opened it, or all of them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from indelible.api.shapes import ALL_SCOPES, Scope, UserRole
from indelible.errors import NotPermitted
from indelible.store.accounts.protocol import Credential, CredentialKey

LoginHow = Literal["none", "proxy", "token", "session"]
_NEEDS: dict[Scope, str] = {
    "read": "This token may not read.",
    "write": "This token may only read. Use one with the scope `write`.",
    "admin": "This needs a login, or a token with the scope `admin`.",
}


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """`key` is the row that these rights come from; None if they come from the settings alone.

    `token_expires_at` is the end of the token that they come from, also those of a session that it opened.
    """

    user_id: str
    user: str
    role: UserRole
    how: LoginHow
    scopes: tuple[Scope, ...] = ALL_SCOPES
    key: CredentialKey | None = None
    expires_at: datetime | None = None
    token_expires_at: datetime | None = None

    @classmethod
    def of(cls, credential: Credential, how: LoginHow) -> Identity:
        return cls(
            user_id=credential.user_id,
            user=credential.user,
            role=credential.role,
            how=how,
            scopes=credential.scopes,
            key=credential.key,
            expires_at=credential.expires_at,
            token_expires_at=credential.token_expires_at,
        )

    def check_scope(self, scope: Scope) -> None:
        """Raises `NotPermitted` if this login has no such scope."""
        if scope not in self.scopes:
            raise NotPermitted(_NEEDS[scope])

    @property
    def is_admin(self) -> bool:
        """Whether this is an admin who may act as one."""
        return self.role == "admin" and "admin" in self.scopes

    def check_admin(self) -> None:
        """Raises `NotPermitted` unless this is an admin who may act as one."""
        self.check_scope("admin")
        if self.role != "admin":
            raise NotPermitted("Only an admin may do this.")
