"""The two routes of a login at a provider: leaving for it, and coming back.

Between them the browser keeps the flow in a cookie of ten minutes, `SameSite=Lax`, because coming back is a navigation
from another site. The session's own cookie is `Strict`, which a browser does not send while it follows a redirect that
another site began; so the answer is a page that goes on by itself, and not a redirect. A page of another subdomain can
set cookies for us, so what the cookie holds is checked again.

Nobody becomes the first admin here, whatever the provider calls them: at many providers users choose their names.
"""

from __future__ import annotations

import base64
import logging
from datetime import timedelta
from html import escape
from typing import Final
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from indelible.errors import Invalid
from indelible.server.dependencies import ServerState, State
from indelible.server.login.cookies import set_session_cookie
from indelible.server.login.oidc import Flow, LoginFailed, OidcProvider, new_flow
from indelible.store.accounts.protocol import ALL_SCOPES, Account

_COOKIE: Final = "indelible_oidc"
_MAX_AGE_S: Final = 600
_log: Final = logging.getLogger(__name__)

router = APIRouter()


@router.get("/login/oidc", include_in_schema=False)
async def start_login(request: Request, state: State, next: str = "/") -> Response:
    """Go to the provider."""
    flow = new_flow(next if is_own_path(next) else f"{state.base_path}/")
    provider = OidcProvider(state.settings, clock=state.app.clock)
    try:
        url = await provider.write_url(flow, _write_redirect_uri(request, state))
    except LoginFailed as error:
        return _fail(state, error)
    response = RedirectResponse(url, status_code=303)
    kept = base64.urlsafe_b64encode(msgspec.json.encode(flow)).decode()
    response.set_cookie(
        _COOKIE,
        kept,
        max_age=_MAX_AGE_S,
        path=f"{state.base_path}/login/oidc",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )
    return response


@router.get("/login/oidc/callback", include_in_schema=False)
async def finish_login(request: Request, state: State) -> Response:
    """Open a session for the user whom the provider names."""
    query = request.query_params
    provider = OidcProvider(state.settings, clock=state.app.clock)
    try:
        flow = _read_flow(request.cookies.get(_COOKIE))
        given = {"state": query.get("state", ""), "code": query.get("code", "")}
        name = await provider.find_name(flow, **given, redirect_uri=_write_redirect_uri(request, state))
    except LoginFailed as error:
        return _fail(state, error)
    account = await _find_account(state, name)
    if account is None or account.disabled or account.id == state.app.owner_id:
        _log.warning("a login by OpenID Connect was refused: not a user here, disabled, or the first admin's name")
        return _redirect_to_login(state, "user")
    secret = await state.app.accounts.add_session(
        account.id,
        method="oidc",
        scopes=ALL_SCOPES,
        expires_at=state.app.clock.now() + timedelta(seconds=state.settings.session_timeout_s),
    )
    response = HTMLResponse(_write_page(flow.next if is_own_path(flow.next) else f"{state.base_path}/"))
    set_session_cookie(response, request, secret, state.settings)
    response.delete_cookie(_COOKIE, path=f"{state.base_path}/login/oidc")
    return response


def is_own_path(path: str) -> bool:
    """Whether this is a path of this server, however a browser reads it."""
    return path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable()


async def _find_account(state: ServerState, name: str) -> Account | None:
    accounts = state.app.accounts
    if not state.settings.oidc_create_users:
        return await accounts.find_user(name)
    try:
        return await accounts.ensure_account(name)
    except Invalid:
        return None


def _write_redirect_uri(request: Request, state: ServerState) -> str:
    return f"{request.url.scheme}://{request.headers.get('host', '')}{state.base_path}/login/oidc/callback"


def _read_flow(kept: str | None) -> Flow:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(kept or ""), type=Flow)
    except (ValueError, msgspec.DecodeError):
        raise LoginFailed("the browser has no login under way; it may have taken longer than ten minutes") from None


def _fail(state: ServerState, error: LoginFailed) -> Response:
    _log.warning("a login by OpenID Connect failed: %s", error)
    return _redirect_to_login(state, "oidc")


def _redirect_to_login(state: ServerState, problem: str) -> Response:
    response = RedirectResponse(f"{state.base_path}/login?problem={quote(problem)}", status_code=303)
    response.delete_cookie(_COOKIE, path=f"{state.base_path}/login/oidc")
    return response


def _write_page(next_path: str) -> str:
    place = escape(next_path)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={place}">
<title>Indelible</title></head><body><p>You are logged in. <a href="{place}">Continue</a></p></body></html>
"""
