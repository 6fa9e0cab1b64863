"""OpenID Connect: the authorization code flow with PKCE, against the provider of the setting `oidc_issuer`.

The signatures and claims of ID tokens are checked by joserfc (the extra `oidc`), which is imported when somebody logs
in; the three requests of the flow are ours, with the HTTP client that we have. An ID token counts only if the issuer
signed it with one of its keys and an asymmetric algorithm, for us, now, and for this login (`nonce`). `state` ties the
answer to the browser that asked, PKCE ties the code to this server.

The user's name here is one claim (`oidc_user_claim`). An e-mail address that the provider has not verified could be
anybody's, so it is refused. Somebody who is not a user here is refused too, unless `oidc_create_users` is on: at a
public provider everybody can log in. Nobody becomes the first admin here, whatever the provider calls them: at many
providers users choose their names.

Between leaving for the provider and coming back, the browser keeps the flow in a cookie of ten minutes, `SameSite=Lax`,
because coming back is a navigation from another site. The session's own cookie is `Strict`, which a browser does not
send while it follows a redirect that another site began; so the answer is a page that goes on by itself, and not a
redirect. A page of another subdomain can set cookies for us on plain http, so what the cookie holds is checked again.
The provider sends the browser back to the name by which it reached us. A client can send any name, so it must be one
of the setting `hosts`, or loopback.

Must stay true (tests/server/test_oidc.py): a token with any of these wrong opens no session; no secret is in an
address, an error or a log.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import importlib.util
import logging
import secrets
from datetime import timedelta
from html import escape
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from indelible.api.shapes import ALL_SCOPES
from indelible.clock import Clock
from indelible.errors import IndelibleError, Invalid
from indelible.loopback import is_loopback
from indelible.server.access import is_own_host
from indelible.server.login import clear_flow_cookie, name_flow_cookie, set_flow_cookie, set_session_cookie
from indelible.server.router import Router
from indelible.server.state import ServerState, State
from indelible.settings import Settings
from indelible.store.accounts import Account

_ALGORITHMS: Final = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_LEEWAY_S: Final = 60
_TIMEOUT: Final = aiohttp.ClientTimeout(total=15)
_MAX_ANSWER_BYTES: Final = 1024 * 1024


class LoginFailed(IndelibleError):
    """The provider, or what it sent, was refused. The message is for the log."""


def check_oidc(settings: Settings) -> None:
    """Raises `Invalid` if OpenID Connect is configured and cannot work."""
    if settings.oidc_issuer and not settings.oidc_client_id:
        raise Invalid("oidc_issuer is set, and oidc_client_id is not. Set both.")
    if settings.oidc_issuer and not settings.hosts and not is_loopback(settings.host):
        raise Invalid("oidc_issuer is set, and hosts is not. List the names by which browsers reach this server.")
    if settings.oidc_issuer and importlib.util.find_spec("joserfc") is None:
        raise Invalid("OpenID Connect needs an extra package: pip install 'indelible[oidc]'")


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """What a browser keeps between leaving for the provider and coming back."""

    state: str
    nonce: str
    verifier: str
    next: str


class Metadata(msgspec.Struct, frozen=True):
    """What the provider tells of itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


class _TokenAnswer(msgspec.Struct):
    id_token: str


def new_flow(next_path: str) -> Flow:
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    return Flow(state=state, nonce=nonce, verifier=verifier, next=next_path)


