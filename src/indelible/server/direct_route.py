"""Routes that read a valid request themselves.

FastAPI works out for every request what its route asks for, in a general way that costs more than our commands do.
Our routes ask for little: texts of the path, single values of the query and of headers, one JSON body, the request,
and dependencies that take nothing but the request. So a plan is made once, with the route, and a valid request is read
by it. A request with a mistake goes to FastAPI, which finds the mistake again and describes it. A route that asks for
anything else is refused when it is made. FastAPI's own spans have no part in the short way; ours do (tracing.py).

Must stay true (tests/server/test_direct_route.py): FastAPI alone would give every request the same response.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from datetime import date
from inspect import iscoroutinefunction, signature
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from fastapi import params
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import HTTPException
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
    from fastapi._compat import ModelField

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_SINGLE: Final = (str, int, float, bool, date, NoneType)
_CONSTANT: Final = (str, int, float, bool, NoneType)


class DirectRoute(APIRoute):
    """A route of FastAPI with a short way for valid requests. It must not ask for more than `_Plan` reads."""

    def get_route_handler(self) -> Handler:
        through_fastapi = super().get_route_handler()
        if not _is_readable(self):
            raise TypeError(f"{self.endpoint.__qualname__} asks for something that a DirectRoute does not read.")
        read = _Plan(self.dependant).read
        endpoint = self.endpoint

        async def answer(request: Request) -> Response:
            try:
                arguments = await read(request)
            except _Mistake:
                arguments = None
            if arguments is None:
                return await through_fastapi(request)
            response: Response = await endpoint(**arguments)
            return response

        return answer


class _Mistake(Exception):
    """The request is not valid; FastAPI describes why."""


class _Plan:
    """What a route asks for."""

    def __init__(self, asked: Dependant) -> None:
        self._path = [field.name for field in asked.path_params]
        self._query = [(field.alias, field) for field in asked.query_params]
        self._headers = [(field.alias, field) for field in asked.header_params]
        self._body = _Body(asked.body_params[0]) if asked.body_params else None
        self._request_name = asked.request_param_name
        self._dependencies: list[tuple[Any, Any, Any]] = [  # name, function, and what it calls the request
            (each.name, each.call, each.request_param_name) for each in asked.dependencies
        ]
        values = [*asked.query_params, *asked.header_params]
        self._defaults = {field.name: field.get_default() for field in values if not field.field_info.is_required()}
        self._count = len(self._path) + len(values)

    async def read(self, request: Request) -> dict[str, Any]:
        """The arguments for the route. Raises `_Mistake` before any dependency is called."""
        scope = request.scope
        arguments: dict[str, Any] = self._defaults.copy()
        for name in self._path:
            arguments[name] = scope["path_params"][name]
        if self._query and scope["query_string"]:
            _read_values(self._query, request.query_params, arguments)
        if self._headers:
            _read_values(self._headers, request.headers, arguments)
        if len(arguments) < self._count:
            raise _Mistake
        if self._body is not None:
            arguments[self._body.name] = await self._body.read(request)
        if self._request_name is not None:
            arguments[self._request_name] = request
        for name, call, request_name in self._dependencies:
            arguments[name] = await call(**{request_name: request})
        return arguments


class _Body:
    """The JSON body that a route asks for."""

    def __init__(self, field: ModelField) -> None:
        self.name = field.name
        self._is_required = field.field_info.is_required()
        annotation: Any = field.field_info.annotation
        self._validate = TypeAdapter(annotation).validate_python

    async def read(self, request: Request) -> Any:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            body = await request.body()
            if body and kind == "application/json":
                return self._validate(json.loads(body))
        except HTTPException:
            raise
        except Exception as error:  # not valid, not JSON, too deep, or the client has gone
            raise _Mistake from error
        if body or self._is_required:
            raise _Mistake
        return None


def _read_values(asked: list[tuple[str, ModelField]], given: Mapping[str, str], arguments: dict[str, Any]) -> None:
    for alias, field in asked:
        value = given.get(alias)
        if value is not None:
            arguments[field.name], errors = field.validate(value)
            if errors:
                raise _Mistake


# --- what can be read ----------------------------------------------------------------------


def _is_response(returned: Any) -> bool:
    """`dict[str, str]` is no class, and from Python 3.13 on `issubclass` says so."""
    return isinstance(returned, type) and issubclass(returned, Response)


def _is_readable(route: APIRoute) -> bool:
    asked = route.dependant
    values = [*asked.query_params, *asked.header_params]
    calls = [each.call for each in asked.dependencies]
    names = {field.name for field in (*asked.path_params, *values, *asked.body_params)}
    names |= {each.name or "" for each in asked.dependencies} | ({asked.request_param_name or ""} - {""})
    return (
        iscoroutinefunction(route.endpoint)
        and _is_response(get_type_hints(route.endpoint).get("return"))
        and all(_is_text(field) for field in asked.path_params)
        and all(_is_single_value(field) for field in values)
        and len(asked.body_params) <= 1
        and all(_is_plain_body(field) for field in asked.body_params)
        and all(_reads_only_request(each) for each in asked.dependencies)
        and len(calls) == len(set(calls))
        and names == set(signature(route.endpoint).parameters)
    )


def _is_text(field: ModelField) -> bool:
    return field.field_info.annotation is str and not field.field_info.metadata and field.alias == field.name


def _is_single_value(field: ModelField) -> bool:
    info = field.field_info
    return (
        _is_single(info.annotation)
        and info.validation_alias in (None, info.alias)
        and info.default_factory is None
        and not info.validate_default
        and (info.is_required() or isinstance(info.default, _CONSTANT))
    )


def _is_single(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, UnionType):
        return all(_is_single(each) for each in get_args(annotation))
    return annotation in _SINGLE or get_origin(annotation) is Literal


def _is_plain_body(field: ModelField) -> bool:
    info = field.field_info
    is_json = type(info) is params.Body and not info.embed and not info.metadata
    return is_json and (info.is_required() or (info.default is None and info.default_factory is None))


def _reads_only_request(dependency: Dependant) -> bool:
    """Nothing but the request, which is all that `_Plan` gives it."""
    return iscoroutinefunction(dependency.call) and list(signature(dependency.call).parameters) == [
        dependency.request_param_name
    ]
