"""The OpenAPI document of the routes, which follows from their functions (router.py), and `/docs`, the same as a page.

Bodies and results are msgspec structs, which describe themselves.

A client generator, a gateway and a reader of `/docs` need to know which problems can come. A list written by hand at
each route would soon be wrong, and a `default` says nothing: no status would be undocumented. So they follow from what
a route takes and from who may use it: one that needs a login can answer 401, one with an id in its path 404, one with a
body 413 and 415. A status that only one route can answer is said at the route (`problems`, `responses`). Left out is
what a connection gets before any route is known: 408 and 431 (connections.py), 405 and the 404 of an unknown
path.

The usual page for such a document loads its scripts from another site, and would run them with access to every chat of
the server. This one has no script at all, so its policy allows none; tools read `/openapi.json`.

Must stay true (tests/server/test_openapi.py): every 2xx JSON response has a schema, and every reference resolves.
(tests/server/test_any_request.py, tests/server/test_access_matrix.py): no answer has a status that its operation does
not document; no operation documents a `default`. (tests/server/test_page_headers.py): the page has every route, and
loads nothing from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from inspect import Parameter, cleandoc
from typing import Any, Final

import msgspec

from indelible.server.access import OPEN_TO_ALL, needs_no_login
from indelible.server.problems import MEDIA_TYPE, PROBLEM_SCHEMA
from indelible.server.router import JSON, RouteFacts
from indelible.server.state import get_service_once

SCHEMA: Final = "#/components/schemas/{name}"
_MEANINGS: Final = {
    400: "The body is no JSON (`bad_request`).",
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


def write_document(routes: Sequence[RouteFacts], *, also: Sequence[type] = ()) -> dict[str, Any]:
    """The OpenAPI document of these routes. `also` are types that their own responses refer to."""
    kinds = {repr(kind): kind for kind in (*also, *(kind for each in routes for kind in _list_kinds(each)))}
    found, schemas = msgspec.json.schema_components(kinds.values(), ref_template=SCHEMA)
    by_kind = dict(zip(kinds, found, strict=True))
    for schema in schemas.values():
        if "description" in schema:  # a docstring, indented as it stands (before Python 3.13)
            schema["description"] = cleandoc(schema["description"])
    paths: dict[str, dict[str, Any]] = {}
    for each in routes:
        written = _write_operation(each, lambda kind: by_kind[repr(kind)])
        paths.setdefault(each.path, {})[each.method.lower()] = written
    return {
        "openapi": "3.1.0",
        "info": {"title": "Indelible", "version": "1"},
        "paths": paths,
        "components": {"schemas": {**schemas, "Problem": PROBLEM_SCHEMA}},
    }


def _list_kinds(facts: RouteFacts) -> Iterator[Any]:
    yield from (value.kind for value in facts.values)
    yield from (kind for kind in (facts.body, facts.result) if kind is not None)


def _write_operation(facts: RouteFacts, show: Callable[[Any], Mapping[str, Any]]) -> dict[str, Any]:
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in facts.names]
    for value in facts.values:
        schema = {
            **show(value.kind),
            **({} if value.default in (None, Parameter.empty) else {"default": value.default}),
        }
        parameters.append({"name": value.key, "in": value.place, "required": value.is_required, "schema": schema})
    responses: dict[int, Any] = {**describe_problems(facts), **facts.responses}
    if facts.result is not None:
        about = (getattr(facts.result, "__doc__", None) or "").split("\n")[0]
        responses[facts.status] = {"description": about, "content": {JSON: {"schema": show(facts.result)}}}
    elif facts.status not in responses:
        responses[facts.status] = {"description": "Done."}
    written: dict[str, Any] = {
        "operationId": facts.name,
        "summary": facts.name.replace("_", " ").capitalize(),
        "description": facts.description,
        "tags": [facts.tag],
        "responses": {str(status): responses[status] for status in sorted(responses)},
    }
    if parameters:
        written["parameters"] = parameters
    if facts.body is not None:
        is_required = facts.body_default is Parameter.empty
        written["requestBody"] = {"required": is_required, "content": {JSON: {"schema": show(facts.body)}}}
    elif facts.request_body is not None:
        written["requestBody"] = facts.request_body
    return written


def refer_to(kind: type) -> dict[str, Any]:
    """What a route says about a response that has this type and is not sent by the router."""
    return {"$ref": SCHEMA.format(name=kind.__name__)}


def describe_problems(facts: RouteFacts) -> dict[int, dict[str, Any]]:
    """The problems that this route can answer with."""
    has_body = facts.method in _WITH_BODY
    may_be_repeated = get_service_once in facts.made.values()
    statuses = {500, 503, *facts.problems}
    if facts.path not in OPEN_TO_ALL:
        statuses |= {403, 421, 429}
        if not needs_no_login(facts.path, facts.method) or facts.path.endswith("/session"):
            statuses.add(401)
    if facts.names:
        statuses.add(404)
    if facts.names or facts.values or may_be_repeated or has_body:
        statuses.add(422)
    if has_body:
        statuses |= {400, 413, 415}
    if "{chat_id}" in facts.path and may_be_repeated:
        statuses.add(409)
    content = {MEDIA_TYPE: {"schema": {"$ref": SCHEMA.format(name="Problem")}}}
    return {status: {"description": _MEANINGS[status], "content": content} for status in sorted(statuses)}


_START: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Indelible: HTTP API</title>
<link rel="icon" href="/web/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/web/docs.css">
</head>
<body>
<h1>Indelible: HTTP API</h1>
<p>For tools: <a href="openapi.json">openapi.json</a>.</p>
"""
_REFERENCE: Final = "#/components/schemas/"


