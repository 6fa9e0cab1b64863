"""The two routes of a login at a provider: leaving for it, and coming back.

Between them the browser keeps the flow in a cookie of ten minutes, `SameSite=Lax`, because coming back is a navigation
from another site. The session's own cookie is `Strict`, which a browser does not send while it follows a redirect that
another site began; so the answer is a page that goes on by itself, and not a redirect. A page of another subdomain can
set cookies for us on plain http, so what the cookie holds is checked again.

The provider sends the browser back to the name by which it reached us. A client can send any name, so it must be one
of the setting `hosts`, or loopback.

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
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from indelible.api.shapes import ALL_SCOPES
from indelible.errors import Invalid
from indelible.server.access.browser_checks import is_own_host
from indelible.server.dependencies import ServerState, State
from indelible.server.login.cookies import clear_flow_cookie, name_flow_cookie, set_flow_cookie, set_session_cookie
from indelible.server.login.oidc import Flow, LoginFailed, OidcProvider, new_flow
from indelible.server.router import Router
from indelible.store.accounts import Account

_log: Final = logging.getLogger(__name__)

router = Router()


@router.get("/login/oidc")
async def start_login(request: Request, state: State, next: str = "/") -> Response:
    """Go to the provider."""
    flow = new_flow(next if is_own_path(next) else f"{state.base_path}/")
    provider = OidcProvider(state.settings, clock=state.app.clock)
    try:
        url = await provider.write_url(flow, _write_redirect_uri(request, state))
    except LoginFailed as error:
        return _fail(request, state, error)
    response = RedirectResponse(url, status_code=303)
    kept = base64.urlsafe_b64encode(msgspec.json.encode(flow)).decode()
    set_flow_cookie(response, request, kept, state.settings)
    return response


@router.get("/login/oidc/callback")
async def finish_login(request: Request, state: State) -> Response:
    """Open a session for the user whom the provider names."""
    query = request.query_params
    provider = OidcProvider(state.settings, clock=state.app.clock)
    try:
        flow = _read_flow(request.cookies.get(name_flow_cookie(request, state.settings)))
        given = {"state": query.get("state", ""), "code": query.get("code", "")}
        name = await provider.find_name(flow, **given, redirect_uri=_write_redirect_uri(request, state))
    except LoginFailed as error:
        return _fail(request, state, error)
    account = await _find_account(state, name)
    if account is None or account.disabled or account.id == state.app.owner_id:
        _log.warning("a login by OpenID Connect was refused: no user here, disabled, or a name that is taken")
        return _redirect_to_login(request, state, "user")
    secret = await state.app.accounts.add_session(
        account.id,
        method="oidc",
        scopes=ALL_SCOPES,
        expires_at=state.app.clock.now() + timedelta(seconds=state.settings.session_timeout_s),
    )
    response = HTMLResponse(_write_page(flow.next if is_own_path(flow.next) else f"{state.base_path}/"))
    set_session_cookie(response, request, secret, state.settings)
    clear_flow_cookie(response, request, state.settings)
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
    host = request.headers.get("host", "")
    if not is_own_host(host, {name.lower() for name in state.settings.hosts}):
        raise LoginFailed("the server was reached by a name that the setting `hosts` does not list")
    return f"{request.url.scheme}://{host}{state.base_path}/login/oidc/callback"


def _read_flow(kept: str | None) -> Flow:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(kept or ""), type=Flow)
    except (ValueError, msgspec.DecodeError):
        raise LoginFailed("the browser has no login under way; it may have taken longer than ten minutes") from None


def _fail(request: Request, state: ServerState, error: LoginFailed) -> Response:
    _log.warning("a login by OpenID Connect failed: %s", error)
    return _redirect_to_login(request, state, "oidc")


def _redirect_to_login(request: Request, state: ServerState, problem: str) -> Response:
    response = RedirectResponse(f"{state.base_path}/login?problem={quote(problem)}", status_code=303)
    clear_flow_cookie(response, request, state.settings)
    return response


def _write_page(next_path: str) -> str:
    place = escape(next_path)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={place}">
<title>Indelible</title></head><body><p>You are logged in. <a href="{place}">Continue</a></p></body></html>
"""
