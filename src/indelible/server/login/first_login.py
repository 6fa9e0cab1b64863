"""The first admin: the user whose chats a server without a login serves.

The link that `indelible serve` prints logs this user in, once and within the hour. It is not the token of the settings,
so what remains of it in a terminal or in the log of a container opens nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from indelible.app.app import App
from indelible.store.accounts.protocol import ALL_SCOPES

_VALID_FOR: Final = timedelta(hours=1)


FIRST_ADMIN: Final = "local"


async def ensure_first_admin(app: App) -> None:
    """The user of the setting `token` is an admin, whoever changed the role meanwhile."""
    found = await app.accounts.ensure_account(FIRST_ADMIN)
    if found.role != "admin":
        await app.accounts.update_user(FIRST_ADMIN, role="admin")


async def offer_login(app: App, *, base_path: str) -> str:
    """The path of the login page with a new token in its fragment, which a browser sends to no server."""
    _, secret = await app.accounts.create_token(
        app.owner_id, label="login link", scopes=ALL_SCOPES, expires_at=app.clock.now() + _VALID_FOR, single_use=True
    )
    return f"{base_path}/login#token={secret}"
