"""Access control: every request passes here before a route sees it (docs/login.md).

It checks, in this order: the size that a body announces; the name by which the client reached us (`Host`); who sends
the request (authentication.py); whether a page of another site made the browser send it; what this login may do at all;
how often. A route then finds the login in `scope["identity"]`, and asks for the service of that user.

Three kinds of paths need no login: health checks and the static files of the page, which are public, so no login is
looked up and a logout cuts none of them; the login; and links to shared chats, whose key is the right to read.
Everything else is refused by default, including routes that are added later. A browser that asks for a page is sent to
the login instead.

A body that is too large is refused before it fills the memory: by its announced length, or when it exceeds the limit.
A stranger who gets a response before the end of the body, such as a refusal, is not read on: the connection closes
(connections.py: so that the client can read why).

What a browser says about a request that a page made it send are `Host`, `Origin` and `Sec-Fetch-Site`, which a page
cannot set. `Host` is the name that it used: on loopback without a login a foreign name that resolves to 127.0.0.1 (DNS
rebinding) is refused, and with the setting `hosts` every other name is. The other two tell the site of the page. A
browser adds a cookie, or the login of a proxy, by itself, so a request with one must come from our own page: a write or
a stream has to prove it, a plain read must not show the opposite. (The cookie is `SameSite=Strict` too, which does not
cover other ports and subdomains.) Without a login the same holds for everybody on this machine, except that programs,
which send neither header, may write. A request with a bearer token was meant, whichever page sent it; the setting
`cors_origins` lets such pages read the response.

Must stay true (tests/server/test_access.py, tests/server/test_access_matrix.py, tests/server/test_browser_checks.py):
no route answers anybody whom the table there does not name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from indelible.errors import Refused, StoreFailed
from indelible.loopback import is_loopback
from indelible.server.authentication import Proxies, needs_login, normalize_base_path, split_path
from indelible.server.limits import is_import, is_upload
from indelible.server.problems import RawHeaders, add_headers, answer_refusal, make_problem
from indelible.server.revocation import OpenRequest
from indelible.settings import Settings

if TYPE_CHECKING:
    from indelible.server.state import ServerState
    from indelible.service.access import Identity

OPEN_TO_ALL: Final = frozenset({"/healthz", "/readyz"})
MAX_BODY_BYTES: Final = 8 * 1024 * 1024
SESSION: Final = "/api/v1/session"
_NO_LOGIN: Final = frozenset({"/login", "/login/methods", "/login/oidc", "/login/oidc/callback"})
_NO_LOGIN_BELOW: Final = ("/shared/", "/api/v1/shared/")
_STATIC: Final = "/web/"
_OWN_RULE: Final = ("/api/v1/tokens", "/api/v1/users", SESSION)
"""What service/accounts.py checks: a token for these need not be one for writing."""
_READ_TOO: Final = ("/v1/", "/ai-sdk/")
"""The compatible APIs answer a write with the reply."""
_NOBODY: Final = "Log in at /login, or send a token: Authorization: Bearer …"
_CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}


class AccessMiddleware:
    """Checks every request before `application` gets it. `find_state` gives the state of the running server."""

    def __init__(
        self, application: ASGIApp, settings: Settings, *, find_state: Callable[[], ServerState | None]
    ) -> None:
        self._application = application
        self._find_state = find_state
        self._base_path = normalize_base_path(settings.base_path)
        self._browser = BrowserChecks(settings)
        self._import_max_bytes = settings.import_max_bytes
        self._proxies = Proxies(settings.trusted_proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        headers = Headers(scope=scope)
        path = split_path(scope, self._base_path)
        through_proxy = self._proxies.resolve(scope, headers)
        cors = self._browser.list_cors_headers(headers)
        if cors or not (path.startswith("/api/v1/chats/") and path.endswith("/events")):  # a feed has its own
            send = add_headers(send, cors)
        max_bytes = None  # a file has a limit of its own
        if not is_upload(scope):
            max_bytes = self._import_max_bytes if is_import(scope) else MAX_BODY_BYTES
            receive = _count(receive, max_bytes)
        identity: Identity | None = None
        request: OpenRequest | None = None
        state = self._find_state()
        try:
            refusal = self._check_request(scope, path, headers, max_bytes)
            is_for_everybody = path in OPEN_TO_ALL or path.startswith(_STATIC)
            if refusal is None and not is_for_everybody and state is not None:
                identity = await state.authenticator.identify(scope, headers, through_proxy=through_proxy)
                refusal = self._check_login(scope, path, headers, identity, state)
                scope["identity"] = identity
                request = OpenRequest(*([identity.key] if identity is not None and identity.key is not None else ()))
                scope["open_request"] = request
        except Refused as error:
            refusal = answer_refusal(error)
        except StoreFailed:
            refusal = make_problem(503, "unavailable", "The database is unavailable. Retry in a moment.")
        if identity is None and _has_body(headers):
            receive, send = _close_unread(receive, send)
        if refusal is not None:
            await refusal(scope, receive, send)
        elif request is None or state is None:
            await self._application(scope, receive, send)
        else:
            await state.revocation.serve(self._application, request, scope, receive, send)

    def _check_request(self, scope: Scope, path: str, headers: Headers, max_bytes: int | None) -> Response | None:
        if max_bytes is not None and _read_length(headers) > max_bytes:
            return make_problem(413, "too_large", _explain_limit(max_bytes))
        if path in OPEN_TO_ALL:
            return None
        return self._browser.check_host(headers) or self._browser.answer_preflight(scope, headers)

    def _check_login(
        self, scope: Scope, path: str, headers: Headers, identity: Identity | None, state: ServerState
    ) -> Response | None:
        method = scope["method"]
        is_open = needs_no_login(path, method)
        if identity is None and not is_open:
            return self._send_to_login(scope, path, headers)
        # Only a bearer token is sent on purpose. Everything else a browser adds by itself, whoever made it send.
        if identity is None or identity.how != "token":
            has_cookie = identity is not None and identity.how in ("session", "proxy")
            refusal = self._browser.check_origin(headers, method, path, has_cookie=has_cookie)
            if refusal is not None:
                return refusal
        if identity is None or is_open:
            return None
        if not path.startswith(_OWN_RULE):
            if method not in SAFE_METHODS:
                identity.check_scope("write")
            if method in SAFE_METHODS or _shows_what_is_there(path):
                identity.check_scope("read")
        state.check_rate(identity.user_id)
        return None

    def _send_to_login(self, scope: Scope, path: str, headers: Headers) -> Response:
        is_page = scope["method"] == "GET" and not path.startswith("/api/") and "text/html" in headers.get("accept", "")
        if not is_page:
            return make_problem(401, "unauthorized", _NOBODY, headers=_CHALLENGE)
        query = scope.get("query_string", b"").decode("latin-1")
        wanted = quote(f"{self._base_path}{path}" + (f"?{query}" if query else ""), safe="/")
        return RedirectResponse(f"{self._base_path}/login?next={wanted}", status_code=303)


def _shows_what_is_there(path: str) -> bool:
    """Whether a write here lets its sender read: the reply comes with it, or it makes a link to the chat."""
    return path.startswith(_READ_TOO) or path.endswith("/shares")


def needs_no_login(path: str, method: str) -> bool:
    """Whether everybody may send this request: to the login, or with the key of a link."""
    return path in _NO_LOGIN or path.startswith(_NO_LOGIN_BELOW) or (path == SESSION and method == "POST")


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _read_length(headers: Headers) -> int:
    length = headers.get("content-length", "")
    return int(length) if length.isdecimal() else 0


def _close_unread(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Both, so that the connection closes with a response that does not wait for the end of the body."""
    is_read = False

    async def receive_and_note() -> Message:
        nonlocal is_read
        message = await receive()
        is_read = not message.get("more_body", False)
        return message

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start" and not is_read:
            others = [header for header in message.get("headers", ()) if header[0].lower() != b"connection"]
            message = {**message, "headers": [*others, (b"connection", b"close")]}
        await send(message)

    return receive_and_note, send_and_close


