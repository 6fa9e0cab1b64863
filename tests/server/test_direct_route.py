"""A route that reads its requests itself (server/direct_route.py) answers as FastAPI alone would."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from fastapi import APIRouter, BackgroundTasks, Body, Cookie, Depends, FastAPI, Header, Path, Query, Request
from fastapi.routing import APIRoute
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from indelible.server.direct_route import DirectRoute
from indelible.server.problem_details import add_problem_handlers

Sent = tuple[str, str, bytes, list[tuple[bytes, bytes]], bytes]
"""Method, path, query, headers and body of a request."""


class Item(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str = Field(max_length=5)
    count: int = 1
    tags: list[str] = []


async def get_agent(request: Request) -> str:
    return request.headers.get("user-agent", "nobody")


async def get_size(request: Request) -> int:
    return len(await request.body())


Agent = Annotated[str, Depends(get_agent)]
Size = Annotated[int, Depends(get_size)]


async def find(
    name: str,
    agent: Agent,
    *,
    limit: Annotated[int, Query(ge=1, le=9)] = 5,
    exact: bool = False,
    since: date | None = None,
    order: Literal["asc", "desc"] = "asc",
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    return JSONResponse([name, agent, limit, exact, str(since), order, last_event_id])


async def upload(request: Request, name: Annotated[str, Query(min_length=1)], size: Size) -> Response:
    return JSONResponse([request.method, name, size])


async def save(name: str, body: Item, size: Size) -> Response:
    return JSONResponse([name, body.model_dump(), size])


async def stop(name: str, agent: Agent, body: Item | None = None) -> Response:
    return JSONResponse([name, agent, body and body.model_dump()])


def make_application(route_class: type[APIRoute]) -> FastAPI:
    router = APIRouter(route_class=route_class)
    router.add_api_route("/find/{name}", find, methods=["GET"])
    router.add_api_route("/upload", upload, methods=["POST"])
    router.add_api_route("/save/{name}", save, methods=["PUT"])
    router.add_api_route("/stop/{name}", stop, methods=["POST"])
    application = FastAPI()
    application.router.routes += router.routes
    add_problem_handlers(application)
    return application


DIRECT = make_application(DirectRoute)
PLAIN = make_application(APIRoute)


async def ask(application: FastAPI, sent: Sent) -> tuple[int, list[Any], bytes]:
    """Status, headers and body of the response. After its body the client is gone."""
    method, path, query, headers, body = sent
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

    await application(scope, receive, send)
    start, *rest = answered
    return start["status"], start["headers"], b"".join(message.get("body", b"") for message in rest)


routes = st.sampled_from(
    [("GET", "/find/a"), ("GET", "/find/%C3%A4"), ("POST", "/upload"), ("PUT", "/save/b"), ("POST", "/stop/c")]
)
values = st.sampled_from(
    ["", "0", "5", "9", "10", "x", "true", "no", "asc", "desc", "2026-11-16", "%00", "%E4", "a+b", "null"]
)
pairs = st.tuples(st.sampled_from(["limit", "exact", "since", "order", "name", "other"]), values).map("=".join)
queries = st.lists(pairs, max_size=4).map("&".join).map(str.encode)
types = st.sampled_from(
    [
        b"application/json",
        b"Application/JSON; charset=utf-8",
        b"application/problem+json",
        b"text/plain",
        b"application/json ;",
        b"json",
        b"",
    ]
)
headers = st.lists(
    st.one_of(
        st.tuples(st.just(b"content-type"), types),
        st.tuples(st.sampled_from([b"last-event-id", b"user-agent"]), st.sampled_from([b"", b"7", b"\xe4"])),
    ),
    max_size=3,
)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "count", "tags"]), inner),
    max_leaves=6,
)
items = st.fixed_dictionaries(
    {"text": st.text(max_size=6)}, optional={"count": any_json, "tags": st.lists(st.text(max_size=2)), "more": any_json}
)
bodies = st.one_of(
    (items | any_json).map(json.dumps).map(str.encode),
    st.sampled_from(
        [b"", b"{", b"null", b"NaN", b'"\\ud800"', b"\xff", b'{"text":"a","text":"b"}', '{"text":"ä"}'.encode("utf-16")]
    ),
    st.binary(max_size=8),
)
JSON = [(b"content-type", b"application/json")]


@given(route=routes, query=queries, headers=headers, body=bodies)
@example(route=("PUT", "/save/b"), query=b"", headers=JSON, body=b'{"text": "a"}')
@example(route=("PUT", "/save/b"), query=b"", headers=JSON, body=b'{"text": "too long"}')
@example(route=("PUT", "/save/b"), query=b"", headers=[], body=b'{"text": "a"}')
@example(route=("PUT", "/save/b"), query=b"", headers=JSON, body=b"[" * 100_000)
@example(route=("POST", "/stop/c"), query=b"", headers=[], body=b"")
@example(route=("POST", "/stop/c"), query=b"", headers=JSON, body=b"null")
@example(route=("GET", "/find/a"), query=b"limit=9&limit=0", headers=[(b"last-event-id", b"7")], body=b"")
@example(route=("POST", "/upload"), query=b"name=a", headers=[], body=b"abc")
async def test_every_request_gets_the_response_that_fastapi_alone_gives(
    route: tuple[str, str], query: bytes, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    sent = (*route, query, headers, body)

    assert await ask(DIRECT, sent) == await ask(PLAIN, sent)


async def test_valid_requests_do_not_go_through_fastapis_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[str] = []
    get_handler = APIRoute.get_route_handler

    def watch(route: APIRoute) -> Callable[[Request], Any]:
        handler = get_handler(route)

        async def through_fastapi(request: Request) -> Response:
            ways.append(request.url.path)
            return await handler(request)

        return through_fastapi

    monkeypatch.setattr(APIRoute, "get_route_handler", watch)
    watched = make_application(DirectRoute)

    found = await ask(watched, ("GET", "/find/a", b"limit=3&order=desc", [(b"last-event-id", b"7")], b""))
    saved = await ask(watched, ("PUT", "/save/b", b"", JSON, b'{"text": "a"}'))
    assert (found[0], saved[0], ways) == (200, 200, [])

    wrong = await ask(watched, ("PUT", "/save/b", b"", JSON, b'{"text": 1}'))
    assert (wrong[0], ways) == (422, ["/save/b"])


async def note(request: Request) -> None:
    request.scope["app"].state.noted += 1


async def save_noted(body: Item, noted: Annotated[None, Depends(note)]) -> Response:
    return JSONResponse([body.text, noted])


async def test_a_mistake_is_found_before_any_dependency_is_called() -> None:
    router = APIRouter(route_class=DirectRoute)
    router.add_api_route("/save", save_noted, methods=["PUT"])
    application = FastAPI()
    application.state.noted = 0
    application.router.routes += router.routes

    assert (await ask(application, ("PUT", "/save", b"", JSON, b"{}")))[0] == 422
    assert application.state.noted == 1  # by FastAPI alone


def in_thread(name: str) -> Response:
    return Response(name)


async def returns_data(name: str) -> dict[str, str]:
    return {"name": name}


async def with_list(tag: Annotated[list[str], Query()]) -> Response:
    return Response(str(tag))


async def with_model(body: Annotated[Item, Query()]) -> Response:
    return Response(str(body))


async def with_two_bodies(first: Item, second: Item) -> Response:
    return Response(f"{first} {second}")


async def with_embedded_body(first: Annotated[Item, Body(embed=True)]) -> Response:
    return Response(str(first))


async def with_cookie(session: Annotated[str, Cookie()]) -> Response:
    return Response(session)


async def with_tasks(tasks: BackgroundTasks) -> Response:
    return Response(str(tasks))


async def with_number(number: int) -> Response:
    return Response(str(number))


async def with_path_alias(named: Annotated[str, Path(alias="name")]) -> Response:
    return Response(named)


async def with_choices(value: Annotated[str, Query(validation_alias=AliasChoices("x", "y"))] = "") -> Response:
    return Response(value)


async def with_factory(value: Annotated[str, Query(default_factory=str)]) -> Response:
    return Response(value)


async def with_checked_default(value: Annotated[str, Query(validate_default=True)] = "") -> Response:
    return Response(value)


async def with_default_body(body: Item = Item(text="a")) -> Response:  # noqa: B008
    return Response(str(body))


async def with_one_dependency_twice(first: Agent, second: Agent) -> Response:
    return Response(first + second)


async def get_nested(agent: Agent) -> str:
    return agent


async def with_nested(nested: Annotated[str, Depends(get_nested)]) -> Response:
    return Response(nested)


async def get_generated(request: Request) -> Any:
    yield request.method


async def with_generated(generated: Annotated[str, Depends(get_generated)]) -> Response:
    return Response(generated)


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/{name}", in_thread),
        ("/{name}", returns_data),
        ("/", with_list),
        ("/", with_model),
        ("/", with_two_bodies),
        ("/", with_embedded_body),
        ("/", with_cookie),
        ("/", with_tasks),
        ("/{number}", with_number),
        ("/{name}", with_path_alias),
        ("/", with_choices),
        ("/", with_factory),
        ("/", with_checked_default),
        ("/", with_default_body),
        ("/", with_one_dependency_twice),
        ("/", with_nested),
        ("/", with_generated),
    ],
)
def test_a_route_that_asks_for_more_is_refused_when_it_is_made(path: str, endpoint: Callable[..., Any]) -> None:
    router = APIRouter(route_class=DirectRoute)

    with pytest.raises(TypeError, match=endpoint.__name__):
        router.add_api_route(path, endpoint, methods=["POST"])


def test_a_route_with_dependencies_that_it_does_not_name_is_refused() -> None:
    router = APIRouter(route_class=DirectRoute)

    with pytest.raises(TypeError, match="find"):
        router.add_api_route("/{name}", find, dependencies=[Depends(get_size)])
