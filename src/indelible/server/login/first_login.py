"""The link that `indelible serve` prints: it logs the first admin in, once and within the hour.

It is not the token of the settings, so what remains of it in a terminal or in the log of a container opens nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from indelible.app.app import App
from indelible.store.accounts.protocol import ALL_SCOPES

_VALID_FOR: Final = timedelta(hours=1)


async def offer_login(app: App, *, base_path: str) -> str:
    """The path of the login page with a new token in its fragment, which a browser sends to no server."""
    _, secret = await app.accounts.create_token(
        app.owner_id, label="login link", scopes=ALL_SCOPES, expires_at=app.clock.now() + _VALID_FOR, single_use=True
    )
    return f"{base_path}/login#token={secret}"
