"""Routes from typed functions (server/router.py): what they are called with, and every kind of bad request."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Meta
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from indelible.content import TOOL_NAME
from indelible.server.openapi import write_document
from indelible.server.problems import add_problem_handlers
from indelible.server.router import HEADER, FromRequest, Router, make_route

Sent = tuple[str, str, bytes, list[tuple[bytes, bytes]], bytes]
"""Method, path, query, headers and body of a request."""

JSON = [(b"content-type", b"application/json")]
made: list[str] = []
"""The agents of the requests for which something was made."""


class Tool(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=f"^{TOOL_NAME}$")]
    strict: bool = False


class Item(msgspec.Struct, forbid_unknown_fields=True):
    """Something to save."""

    text: Annotated[str, Meta(max_length=5)]
    count: Annotated[int, Meta(ge=0)] | None = None
    weight: float = 0
    tools: Annotated[list[Tool], Meta(max_length=2)] = []
    more: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if self.text == "both":
            raise ValueError("give either text or more")


class Found(msgspec.Struct):
    """What was found."""

    values: list[Any]


def get_agent(request: Request) -> str:
    made.append(request.headers.get("user-agent", "nobody"))
    return made[-1]


async def get_size(request: Request) -> int:
    return len(await request.body())


Agent = Annotated[str, FromRequest(get_agent)]
Size = Annotated[int, FromRequest(get_size)]
router = Router(prefix="/api", tag="things")


@router.get("/find/{name}")
async def find(
    name: str,
    agent: Agent,
    *,
    limit: Annotated[int, Meta(ge=1, le=9)] = 5,
    exact: bool = False,
    since: date | None = None,
    order: Literal["asc", "desc"] = "asc",
    last_event_id: Annotated[str | None, HEADER] = None,
) -> Found:
    """Find things."""
    return Found([name, agent, limit, exact, since, order, last_event_id])


@router.post("/upload", status=201)
async def upload(request: Request, name: Annotated[str, Meta(min_length=1)], size: Size) -> Found:
    return Found([request.method, name, size])


@router.route("PUT", "/save/{name}")
async def save(name: str, body: Item, size: Size) -> Item:
    assert name
    assert size
    return body


@router.post("/stop/{name}")
async def stop(name: str, agent: Agent, body: Item | None = None) -> Response:
    return JSONResponse([name, agent, body and body.text])


_AS_USUAL = Item(text="as usual")


@router.post("/begin/{name}")
async def begin(name: str, body: Item = _AS_USUAL) -> Response:
    return JSONResponse([name, body.text])


@router.delete("/save/{name}")
async def remove(name: str) -> None:
    assert name


@router.route("PUT", "/save/order")
async def reorder() -> Found:
    return Found(["order"])


@router.get("/models/{model:path}")
async def get_model(model: str) -> Found:
    return Found([model])


@router.get("/{kind}/list")
async def list_kind(kind: str) -> Found:
    return Found([kind])


def make_application() -> Starlette:
    application = Starlette(routes=[router])
    add_problem_handlers(application)
    return application


APPLICATION = make_application()


async def ask(
    method: str, path: str, body: bytes = b"", *, query: bytes = b"", headers: list[tuple[bytes, bytes]] = JSON
) -> tuple[int, Any, dict[str, str]]:
    """Status, JSON and headers of the response. After its body the client is gone."""
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "server": ("here", 80),
        "client": ("there", 1),
    }
    to_receive = [{"type": "http.request", "body": body, "more_body": False}]
    answered: list[Any] = []

    async def receive() -> Any:
        return to_receive.pop() if to_receive else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        answered.append(message)

    await APPLICATION(scope, receive, send)
    start, *rest = answered
    sent = b"".join(message.get("body", b"") for message in rest)
    named = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    return start["status"], json.loads(sent) if sent else None, named


# --- good requests ---


async def test_a_function_is_called_with_what_its_signature_asks_for() -> None:
    query = b"limit=3&exact=true&since=2026-11-16&order=desc&other=1"
    headers = [(b"last-event-id", b"7"), (b"user-agent", b"me")]

    status, found, named = await ask("GET", "/api/find/ä", query=query, headers=headers)

    assert (status, named["content-type"]) == (200, "application/json")
    assert found == {"values": ["ä", "me", 3, True, "2026-11-16", "desc", "7"]}


async def test_what_is_not_given_has_its_default() -> None:
    _status, found, _ = await ask("GET", "/api/find/a", headers=[])
    assert found == {"values": ["a", "nobody", 5, False, None, "asc", None]}


async def test_a_body_is_decoded_by_its_type_and_stays_readable() -> None:
    sent = {"text": "a", "count": 2, "weight": 1.5, "tools": [{"name": "x", "strict": True}], "more": {"a": [1]}}
    assert (await ask("PUT", "/api/save/b", json.dumps(sent).encode()))[:2] == (200, sent)


async def test_a_body_that_may_be_missing_is_none() -> None:
    for body, headers in ((b"", []), (b"", JSON), (b"null", JSON)):
        assert (await ask("POST", "/api/stop/c", body, headers=headers))[:2] == (200, ["c", "nobody", None])
    assert (await ask("POST", "/api/stop/c", b'{"text":"a"}'))[1] == ["c", "nobody", "a"]


async def test_a_body_that_may_be_missing_has_its_default_and_null_is_none() -> None:
    for body in (b"", b"null"):
        assert (await ask("POST", "/api/begin/c", body))[:2] == (200, ["c", "as usual"])
    assert (await ask("POST", "/api/begin/c", b'{"text":"a"}'))[1] == ["c", "a"]


async def test_a_function_without_a_result_answers_204_and_another_status_is_its_own() -> None:
    assert (await ask("DELETE", "/api/save/b"))[:2] == (204, None)
    assert (await ask("POST", "/api/upload", b"abc", query=b"name=x"))[:2] == (201, {"values": ["POST", "x", 3]})


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/json ;"])
async def test_json_may_be_announced_in_every_usual_way(kind: str) -> None:
    headers = [(b"content-type", kind.encode())]
    assert (await ask("PUT", "/api/save/b", b'{"text":"a"}', headers=headers))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("PUT", "/api/save/order", ["order"]),  # a literal part goes before a named one, whichever was added first
        ("GET", "/api/find/list", ["list", "nobody", 5, False, None, "asc", None]),
        ("GET", "/api/save/list", ["save"]),  # no GET begins with /api/save
        ("GET", "/api/models/a/b:c", ["a/b:c"]),
        ("GET", "/api/models/", [""]),
    ],
)
async def test_a_path_leads_to_its_route(method: str, path: str, found: list[Any]) -> None:
    assert (await ask(method, path, headers=[]))[:2] == (200, {"values": found})


# --- bad requests ---

DEEP = b'{"text":"a","more":{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}}"
BAD_BODIES: list[tuple[bytes, int, str]] = [
    (b"", 422, "body: required."),
    (b"{", 400, "The body is not valid JSON: Input data was truncated."),
    (b"nonsense", 400, "The body is not valid JSON: invalid character (byte 4)."),
    (b'{"text":"a"} x', 400, "The body is not valid JSON: trailing characters (byte 14)."),
    (b"NaN", 400, "The body is not valid JSON: invalid character (byte 0)."),
    (b'{"text":"a","weight":NaN}', 400, "The body is not valid JSON: invalid character (byte 21)."),
    (b'{"text":"\\ud800"}', 400, "The body is not valid JSON: Input data was truncated."),
    (b"\xff", 400, "The body is not valid JSON: invalid character (byte 0)."),
    (b'{"text":"\xff"}', 400, "The body is not UTF-8."),
    (b'{"\xff":"a"}', 400, "The body is not UTF-8."),
    (
        '{"text":"ä"}'.encode("utf-16"),
        400,
        "The body is not valid JSON: invalid character (byte 0).",
    ),
    (DEEP, 400, "The body is nested too deeply."),
    (b"[" * 20_000, 422, "body: Expected `object`, got `array`"),
    (b"null", 422, "body: Expected `object`, got `null`"),
    (b'"a"', 422, "body: Expected `object`, got `str`"),
    (b"{}", 422, "body: Object missing required field `text`"),
    (b'{"text":5}', 422, "body.text: Expected `str`, got `int`"),
    (b'{"text":null}', 422, "body.text: Expected `str`, got `null`"),
    (b'{"text":"aaaaaa"}', 422, "body.text: Expected `str` of length <= 5"),
    (b'{"text":"both"}', 422, "body: give either text or more"),
    (b'{"text":"a","count":"5"}', 422, "body.count: Expected `int | null`, got `str`"),
    (b'{"text":"a","count":1.0}', 422, "body.count: Expected `int | null`, got `float`"),
    (b'{"text":"a","count":true}', 422, "body.count: Expected `int | null`, got `bool`"),
    (b'{"text":"a","count":-1}', 422, "body.count: Expected `int` >= 0"),
    (b'{"text":"a","weight":1e999}', 422, "body.weight: Number out of range"),
    (b'{"text":"a","weight":"1"}', 422, "body.weight: Expected `float`, got `str`"),
    (b'{"text":"a","mesage":1}', 422, "body: Object contains unknown field `mesage`"),
    (b'{"text":"a","more":[]}', 422, "body.more: Expected `object`, got `array`"),
    (b'{"text":"a","tools":[{"name":"x"},{"name":5}]}', 422, "body.tools[1].name: Expected `str`, got `int`"),
    (b'{"text":"a","tools":[{"nam":"x"}]}', 422, "body.tools[0]: Object contains unknown field `nam`"),
    (b'{"text":"a","tools":[{},{},{}]}', 422, "body.tools[0]: Object missing required field `name`"),
    (
        b'{"text":"a","tools":[{"name":"x"},{"name":"x"},{"name":"x"}]}',
        422,
        "body.tools: Expected `array` of length <= 2",
    ),
]


@pytest.mark.parametrize(("body", "status", "detail"), BAD_BODIES)
async def test_a_bad_body_is_a_problem_that_names_the_place(body: bytes, status: int, detail: str) -> None:
    given, problem, headers = await ask("PUT", "/api/save/b", body)
    kind = {400: "bad_request", 422: "invalid"}[status]
    assert (given, problem["kind"], problem["detail"]) == (status, kind, detail)
    assert headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "json", ""])
async def test_json_that_is_sent_as_something_else_is_answered_with_the_header_that_it_needs(kind: str) -> None:
    for path in ("/api/save/b", "/api/stop/b"):
        method = "PUT" if "save" in path else "POST"
        headers = [(b"content-type", kind.encode())]
        status, problem, _ = await ask(method, path, b'{"text":"a"}', headers=headers)
        assert (status, problem["kind"]) == (422, "invalid")
        assert "Content-Type: application/json" in problem["detail"]


async def test_a_long_name_of_the_clients_is_shortened() -> None:
    _status, problem, _ = await ask("PUT", "/api/save/b", json.dumps({"x" * 10_000: 1, "text": "a"}).encode())
    assert problem["detail"] == f"body: Object contains unknown field `{'x' * 40}…`"


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        (b"limit=0", "query.limit: Expected `int` >= 1"),
        (b"limit=10", "query.limit: Expected `int` <= 9"),
        (b"limit=x", "query.limit: Expected `int`, got `str`"),
        (b"limit=", "query.limit: Expected `int`, got `str`"),
        (b"limit=" + b"9" * 5000, "query.limit: Integer value out of range"),
        (b"limit=3&limit=0", "query.limit: Expected `int` >= 1"),
        (b"exact=perhaps", "query.exact: Expected `bool`, got `str`"),
        (b"since=null", "query.since: Invalid RFC3339 encoded date"),
        (b"since=%00", "query.since: Invalid RFC3339 encoded date"),
        (b"order=" + b"x" * 5000, f"query.order: Invalid enum value '{'x' * 40}…'"),
        (b"order=%E4", "query.order: Invalid enum value '\N{REPLACEMENT CHARACTER}'"),
    ],
)
async def test_a_bad_value_of_the_query_is_a_problem_that_names_it(query: bytes, detail: str) -> None:
    status, problem, _ = await ask("GET", "/api/find/a", query=query)
    assert (status, problem["kind"], problem["detail"]) == (422, "invalid", detail)


async def test_a_value_that_is_needed_and_missing_or_empty_is_named() -> None:
    assert (await ask("POST", "/api/upload"))[1]["detail"] == "query.name: required."
    assert (await ask("POST", "/api/upload", query=b"name="))[1][
        "detail"
    ] == "query.name: Expected `str` of length >= 1"


async def test_nothing_is_made_of_a_request_before_all_of_it_is_valid() -> None:
    made.clear()
    assert (await ask("GET", "/api/find/a", query=b"limit=0"))[0] == 422
    assert (await ask("POST", "/api/stop/c", b"{}"))[0] == 422
    assert made == []
    assert (await ask("POST", "/api/stop/c", b""))[0] == 200
    assert made == ["nobody"]


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/api/nothing", 404, None),
        ("GET", "/api/find/", 404, None),
        ("GET", "/api/find", 404, None),
        ("GET", "/api/find/a/b", 404, None),
        ("POST", "/api/find/a", 405, "GET, HEAD"),
        ("OPTIONS", "/api/save/b", 405, "DELETE, PUT"),
        ("MOVE", "/api/save/b", 405, "DELETE, PUT"),
        ("POST", "/api/models/a/b", 405, "GET, HEAD"),
    ],
)
async def test_a_path_or_a_method_that_there_is_not_is_a_problem(
    method: str, path: str, status: int, allow: str | None
) -> None:
    given, problem, headers = await ask(method, path)
    assert (given, problem["status"], headers.get("allow")) == (status, status, allow)


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "count", "name"]), inner),
    max_leaves=6,
)
items = st.fixed_dictionaries(
    {"text": st.text(max_size=6)},
    optional={"count": any_json, "weight": any_json, "tools": any_json, "more": any_json, "other": any_json},
)
bodies = st.one_of((items | any_json).map(json.dumps).map(str.encode), st.binary(max_size=40))
pairs = st.tuples(
    st.sampled_from(["limit", "exact", "since", "order", "name", "other"]),
    st.sampled_from(["", "0", "5", "10", "x", "true", "asc", "2026-11-16", "%00", "%E4", "a+b", "null", "NaN"]),
)
queries = st.lists(pairs.map("=".join), max_size=4).map("&".join).map(str.encode)
routes = st.sampled_from(
    [("GET", "/api/find/a"), ("POST", "/api/upload"), ("PUT", "/api/save/b"), ("POST", "/api/stop/c")]
)


@given(route=routes, query=queries, body=bodies, headers=st.sampled_from([JSON, []]))
@example(route=("PUT", "/api/save/b"), query=b"", body=DEEP, headers=JSON)
@example(route=("PUT", "/api/save/b"), query=b"", body=b'{"text":"a","more":{"a":' + b"9" * 5000 + b"}}", headers=JSON)
async def test_no_request_is_a_server_error(
    route: tuple[str, str], query: bytes, body: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    status, answer, _ = await ask(*route, body, query=query, headers=headers)
    assert status in (200, 201, 400, 422)
    if status >= 400:
        assert (answer["status"], bool(answer["detail"])) == (status, True)


# --- functions that ask for too much ---


def in_thread(name: str) -> Response:
    return Response(name)


async def with_list(tag: list[str]) -> Response:
    return Response(str(tag))


async def with_query_struct(item: Item) -> Response:
    return Response(str(item))


async def with_plain_body(body: dict[str, Any]) -> Response:
    return Response(str(body))


async def with_body_that_must_be_null(body: Item | None) -> Response:
    return Response(str(body))


async def with_number(name: int) -> Response:
    return Response(str(name))


async def without_the_name() -> Response:
    return Response()


async def with_anything(value: Any) -> Response:
    return Response(str(value))


@pytest.mark.parametrize(
    "function",
    [
        in_thread,
        with_list,
        with_query_struct,
        with_plain_body,
        with_body_that_must_be_null,
        with_number,
        without_the_name,
        with_anything,
    ],
)
def test_a_function_that_asks_for_more_is_refused_when_it_is_added(function: Callable[..., Any]) -> None:
    path = "/{name}" if function in (in_thread, with_number, without_the_name) else "/"
    with pytest.raises(TypeError, match=function.__name__):
        make_route("POST", path, function)


# --- the document ---


def test_the_document_follows_from_the_functions() -> None:
    document = write_document(router.facts)
    found = document["paths"]["/api/find/{name}"]["get"]
    assert (found["operationId"], found["summary"], found["description"]) == ("find", "Find", "Find things.")
    assert found["tags"] == ["things"]
    assert found["parameters"] == [
        {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}},
        {
            "name": "limit",
            "in": "query",
            "required": False,
            "schema": {"type": "integer", "minimum": 1, "maximum": 9, "default": 5},
        },
        {"name": "exact", "in": "query", "required": False, "schema": {"type": "boolean", "default": False}},
        {"name": "since", "in": "query", "required": False, "schema": {"type": "string", "format": "date"}},
        {"name": "order", "in": "query", "required": False, "schema": {"enum": ["asc", "desc"], "default": "asc"}},
        {"name": "last-event-id", "in": "header", "required": False, "schema": {"type": "string"}},
    ]
    assert found["responses"]["200"] == {
        "description": "What was found.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Found"}}},
    }
    assert set(found["responses"]) == {"200", "401", "403", "404", "421", "422", "429", "500", "503"}
    saved = document["paths"]["/api/save/{name}"]
    reference = {"$ref": "#/components/schemas/Item"}
    assert saved["put"]["requestBody"] == {"required": True, "content": {"application/json": {"schema": reference}}}
    assert [status for status in saved["delete"]["responses"] if status < "3"] == ["204"]
    stopped = document["paths"]["/api/stop/{name}"]["post"]["requestBody"]
    assert stopped == {
        "required": False,
        "content": {"application/json": {"schema": {"anyOf": [reference, {"type": "null"}]}}},
    }
    assert set(document["components"]["schemas"]) == {"Found", "Item", "Tool", "Problem"}
    assert document["components"]["schemas"]["Item"]["additionalProperties"] is False
