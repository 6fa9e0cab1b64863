"""Routes that read a valid request themselves.

FastAPI works out for every request what its route asks for, in a general way that costs more than our commands do.
Our routes ask for little: texts of the path, single values of the query and of headers, one JSON body, the request,
and dependencies that take nothing but the request. So a plan is made once, with the route, and a valid request is read
by it. A request with a mistake goes to FastAPI, which finds the mistake again and describes it.

Must stay true (tests/server/test_direct_route.py): FastAPI alone would give every request the same response.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from inspect import iscoroutinefunction
from typing import Any, get_type_hints

from fastapi import params
from fastapi._compat import ModelField, field_annotation_is_scalar
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


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
        self._body = asked.body_params[0] if asked.body_params else None
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
            arguments[self._body.name] = await _read_body(self._body, request)
        if self._request_name is not None:
            arguments[self._request_name] = request
        for name, call, request_name in self._dependencies:
            arguments[name] = await call(**{request_name: request})
        return arguments


def _read_values(asked: list[tuple[str, ModelField]], given: Mapping[str, str], arguments: dict[str, Any]) -> None:
    for alias, field in asked:
        value = given.get(alias)
        if value is not None:
            arguments[field.name] = _validate(field, value)


async def _read_body(field: ModelField, request: Request) -> Any:
    try:
        body = await request.body()
        if not body and not field.field_info.is_required():
            return field.get_default()
        kind = request.headers.get("content-type", "").partition(";")[0]
        if kind.strip().lower() != "application/json":
            raise _Mistake
        return _validate(field, json.loads(body))
    except (ValueError, ClientDisconnect) as error:
        raise _Mistake from error


def _validate(field: ModelField, value: object) -> Any:
    valid, errors = field.validate(value)
    if errors:
        raise _Mistake
    return valid


def _is_readable(route: APIRoute) -> bool:
    asked = route.dependant
    body = [field.field_info for field in asked.body_params]
    return (
        iscoroutinefunction(route.endpoint)
        and issubclass(get_type_hints(route.endpoint).get("return", object), Response)
        and all(field.field_info.annotation is str and not field.field_info.metadata for field in asked.path_params)
        and all(_is_single(field) for field in (*asked.query_params, *asked.header_params))
        and (not body or (len(body) == 1 and type(body[0]) is params.Body and not body[0].embed))
        and all(_takes_request(each) for each in asked.dependencies)
        and _asks_for_nothing_else(asked)
    )


def _is_single(field: ModelField) -> bool:
    return field_annotation_is_scalar(field.field_info.annotation) and field.validation_alias in (None, field.alias)


def _takes_request(dependency: Dependant) -> bool:
    takes = dependency.path_params + dependency.query_params + dependency.header_params + dependency.body_params
    return (
        dependency.request_param_name is not None
        and iscoroutinefunction(dependency.call)
        and not takes
        and not dependency.dependencies
        and _asks_for_nothing_else(dependency)
    )


def _asks_for_nothing_else(asked: Dependant) -> bool:
    return not (
        asked.cookie_params
        or asked.websocket_param_name
        or asked.http_connection_param_name
        or asked.response_param_name
        or asked.background_tasks_param_name
        or asked.security_scopes_param_name
    )