def _explain_limit(max_bytes: int) -> str:
    return f"Request body too large (limit {max_bytes:,} bytes)."


def _count(receive: Receive, max_bytes: int) -> Receive:
    received_bytes = 0

    async def receive_some() -> Message:
        nonlocal received_bytes
        message = await receive()
        received_bytes += len(message.get("body", b""))
        if received_bytes > max_bytes:
            raise HTTPException(413, _explain_limit(max_bytes))
        return message

    return receive_some


_HOST: Final = re.compile(r"(?P<name>[^\[\]:@/]+|\[[0-9a-f:.]+\])(?::\d*)?", re.IGNORECASE)
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""The methods of requests that change nothing."""
_OTHER_SITES: Final = (
    "Pages of other sites may not send requests to this server. "
    "To allow one, name its origin in the setting `cors_origins`."
)
_NO_PROOF: Final = "A request with a cookie must show that it comes from this server's own page: send its Origin."
_PREFLIGHT: Final = {"Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE", "Access-Control-Max-Age": "600"}
_ALLOWED_HEADERS: Final = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Indelible-Chat"
_STREAMS: Final = re.compile(r"/(?:events|stream)$|^/v1/responses/[^/]+$")
"""Paths of streams that are opened by reading: feeds, and those of the compatible APIs."""
_OPENAI_HEADER: Final = re.compile(r"(?:x-stainless|openai)-[a-z-]+", re.IGNORECASE)
"""What OpenAI's clients add to every request."""
_EXPOSED: Final = b"Retry-After, X-Indelible-Chat"
"""Headers of responses that a page may read, beside those that every page may."""


