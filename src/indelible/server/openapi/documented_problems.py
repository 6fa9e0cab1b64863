"""The problems of each route in the OpenAPI document, derived from what the route takes and who may use it.

A client generator, a gateway and a reader of `/docs` need to know which statuses can come. A list written by hand at
each route would soon be wrong, and a `default` says nothing: no status would be undocumented. So they follow from the
route: one that needs a login can answer 401, one with an id in its path 404, one with a body 413 and 415. A status that
only one route can answer is in that route's own `responses` (routes/files.py).

Left out is what a connection gets before any route is known: 408 and 431 (limits/connections.py), 405 and the 404 of an
unknown path.

Must stay true (tests/server/test_any_request.py, tests/server/test_access_matrix.py): no answer has a status that its
operation does not document; no operation documents a `default`.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi.routing import APIRoute

from indelible.server.access.middleware import OPEN_TO_ALL, needs_no_login
from indelible.server.dependencies import get_service_once
from indelible.server.problem_details import MEDIA_TYPE, PROBLEM_SCHEMA

_SCHEMA: Final = "#/components/schemas/Problem"
PROBLEM_COMPONENT: Final = {"Problem": PROBLEM_SCHEMA}
_MEANINGS: Final = {
    400: "The body cannot be read (`bad_request`).",
    401: "A login is needed, or the token is not valid (`unauthorized`).",
    403: "This login may not do it (`not_permitted`, `read_only`), or another site sent the request (`forbidden`).",
    404: "It does not exist, or is not yours (`not_found`).",
    409: "Not possible in this state (`not_allowed`).",
    413: "Larger than a limit (`too_large`).",
    415: "The body is compressed, or a file of this type is not accepted (`unsupported_type`).",
    421: "The server does not answer to this name (`wrong_host`).",
    422: "The request is not valid (`invalid`).",
    429: "Too many requests, or more than a limit (`rate_limited`, `too_many`). `Retry-After` says when to retry.",
    500: "A mistake of the server's (`internal`). Its log has the details.",
    503: "The database is unavailable, or the server is starting or shutting down (`unavailable`, `not_ready`).",
}
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})


def document_problem(status: int) -> dict[str, Any]:
    """What the document says about this status."""
    content = {MEDIA_TYPE: {"schema": {"$ref": _SCHEMA}}}
    return {"description": _MEANINGS[status], "content": content}


def document_problems(route: APIRoute, path: str) -> dict[int | str, dict[str, Any]]:
    """The problems that this route can answer with, under this path."""
    methods = route.methods or set()
    statuses = {500, 503}
    if path not in OPEN_TO_ALL:
        statuses |= {403, 421, 429}
        if not all(needs_no_login(path, method) for method in methods) or path.endswith("/session"):
            statuses.add(401)
    if "{" in path:
        statuses.add(404)
    if _has_input(route):
        statuses.add(422)
    if methods & _WITH_BODY:
        statuses |= {400, 413, 415}
    if "{chat_id}" in path and any(each.call is get_service_once for each in route.dependant.dependencies):
        statuses.add(409)
    return {status: document_problem(status) for status in sorted(statuses)}


def _has_input(route: APIRoute) -> bool:
    """Whether a request can be wrong: it has a body, a parameter, or an idempotency key."""
    about = route.dependant
    parameters = (*about.path_params, *about.query_params, *about.header_params)
    is_write = any(each.call is get_service_once for each in about.dependencies)
    return bool(parameters or is_write or route.body_field or (route.openapi_extra or {}).get("requestBody"))
