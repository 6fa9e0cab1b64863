"""Routes: from a request to the arguments of a typed function, and from its result to a response.

A route is an async function. What it is called with follows from its signature, which is read once, when the route is
added:

    chat_id: str                                     a name in the path
    limit: Annotated[int, Meta(ge=1, le=200)] = 50   one value of the query, or of a header (`Annotated[…, HEADER]`)
    body: NewMessage                                 the JSON body, a msgspec struct; optional if it has a default
    service: Annotated[LocalService, FromRequest(f)]   what `f` makes of the request, once all of the above is valid
    request: Request                                 the request itself

A use case (api/operations.py) is added as it is declared: its `self` is what `Router.add` is told to make of the
request. What a route returns is sent as JSON, None as 204, a `Response` as it is. A mistake in a value is an `Invalid`
(422) that names its place, as in `body.tools[1].name: …`; a body that is no JSON at all is a 400. That is all our
routes need. A function that asks for more is refused when it is added, so no request can be the first to find out. A
dependency takes the request and nothing else: nothing is resolved while a request waits.

msgspec decodes a body by its type and stops at the first mistake, so a body of mistakes costs no more than a valid one.
JSON is read strictly: `"5"` is no integer, and there is no NaN. Values of a query are texts, so `5` and `true` are
read there.

`HEAD` is what a `GET` of the same path would answer, without the body (RFC 9110); load balancers and monitors send it.
One place does it for every route: the request is served as a `GET`, and the body is left out. It is the outermost
layer, so that every other one sees what it knows, a `GET` with its body. A stream has no end, so it is never opened
for a `HEAD`: the response that would open it refuses (sse.py). A download sends its headers alone, without
reading the file (file_routes.py). Logging in with OpenID Connect changes something with a `GET`, so it knows no
`HEAD`.

Must stay true (tests/server/test_router.py): no request is a server error here, whatever is in it; nothing is taken
from a request before all of it is valid. (tests/server/test_head_requests.py): the status and the headers of a `HEAD`
are those of the `GET`; no body is sent; no stream is opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from inspect import Parameter, cleandoc, iscoroutinefunction, signature
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from indelible.api.operations import UseCase
from indelible.content import encode
from indelible.errors import Invalid

JSON: Final = "application/json"
HEADER: Final = "header"
"""In `Annotated`: the value is a header's, named like the parameter with `-` for `_`."""
F = TypeVar("F", bound=Callable[..., Any])

Respond = Callable[[Request, Mapping[str, Any], Any], Response]
"""Makes the response from the arguments and the result, for a route whose result is not simply sent as JSON."""

_SINGLE: Final = (str, int, float, bool, date)
_NOT_SENT_AS_JSON: Final = "Send the body as JSON, with the header `Content-Type: application/json`."
_PLACE: Final = re.compile(r"(.*?)(?: - at (?:`key` in )?`\$([^`]*)`)?", re.DOTALL)
"""How msgspec says where a mistake is."""
_LONG_QUOTE: Final = re.compile(r"([`'])([^`']{40})[^`']*\1")
_LONGEST_SENTENCE: Final = 300


@dataclass(frozen=True)
class FromRequest:
    """In `Annotated`: the argument is what this function makes of the request. It may be `async`."""

    make: Callable[[Request], Any]


@dataclass(frozen=True, kw_only=True)
class RequestValue:
    """One value of a query or a header."""

    name: str
    """The name of the parameter."""
    place: Literal["query", "header"]
    kind: Any
    """Its type, without None."""
    default: Any = Parameter.empty

    @property
    def is_required(self) -> bool:
        return self.default is Parameter.empty

    @property
    def key(self) -> str:
        """Its name in the request."""
        return self.name if self.place == "query" else self.name.replace("_", "-")

    def read(self, text: str) -> Any:
        if self.kind is str:
            return text
        try:
            return msgspec.convert(text, self.kind, strict=False)
        except msgspec.ValidationError as error:
            raise Invalid(describe_mistake(f"{self.place}.{self.key}", error)) from error


