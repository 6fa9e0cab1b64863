"""The OpenAPI document of the routes, which follows from their functions (router.py).

Bodies and results are msgspec structs, which describe themselves. What can go wrong with a route follows from what it
takes and from who may use it (documented_problems.py); a route says only what is special about it.

Must stay true (tests/server/test_openapi.py): every 2xx JSON response has a schema, and every reference resolves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any, Final

import msgspec

from indelible.server.router import JSON, Operation, strip_none

SCHEMA: Final = "#/components/schemas/{name}"


def write_document(
    operations: Sequence[Operation],
    *,
    describe_problems: Callable[[Operation], Mapping[int, Mapping[str, Any]]],
    also: Sequence[type] = (),
    components: Mapping[str, Any],
) -> dict[str, Any]:
    """The OpenAPI document of these operations. `also` are types that their own responses refer to."""
    kinds = {repr(kind): kind for kind in (*also, *(kind for each in operations for kind in _list_kinds(each)))}
    found, schemas = msgspec.json.schema_components(kinds.values(), ref_template=SCHEMA)
    by_kind = dict(zip(kinds, found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        written = _write_operation(each, describe_problems(each), lambda kind: by_kind[repr(kind)])
        paths.setdefault(each.path, {})[each.method.lower()] = written
    return {
        "openapi": "3.1.0",
        "info": {"title": "Indelible", "version": "1"},
        "paths": paths,
        "components": {"schemas": {**schemas, **components}},
    }


def _list_kinds(operation: Operation) -> Iterator[Any]:
    yield from (value.kind for value in operation.values)
    yield from (kind for kind in (operation.body, operation.result) if kind is not None)


def _write_operation(
    operation: Operation, problems: Mapping[int, Mapping[str, Any]], show: Callable[[Any], Mapping[str, Any]]
) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in operation.names
    ]
    for value in operation.values:
        schema = {
            **show(value.kind),
            **({} if value.default in (None, Parameter.empty) else {"default": value.default}),
        }
        parameters.append({"name": value.key, "in": value.place, "required": value.is_required, "schema": schema})
    responses = {**problems, **operation.responses}
    if operation.result is not None:
        about = (getattr(operation.result, "__doc__", None) or "").split("\n")[0]
        responses[operation.status] = {"description": about, "content": {JSON: {"schema": show(operation.result)}}}
    elif operation.status not in responses:
        responses[operation.status] = {"description": "Done."}
    written: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.name.replace("_", " ").capitalize(),
        "description": operation.description,
        "tags": [operation.tag],
        "responses": {str(status): responses[status] for status in sorted(responses)},
    }
    if parameters:
        written["parameters"] = parameters
    if operation.body is not None:
        is_required = strip_none(operation.body) == operation.body
        written["requestBody"] = {"required": is_required, "content": {JSON: {"schema": show(operation.body)}}}
    elif operation.request_body is not None:
        written["requestBody"] = operation.request_body
    return written