class OidcProvider:
    """The provider in the settings. Its metadata is fetched at every login, because it may have changed."""

    def __init__(self, settings: Settings, *, clock: Clock) -> None:
        self._issuer = settings.oidc_issuer.rstrip("/")
        self._client_id = settings.oidc_client_id
        self._secret = settings.oidc_client_secret
        self._claim = settings.oidc_user_claim
        self._clock = clock

    async def write_url(self, flow: Flow, redirect_uri: str) -> str:
        """Where the browser goes to log in."""
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            metadata = await self._discover(session)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(flow.verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": "openid email profile",
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        separator = "&" if urlsplit(metadata.authorization_endpoint).query else "?"
        return f"{metadata.authorization_endpoint}{separator}{urlencode(query)}"

    async def find_name(self, flow: Flow, *, state: str, code: str, redirect_uri: str) -> str:
        """The name of the user who has logged in. Raises `LoginFailed`."""
        if not hmac.compare_digest(state.encode(), flow.state.encode()):
            raise LoginFailed("the state is not the one that was sent")
        if not code:
            raise LoginFailed("the provider did not log the user in")
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            metadata = await self._discover(session)
            form = {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": redirect_uri,
                "client_id": self._client_id,
                "code_verifier": flow.verifier,
            }
            answer = await _fetch(session, "POST", metadata.token_endpoint, data=form, headers=self._write_secret())
            keys = await _fetch(session, "GET", metadata.jwks_uri)
        await asyncio.to_thread(importlib.import_module, "joserfc.jwt")  # half a second, once
        claims = self._check_token(_decode(answer, _TokenAnswer).id_token, keys, flow)
        return self._read_name(claims)

    def _write_secret(self) -> dict[str, str]:
        if not self._secret:
            return {}
        pair = f"{quote(self._client_id, safe='')}:{quote(self._secret, safe='')}"  # RFC 6749, 2.3.1
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    async def _discover(self, session: aiohttp.ClientSession) -> Metadata:
        found: Metadata = _decode(
            await _fetch(session, "GET", f"{self._issuer}/.well-known/openid-configuration"), Metadata
        )
        if found.issuer.rstrip("/") != self._issuer:
            raise LoginFailed("the provider calls itself by another name than oidc_issuer")
        for url in (found.authorization_endpoint, found.token_endpoint, found.jwks_uri):
            _check_url(url)
        return found

    def _check_token(self, id_token: str, keys: bytes, flow: Flow) -> dict[str, Any]:
        from joserfc import jwk, jwt  # noqa: PLC0415  (the extra `oidc`; it takes a while to import)
        from joserfc.errors import JoseError  # noqa: PLC0415

        try:
            key_set = jwk.KeySet.import_key_set(msgspec.json.decode(keys))
            token = jwt.decode(id_token, key_set, algorithms=_ALGORITHMS)
            jwt.JWTClaimsRegistry(
                now=int(self._clock.now().timestamp()),
                leeway=_LEEWAY_S,
                iss={"essential": True, "values": [self._issuer, f"{self._issuer}/"]},
                aud={"essential": True, "value": self._client_id},
                exp={"essential": True},
                iat={"essential": True},
                sub={"essential": True},
                nonce={"essential": True, "value": flow.nonce},
            ).validate(token.claims)
        except (JoseError, ValueError, KeyError, TypeError, msgspec.DecodeError) as error:
            raise LoginFailed(f"the ID token was refused: {type(error).__name__}") from None
        audience = token.claims["aud"]
        is_for_others_too = isinstance(audience, list) and len(audience) > 1
        if token.claims.get("azp", self._client_id if not is_for_others_too else None) != self._client_id:
            raise LoginFailed("the ID token was made for somebody else")
        return token.claims

    def _read_name(self, claims: dict[str, Any]) -> str:
        name = claims.get(self._claim)
        if not isinstance(name, str) or not name:
            raise LoginFailed(f"the ID token has no claim {self._claim!r}; set oidc_user_claim")
        if self._claim == "email" and claims.get("email_verified") is not True:
            raise LoginFailed("the provider has not verified the e-mail address; set oidc_user_claim to another claim")
        return name


def _check_url(url: str) -> None:
    """Codes and tokens travel encrypted, or not beyond this machine."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise LoginFailed("an address of the provider is not https")


async def _fetch(session: aiohttp.ClientSession, method: str, url: str, **more: Any) -> bytes:
    _check_url(url)
    try:
        async with session.request(method, url, allow_redirects=False, **more) as response:
            if response.status != 200:
                raise LoginFailed(f"the provider responded with status {response.status}")
            answer = bytearray()
            async for chunk in response.content.iter_any():  # `read` would return what has arrived by now
                answer += chunk
                if len(answer) > _MAX_ANSWER_BYTES:
                    raise LoginFailed("the provider's answer is too long")
            return bytes(answer)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise LoginFailed(f"the provider is unreachable: {type(error).__name__}") from None


def _decode(answer: bytes, answer_type: type[Any]) -> Any:
    try:
        return msgspec.json.decode(answer, type=answer_type)
    except msgspec.DecodeError:
        raise LoginFailed("the provider's answer is not what the standard says") from None


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
