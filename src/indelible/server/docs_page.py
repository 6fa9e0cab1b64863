"""`/docs`: every route and schema of the OpenAPI document as one plain page.

The usual page for this loads its scripts from another site, and would run them with access to every chat of the
server. This one has no script at all, so its policy allows none; tools read `/openapi.json`.

Must stay true (tests/server/test_page_headers.py): the page has every route, and loads nothing from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

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
