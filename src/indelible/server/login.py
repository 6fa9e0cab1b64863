"""Logging in with a browser: the session and its cookie, the pages, and the first admin.

A browser cannot send a bearer token with a page or an EventSource, so it exchanges one for a cookie. These routes take
no idempotency key: its stored response would have the secret in it. Scripts cannot read our cookies, other sites cannot
send them, and they stay below our path. They are `Secure` when the browser came by https, as a trusted proxy tells it
(authentication.py): on plain http, which is fine on loopback and for a first try, a browser would not keep a secure
cookie. Over https their names have the prefix that keeps others from setting them (`name_cookie` in authentication.py),
and another name does not count.

The pages are `/login`, and that of a link to a shared chat: static files, which hold nothing. A link opens the page
itself, which reads the key from its address and shows the chat without anything to write with
(tests/e2e/test_login.py). Search engines are told to keep out. `/login/methods` tells the login page, before anybody is
logged in, whether there is a provider to log in with.

The first admin is the user whose chats a server without a login serves. A link logs this user in, once and within the
hour. It makes whoever opens it first an admin, so there is one only where somebody asks for it: `indelible login-link`,
or `indelible serve` on a terminal. Nothing makes one for a log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from indelible.api.inputs import LoginRequest
from indelible.api.operations import PREFIX
from indelible.api.shapes import ALL_SCOPES, SessionInfo, SessionUser
from indelible.clock import Clock
from indelible.errors import Invalid
from indelible.server.authentication import COOKIE, find_address, name_cookie, normalize_base_path
from indelible.server.openapi import refer_to
from indelible.server.problems import make_problem
from indelible.server.router import JSON, Router
from indelible.server.state import Login, ServerState, State, answer_json
from indelible.service.access import Identity
from indelible.service.accounts import FIRST_ADMIN
from indelible.settings import Settings
from indelible.store.accounts import Account, AccountStore, Credential

FLOW_COOKIE: Final = "indelible_oidc"
"""What a browser keeps while it is at the provider (oidc.py)."""
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


def add_login_pages(router: Router, show_file: Callable[[str], Awaitable[Response]], *, has_oidc: bool) -> None:
    @router.get("/login")
    async def show_login() -> Response:
        return await show_file("login.html")

    @router.get("/login/methods")
    async def list_methods() -> Response:
        return answer_json({"token": True, "oidc": has_oidc})

    @router.get("/shared/{key}")
    async def show_shared(key: str) -> Response:  # noqa: ARG001  (the page reads it from its address)
        response = await show_file("index.html")
        response.headers["X-Robots-Tag"] = "noindex"
        return response


router = Router(prefix=PREFIX, tag="session")
_LOGGED_IN: Final = {200: {"description": "Who is logged in.", "content": {JSON: {"schema": refer_to(SessionInfo)}}}}


@router.get("/session")
async def get_session(login: Login, state: State) -> SessionInfo:
    """Get who is logged in, and until when."""
    return describe_session(login, state)


@router.post("/session", responses=_LOGGED_IN)
async def log_in(body: LoginRequest, request: Request, state: State) -> Response:
    """Log in with a token: the response sets a cookie. A token for a single use is used up."""
    accounts, settings = state.app.accounts, state.settings
    expires_at = state.app.clock.now() + timedelta(seconds=settings.session_timeout_s)

    async def open_first() -> tuple[Credential, str] | None:
        secret = await accounts.add_session(
            state.app.owner_id, method="token", scopes=ALL_SCOPES, expires_at=expires_at, bound_to=settings.token
        )
        found = await accounts.find_session(secret, bound_to=settings.token)
        return None if found is None else (found, secret)

    async def open_stored() -> tuple[Credential, str] | None:
        return await accounts.open_session(body.token, expires_at=expires_at)

    opened = await state.authenticator.try_token(
        body.token, find_address(request.scope), first=open_first, stored=open_stored
    )
    if opened is None:
        return make_problem(401, "unauthorized", "This token is not valid. It may have expired or been revoked.")
    response = answer_json(describe_session(Identity.of(opened[0], "session"), state))
    set_session_cookie(response, request, opened[1], state.settings)
    return response


@router.delete("/session", status=204)
async def log_out(login: Login, request: Request, state: State) -> Response:
    """Log out: the session ends, its cookie is cleared and its open streams are cut."""
    if login.how == "session" and login.key is not None:
        await state.app.accounts.end_session(login.key.id)
    response = Response(status_code=204)
    clear_session_cookie(response, request, state.settings)
    return response


def describe_session(login: Identity, state: ServerState) -> SessionInfo:
    methods: list[Literal["token", "oidc"]] = ["token", "oidc"] if state.settings.oidc_issuer else ["token"]
    return SessionInfo(
        user=SessionUser(name=login.user, role=login.role),
        login="required" if state.authenticator.needs_login else "none",
        methods=methods,
        scopes=list(login.scopes),
        expires_at=login.expires_at,
    )
