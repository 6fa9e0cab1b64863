"""The cookies of a login: scripts cannot read them, other sites cannot send them, and they stay below our path.

They are `Secure` when the browser came by https, as a trusted proxy tells it (access/proxies.py): on plain http, which
is fine on loopback and for a first try, a browser would not keep a secure cookie. Over https their names have the
prefix that keeps others from setting them (`name_cookie` in access/authentication.py), and another name does not count.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from indelible.server.access.authentication import COOKIE, name_cookie
from indelible.server.access.proxies import normalize_base_path
from indelible.settings import Settings

FLOW_COOKIE: Final = "indelible_oidc"
"""What a browser keeps while it is at the provider (oidc_routes.py)."""
_FLOW_MAX_AGE_S: Final = 600


def set_session_cookie(response: Response, request: Request, secret: str, settings: Settings) -> None:
    more = _describe(COOKIE, request, settings, samesite="strict")
    response.set_cookie(value=secret, max_age=int(settings.session_timeout_s), **more)


def clear_session_cookie(response: Response, request: Request, settings: Settings) -> None:
    response.delete_cookie(**_describe(COOKIE, request, settings, samesite="strict"))


def set_flow_cookie(response: Response, request: Request, kept: str, settings: Settings) -> None:
    """Coming back from the provider is a navigation from another site."""
    response.set_cookie(
        value=kept, max_age=_FLOW_MAX_AGE_S, **_describe(FLOW_COOKIE, request, settings, samesite="lax")
    )


def clear_flow_cookie(response: Response, request: Request, settings: Settings) -> None:
    response.delete_cookie(**_describe(FLOW_COOKIE, request, settings, samesite="lax"))


def name_flow_cookie(request: Request, settings: Settings) -> str:
    name: str = _describe(FLOW_COOKIE, request, settings, samesite="lax")["key"]
    return name


def _describe(name: str, request: Request, settings: Settings, *, samesite: Literal["strict", "lax"]) -> dict[str, Any]:
    base_path, scheme = normalize_base_path(settings.base_path), request.url.scheme
    return {
        "key": name_cookie(name, scheme, base_path),
        "path": base_path or "/",
        "secure": scheme == "https",
        "httponly": True,
        "samesite": samesite,
    }