@dataclass(frozen=True, kw_only=True)
class RouteFacts:
    """What is known of a route, as a value: the router and the document read it."""

    method: str
    path: str
    name: str
    description: str
    values: tuple[RequestValue, ...]
    body: Any = None
    """The type of the body."""
    body_default: Any = Parameter.empty
    """What the function gets if there is no body; empty: there must be one."""
    result: Any = None
    """The type of what is sent as JSON with `status`."""
    made: Mapping[str, Callable[[Request], Any]] = field(default_factory=dict)
    """The arguments that are made from the request."""
    status: int = 200
    tag: str = ""
    responses: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """What the document says beside that, by status."""
    request_body: Mapping[str, Any] | None = None
    """What the document says of a body that the function reads itself."""
    problems: tuple[int, ...] = ()
    """Statuses of problems that only this route has."""

    @property
    def names(self) -> list[str]:
        """The names in the path."""
        return re.findall(r"{(\w+)", self.path)


class Route:
    """What is known of a route, and the function that answers it."""

    def __init__(
        self, facts: RouteFacts, function: Callable[..., Any], request_name: str | None, respond: Respond | None = None
    ) -> None:
        self.facts = facts
        self._function = function
        self._request_name = request_name
        self._respond = respond
        self._names = facts.names
        self._values = [(value.name, value.key, value) for value in facts.values]
        self._defaults = {value.name: value.default for value in facts.values if not value.is_required}
        self._made = [(name, make, iscoroutinefunction(make)) for name, make in facts.made.items()]
        self._decode = None if facts.body is None else msgspec.json.Decoder(facts.body).decode

    async def answer(self, request: Request, found: Sequence[str]) -> Response:
        """The response to a request, with what was found in its path."""
        arguments = await self._read(request, found)
        result = await self._function(**arguments)
        if isinstance(result, Response):
            return result
        if self._respond is not None:
            return self._respond(request, arguments, result)
        if result is None:
            return Response(status_code=204)
        return Response(encode(result), status_code=self.facts.status, media_type=JSON)

    async def _read(self, request: Request, found: Sequence[str]) -> dict[str, Any]:
        arguments: dict[str, Any] = dict(zip(self._names, found, strict=True))
        if self._values:
            arguments |= self._defaults
            for name, key, value in self._values:
                given = (request.query_params if value.place == "query" else request.headers).get(key)
                if given is not None:
                    arguments[name] = value.read(given)
                elif value.is_required:
                    raise Invalid(f"{value.place}.{key}: required.")
        if self._decode is not None:
            arguments["body"] = await self._read_body(request)
        if self._request_name is not None:
            arguments[self._request_name] = request
        for name, make, is_async in self._made:
            arguments[name] = await make(request) if is_async else make(request)
        return arguments

    async def _read_body(self, request: Request) -> Any:
        try:
            body = await request.body()
        except ClientDisconnect as error:
            raise HTTPException(400, "The request was cut.") from error  # nobody reads it
        if not body or (body == b"null" and self.facts.body_default is not Parameter.empty):
            if self.facts.body_default is Parameter.empty:
                raise Invalid("body: required.")
            return self.facts.body_default
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise Invalid(_NOT_SENT_AS_JSON)
        assert self._decode is not None
        try:
            return self._decode(body)
        except msgspec.ValidationError as error:
            raise Invalid(describe_mistake("body", error)) from error
        except msgspec.DecodeError as error:
            what = str(error).removeprefix("JSON is malformed: ")
            raise HTTPException(400, f"The body is not valid JSON: {what}.") from error
        except UnicodeDecodeError as error:
            raise HTTPException(400, "The body is not UTF-8.") from error
        except RecursionError as error:
            raise HTTPException(400, "The body is nested too deeply.") from error


def describe_mistake(place: str, error: msgspec.ValidationError) -> str:
    """What is wrong with a value, and where in it. Names and values in it are the client's, and may be long."""
    found = _PLACE.fullmatch(str(error))
    assert found is not None
    what = _LONG_QUOTE.sub(r"\1\2…\1", found[1])
    return f"{place}{found[2] or ''}: {what[:_LONGEST_SENTENCE]}"