def is_own_host(host: str, listed: Collection[str]) -> bool:
    """Whether this is a name of ours in the header `Host`: a listed one (in lower case), or loopback."""
    found = _HOST.fullmatch(host)
    name = "" if found is None else found["name"].lower()
    return bool(name) and (name in listed or is_loopback(name))


class BrowserChecks:
    """The checks, by the settings of the server."""

    def __init__(self, settings: Settings) -> None:
        self._hosts = frozenset(name.lower() for name in settings.hosts)
        self._any_host = not settings.hosts and needs_login(settings)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.cors_origins)

    def check_host(self, headers: Headers) -> Response | None:
        if self._any_host or is_own_host(headers.get("host", ""), self._hosts):
            return None
        if self._hosts:
            detail = "This server does not answer to this host name. Add it to the setting `hosts`."
        else:
            detail = "This server accepts only localhost as its host name. To serve other names, set INDELIBLE_TOKEN."
        return make_problem(421, "wrong_host", detail)

    def check_origin(self, headers: Headers, method: str, path: str, *, has_cookie: bool) -> Response | None:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if method in SAFE_METHODS and headers.get("sec-fetch-mode") == "navigate":
            return None  # somebody follows a link; the page that has it cannot read the response
        if origin is not None and origin.lower() in self._origins and not has_cookie:
            return None  # it may send tokens, but not the cookie that a user has here
        is_own = origin is not None and origin.lower().partition("://")[2] == headers.get("host", "").lower()
        if (origin is not None and not is_own) or site in ("cross-site", "same-site"):
            return make_problem(403, "forbidden", _OTHER_SITES)
        must_prove = has_cookie and (method not in SAFE_METHODS or _STREAMS.search(path) is not None)
        if must_prove and not is_own and site != "same-origin":
            return make_problem(403, "forbidden", _NO_PROOF)
        return None

    def list_cors_headers(self, headers: Headers) -> RawHeaders:
        """What lets a page of a listed origin read the response. It sends a token; cookies are never allowed."""
        if not self._origins:
            return []
        origin = headers.get("origin", "")
        vary = [(b"vary", b"Origin")]
        if origin.lower() not in self._origins:
            return vary
        allowed = (b"access-control-allow-origin", origin.encode("latin-1"))
        return [*vary, allowed, (b"access-control-expose-headers", _EXPOSED)]

    def answer_preflight(self, scope: Scope, headers: Headers) -> Response | None:
        if scope["method"] != "OPTIONS" or "access-control-request-method" not in headers:
            return None
        if headers.get("origin", "").lower() not in self._origins:
            return None
        wanted = (name.strip() for name in headers.get("access-control-request-headers", "").split(","))
        allowed = ", ".join([_ALLOWED_HEADERS, *filter(_OPENAI_HEADER.fullmatch, wanted)])
        return Response(status_code=204, headers={**_PREFLIGHT, "Access-Control-Allow-Headers": allowed})
