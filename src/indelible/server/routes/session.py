"""The session: who is logged in, logging in with a token, logging out.

A browser cannot send a bearer token with a page or an EventSource, so it exchanges one for a cookie. These routes take
no idempotency key: its stored response would have the secret in it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from indelible.api.inputs import LoginRequest
from indelible.api.operations import PREFIX
from indelible.api.shapes import ALL_SCOPES, SessionInfo, SessionUser
from indelible.server.access.authentication import find_address
from indelible.server.dependencies import Login, ServerState, State, answer_json
from indelible.server.login.cookies import clear_session_cookie, set_session_cookie
from indelible.server.openapi_document import refer_to
from indelible.server.problem_details import make_problem
from indelible.server.router import JSON, Router
from indelible.service.access import Identity
from indelible.store.accounts import Credential

router = Router(prefix=PREFIX, tag="session")
_LOGGED_IN: Final = {
    200: {"description": "Who is logged in.", "content": {JSON: {"schema": refer_to(SessionInfo)}}},
}


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
