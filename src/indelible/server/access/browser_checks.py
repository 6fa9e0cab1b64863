"""What a browser says about a request that a page made it send: `Host`, `Origin` and `Sec-Fetch-Site`.

A page cannot set these headers. `Host` is the name that it used: on loopback without a login a foreign name that
resolves to 127.0.0.1 (DNS rebinding) is refused, and with the setting `hosts` every other name is.

`Origin` and `Sec-Fetch-Site` tell the site of the page. A browser adds a cookie, or the login of a proxy, by itself,
so a request with one must come from our own page: a write or a stream has to prove it, a plain read must not show the
opposite. (The cookie is `SameSite=Strict` too, which does not cover other ports and subdomains.) Without a login the
same holds for everybody on this machine, except that programs, which send neither header, may write. A request with a
bearer token was meant, whichever page sent it; the setting `cors_origins` lets such pages read the response.

Must stay true (tests/server/test_browser_checks.py, tests/server/test_access.py, tests/server/test_access_matrix.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from indelible.loopback import is_loopback
from indelible.server.access.authentication import needs_login
from indelible.server.access.security_headers import RawHeaders
from indelible.server.problem_details import make_problem
from indelible.settings import Settings

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
"""Paths of streams that are opened by reading: feeds, and those of the compatible wires."""
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
