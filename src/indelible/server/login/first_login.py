"""The first admin: the user whose chats a server without a login serves.

A link logs this user in, once and within the hour. It makes whoever opens it first an admin, so there is one only where
somebody asks for it: `indelible login-link`, or `indelible serve` on a terminal. Nothing makes one for a log.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from indelible.api.shapes import ALL_SCOPES
from indelible.clock import Clock
from indelible.errors import Invalid
from indelible.service.accounts import FIRST_ADMIN
from indelible.store.accounts import Account, AccountStore

_VALID_FOR: Final = timedelta(hours=1)


async def ensure_first_admin(accounts: AccountStore) -> Account:
    """The user of the setting `token` is an admin, whoever changed the role meanwhile."""
    found = await accounts.ensure_account(FIRST_ADMIN)
    return found if found.role == "admin" else await accounts.update_user(FIRST_ADMIN, role="admin")


async def offer_login(accounts: AccountStore, *, clock: Clock) -> str:
    """The path of the login page with a new token in its fragment, which a browser sends to no server."""
    first = await ensure_first_admin(accounts)
    if first.disabled:
        raise Invalid(f"The user {FIRST_ADMIN} is disabled. Enable it first: indelible user enable {FIRST_ADMIN}")
    _, secret = await accounts.create_token(
        first.id, label="login link", scopes=ALL_SCOPES, expires_at=clock.now() + _VALID_FOR, single_use=True
    )
    return f"/login#token={secret}"
