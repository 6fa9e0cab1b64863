"""The schemas of responses in OpenAPI.

Responses are msgspec values (api/shapes.py), which FastAPI cannot describe. A route declares the type of its
response with `answers`, and the schemas of all types are added to the components of the document. Request bodies are
pydantic models (schemas.py), which FastAPI describes by itself.

Must stay true (tests/server/test_openapi.py): every 2xx JSON response has a schema, and every reference resolves.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from fastapi import FastAPI
from starlette.responses import Response

from indelible.api import shapes
from indelible.api.events import MessageTree
from indelible.api.records import RunTree, WholeRun
from indelible.server.openapi.documented_problems import PROBLEM_COMPONENT
from indelible.store.transfer import ChatFile

_PLACE: Final = "#/components/schemas/{name}"
_TYPES: Final[tuple[type, ...]] = (
    shapes.Accepted,
    shapes.CreatedShare,
    shapes.CreatedToken,
    shapes.SessionInfo,
    shapes.SharePage,
    shapes.TokenPage,
    shapes.UserInfo,
    shapes.UserPage,
    shapes.AttemptPage,
    shapes.ChatDetails,
    shapes.ChatPage,
    shapes.CreatedChat,
    shapes.Health,
    shapes.InterruptResult,
    shapes.MessagePage,
    shapes.ModelPage,
    shapes.QueuePage,
    shapes.RunPage,
    shapes.UpdatedChat,
    ChatFile,
    shapes.Draft,
    shapes.FilePage,
    MessageTree,
    RunTree,
    shapes.StoredFile,
    shapes.UsagePage,
    WholeRun,
)


def answers(*result_types: type, status: int = 200) -> dict[str, Any]:
    """Arguments for a route's decorator: the type of its successful response. Several types are alternatives."""
    places = [{"$ref": _PLACE.format(name=result_type.__name__)} for result_type in result_types]
    schema = places[0] if len(places) == 1 else {"anyOf": places}
    about = (result_types[0].__doc__ or "").split("\n")[0]
    content = {"application/json": {"schema": schema}}
    return {
        "status_code": status,
        "response_class": Response,
        "responses": {status: {"description": about, "content": content}},
    }


def may_stream(described: dict[str, Any]) -> dict[str, Any]:
    """The same for a route whose response may continue with the reply (streaming/reply_stream.py)."""
    stream = {
        "description": "With `Accept: text/event-stream`: events; see docs/http.md.",
        "content": {"text/event-stream": {}},
    }
    return described | {"responses": {200: stream, **described["responses"]}}


def add_answer_schemas(application: FastAPI) -> None:
    """Add the schemas that `answers` refers to to the application's OpenAPI document."""
    make_document = application.openapi

    def openapi() -> dict[str, Any]:
        if application.openapi_schema is None:
            schemas = make_document().setdefault("components", {}).setdefault("schemas", {})
            schemas.update(msgspec.json.schema_components(_TYPES, ref_template=_PLACE)[1])
            schemas.update(PROBLEM_COMPONENT)
        return make_document()

    application.openapi = openapi  # type: ignore[method-assign]
