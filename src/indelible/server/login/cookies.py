"""The cookie of a session: scripts cannot read it, other sites cannot send it, and it stays below our path.

`Secure` is set when the browser came by https, as a trusted proxy tells it (access/proxies.py): on plain http, which is
fine on loopback and for a first try, a browser would not keep a secure cookie.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from indelible.server.access.authentication import COOKIE
from indelible.server.access.proxies import normalize_base_path
from indelible.settings import Settings


def set_session_cookie(response: Response, request: Request, secret: str, settings: Settings) -> None:
    response.set_cookie(
        COOKIE,
        secret,
        max_age=int(settings.session_timeout_s),
        path=normalize_base_path(settings.base_path) or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def clear_session_cookie(response: Response, request: Request, settings: Settings) -> None:
    response.delete_cookie(
        COOKIE,
        path=normalize_base_path(settings.base_path) or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