class _Node:
    """The routes of one method whose paths begin alike."""

    def __init__(self) -> None:
        self.route: Route | None = None
        self.literal: dict[str, _Node] = {}
        self.named: _Node | None = None
        self.rest: Route | None = None

    def add(self, parts: Sequence[str], route: Route) -> None:
        if not parts:
            self.route = route
        elif parts[0].endswith(":path}"):
            self.rest = route
        elif parts[0].startswith("{"):
            self.named = self.named or _Node()
            self.named.add(parts[1:], route)
        else:
            self.literal.setdefault(parts[0], _Node()).add(parts[1:], route)

    def find(self, parts: Sequence[str], at: int, found: list[str]) -> Route | None:
        """The route of a path, whose named parts are added to `found`. A literal part goes before a named one."""
        if at == len(parts):
            return self.route
        part = parts[at]
        after = self.literal.get(part)
        if after is not None and (route := after.find(parts, at + 1, found)) is not None:
            return route
        if self.named is not None and part:
            found.append(part)
            if (route := self.named.find(parts, at + 1, found)) is not None:
                return route
            found.pop()
        if self.rest is not None:
            found.append("/".join(parts[at:]))
        return self.rest


class Router(BaseRoute):
    """Routes, as one route of a Starlette application."""

    def __init__(self, *, prefix: str = "", tag: str = "") -> None:
        self._prefix = prefix
        self._tag = tag
        self.routes: list[Route] = []
        self._by_method: dict[str, _Node] = {}

    @property
    def facts(self) -> list[RouteFacts]:
        """Everything that can be asked for, in the order in which it was added."""
        return [route.facts for route in self.routes]

    # --- adding routes ---

    def get(self, path: str, **about: Any) -> Callable[[F], F]:
        return self.route("GET", path, **about)

    def post(self, path: str, **about: Any) -> Callable[[F], F]:
        return self.route("POST", path, **about)

    def delete(self, path: str, **about: Any) -> Callable[[F], F]:
        return self.route("DELETE", path, **about)

    def route(self, method: str, path: str, **about: Any) -> Callable[[F], F]:
        """A decorator; `about` are fields of `RouteFacts` that do not follow from the function."""

        def add(function: F) -> F:
            self._add(make_route(method, self._prefix + path, function, **{"tag": self._tag, **about}))
            return function

        return add

    def add(
        self, use_case: UseCase, of: Callable[[Request], Any], *, respond: Respond | None = None, **about: Any
    ) -> None:
        """Add the route of a use case, of the object that `of` makes of the request."""
        name, declared = use_case.name, use_case.operation

        def use(self: Any, **arguments: Any) -> Any:
            return getattr(self, name)(**arguments)

        given = {"tag": self._tag, "status": declared.status, "name": name.rstrip("_"), "problems": declared.problems}
        path = self._prefix + declared.path
        self._add(
            make_route(declared.method, path, use_case.function, of=of, use=use, respond=respond, **{**given, **about})
        )

    def include(self, other: Router) -> None:
        """Add the routes of another router."""
        for route in other.routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        self.routes.append(route)
        parts = route.facts.path.split("/")
        self._by_method.setdefault(route.facts.method, _Node()).add(parts, route)

    # --- answering ---

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        parts = _read_path(scope).split("/")
        node, found = self._by_method.get(scope["method"]), list[str]()
        route = None if node is None else node.find(parts, 0, found)
        if route is not None:
            return Match.FULL, {"endpoint": route, "indelible.found": found}
        return (Match.PARTIAL if self.find_methods(scope) else Match.NONE), {"endpoint": None}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        route: Route | None = scope["endpoint"]
        if route is None:
            raise HTTPException(405)
        response = await route.answer(Request(scope, receive, send), scope["indelible.found"])
        await response(scope, receive, send)

    def find_methods(self, scope: Scope) -> set[str]:
        """The methods of the path of this request."""
        parts = _read_path(scope).split("/")
        return {method for method, node in self._by_method.items() if node.find(parts, 0, []) is not None}