def write_docs_page(document: Mapping[str, Any]) -> str:
    """The page of this OpenAPI document."""
    return "\n".join([_START, *_write_routes(document), *_write_schemas(document), "</body>", "</html>"])


def _write_routes(document: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield "<details>"
            yield f"<summary><code>{method.upper()} {escape(path)}</code> {_text(operation, 'summary')}</summary>"
            yield f"<p>{_text(operation, 'description')}</p>"
            yield from _write_parameters(operation.get("parameters", ()))
            body = operation.get("requestBody", {}).get("content", {})
            for media_type, content in body.items():
                yield f"<p>Body: {escape(media_type)} {_show_schema(content.get('schema', {}))}</p>"
            yield from _write_responses(operation.get("responses", {}))
            yield "</details>"


def _write_parameters(parameters: Any) -> Iterator[str]:
    for parameter in parameters:
        needed = ", required" if parameter.get("required") else ""
        schema = _show_schema(parameter.get("schema", {}))
        yield f"<p><code>{escape(parameter['name'])}</code> ({escape(parameter['in'])}{needed}) {schema}</p>"


def _write_responses(responses: Mapping[str, Any]) -> Iterator[str]:
    for status, response in responses.items():
        shown = " ".join(_show_schema(content.get("schema", {})) for content in response.get("content", {}).values())
        yield f"<p>{escape(str(status))}: {_text(response, 'description')} {shown}</p>"


def _write_schemas(document: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Schemas</h2>"
    for name, schema in sorted(document.get("components", {}).get("schemas", {}).items()):
        shown = escape(json.dumps(schema, indent=2, ensure_ascii=False))
        yield f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary><pre>{shown}</pre></details>'


def _show_schema(schema: Mapping[str, Any]) -> str:
    """A link to a named schema, or the schema itself if it is short."""
    if "$ref" in schema:
        name = escape(str(schema["$ref"]).removeprefix(_REFERENCE))
        return f'<a href="#{name}">{name}</a>'
    alternatives = schema.get("anyOf")
    if alternatives:
        return " or ".join(_show_schema(one) for one in alternatives)
    return f"<code>{escape(str(schema['type']))}</code>" if "type" in schema else ""


def _text(owner: Mapping[str, Any], name: str) -> str:
    return escape(str(owner.get(name, "")))