def _read_path(scope: Scope) -> str:
    """The path, without the base path under which we are served."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


# --- from a signature to a route ---


def make_route(
    method: str,
    path: str,
    function: Callable[..., Any],
    *,
    of: Callable[[Request], Any] | None = None,
    use: Callable[..., Any] | None = None,
    respond: Respond | None = None,
    **about: Any,
) -> Route:
    """The route of this function. Raises `TypeError` if it asks for something that a route cannot give."""
    kinds = get_type_hints(function, include_extras=True)
    result = kinds.pop("return", None)
    names, values, made = re.findall(r"{(\w+)", path), list[RequestValue](), dict[str, Any]()
    body = request_name = None
    body_default: Any = Parameter.empty
    for name, parameter in signature(function).parameters.items():
        kind = kinds.get(name)
        marks = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
        maker = next((mark for mark in marks if isinstance(mark, FromRequest)), None)
        if name in names:
            _check(kind is str, function, name)
            names.remove(name)
        elif kind is Request:
            request_name = name
        elif name == "self" and of is not None:
            made[name] = of
        elif maker is not None:
            made[name] = maker.make
        elif name == "body":
            _check(_is_struct(strip_none(kind)), function, name)
            body, body_default = kind, parameter.default
            _check((kind != strip_none(kind)) == (body_default is None), function, name)
        else:
            place: Literal["query", "header"] = "header" if HEADER in marks else "query"
            single = strip_none(get_args(kind)[0] if HEADER in marks else kind)
            _check(_is_single(single), function, name)
            values.append(RequestValue(name=name, place=place, kind=single, default=parameter.default))
    _check(not names and iscoroutinefunction(function), function, ", ".join(names) or "its result")
    is_response = isinstance(result, type) and issubclass(result, Response)
    facts = RouteFacts(
        **{
            "method": method,
            "path": path,
            "name": function.__name__,
            "description": cleandoc(function.__doc__ or ""),
            "values": tuple(values),
            "body": body,
            "body_default": body_default,
            "made": made,
            "result": None if is_response or result is NoneType else result,
            "status": 204 if result is NoneType else 200,
            **about,
        }
    )
    return Route(facts, use or function, request_name, respond)


def _check(is_readable: bool, function: Callable[..., Any], name: str) -> None:  # noqa: FBT001
    if not is_readable:
        raise TypeError(f"{function.__qualname__}: no route can give it {name!r}.")


def strip_none(kind: Any) -> Any:
    if get_origin(kind) not in (Union, UnionType):
        return kind
    return Union[tuple(each for each in get_args(kind) if each is not NoneType)]  # noqa: UP007


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _is_single(kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        return _is_single(get_args(kind)[0])
    return kind in _SINGLE or get_origin(kind) is Literal


_IS_HEAD: Final = "indelible.is_head"
_CHANGES_SOMETHING: Final = "/login/oidc"


class HeadRequests:
    """Wraps the whole application."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or _CHANGES_SOMETHING in scope["path"]:
            await self._application(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
            elif not message.get("more_body", False):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        # A copy: the HTTP server's own scope still says that no body follows.
        await self._application({**scope, "method": "GET", _IS_HEAD: True}, receive, send_head)


def is_head(scope: Scope) -> bool:
    """Whether nobody will get the body of the response to this `GET`."""
    return _IS_HEAD in scope


def refuse_head(scope: Scope) -> None:
    """Raises a 405 if this would open a stream for a `HEAD`."""
    if is_head(scope):
        raise HTTPException(405)


def find_methods(request: Request) -> list[str]:
    """All methods of the path of this request, which one of its routes has refused."""
    found: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Router):
            found |= route.find_methods(request.scope)
        elif route.matches(request.scope)[0] is not Match.NONE:
            found |= getattr(route, "methods", None) or {"GET"}
    found = found or {"GET"}  # a file of the page: its mount has changed the path
    if "GET" in found and not is_head(request.scope):
        found.add("HEAD")
    return sorted(found)
