"""The web application: it joins routes, page and error handlers with an `App`.

This is the server's composition root. It opens the store, the feed and, unless other processes do the work, a worker
with `open_app`, as any other program would, and closes them when the application shuts down.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from indelible.app.compose import open_app
from indelible.clock import Clock, SystemClock
from indelible.models.protocol import Model
from indelible.server.access.middleware import AccessMiddleware
from indelible.server.access.proxies import normalize_base_path
from indelible.server.dependencies import ServerState
from indelible.server.direct_route import DirectRoute
from indelible.server.head_requests import HeadRequests
from indelible.server.limits.body_limits import BodyLimits
from indelible.server.login import oidc_routes
from indelible.server.login import pages as login
from indelible.server.login.first_login import ensure_first_admin, offer_login
from indelible.server.login.oidc import check_oidc
from indelible.server.login.oidc_routes import is_own_path
from indelible.server.openapi.docs_page import write_docs_page
from indelible.server.openapi.documented_problems import document_problems
from indelible.server.openapi.response_schemas import add_answer_schemas
from indelible.server.problem_details import add_problem_handlers
from indelible.server.prometheus import PrometheusMetrics
from indelible.server.router import Router
from indelible.server.routes import (
    chats,
    debug,
    feed,
    files,
    health,
    lists,
    messages,
    queue,
    session,
    shared_links,
    shares,
    tokens,
    turns,
    users,
)
from indelible.server.streaming.sse import DEFAULT_PACE, Pace
from indelible.server.wires import routes as wires
from indelible.server.wires.openai.error_middleware import OpenAIErrors
from indelible.server.wires.openai.failures import RefusedByName, answer_refusal_by_name
from indelible.settings import Settings
from indelible.tools.toolset import AnyTool, name_of

PREFIX: Final = "/api/v1"
_WEB: Final = Path(__file__).parent / "web"

_PAGE_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Of everything that a browser shows or runs. process.py adds `nosniff` to every response."""


class _WebFiles(StaticFiles):
    """The files of the page. Browsers revalidate them, so that after an upgrade all files match."""

    def file_response(self, *args: Any, **more: Any) -> Response:
        response = super().file_response(*args, **more)
        response.headers.update(_PAGE_HEADERS)
        return response


_routes: dict[tuple[int, str], tuple[APIRouter, list[BaseRoute]]] = {}
"""The routes of a router (by its `id`: it is not hashable) with a prefix. They depend on no setting, and making them
takes most of a server's start-up time, so all servers of a process share them."""


def _make_routes(router: APIRouter, prefix: str) -> list[BaseRoute]:
    table = APIRouter(route_class=DirectRoute)
    for route in router.routes:
        assert isinstance(route, APIRoute)
        table.add_api_route(
            prefix + route.path,
            route.endpoint,
            methods=sorted(route.methods or ()),
            tags=route.tags,
            status_code=route.status_code,
            response_class=route.response_class,
            responses={**document_problems(route, prefix + route.path), **route.responses},
            include_in_schema=route.include_in_schema,
            openapi_extra=route.openapi_extra,
        )
    return table.routes


def _add_routes(application: FastAPI, router: APIRouter | Router, *, prefix: str = "") -> None:
    """Add each route to the application itself. A router that is included would be searched twice per request."""
    if isinstance(router, Router):  # it has its prefix
        application.router.routes.append(router)
        return
    key = (id(router), prefix)
    if key not in _routes:
        _routes[key] = (router, _make_routes(router, prefix))  # keeps the router, so no other object gets its id
    application.router.routes += _routes[key][1]


def _redirect_slashes(application: FastAPI) -> None:
    """Lead from `/docs/` to `/docs`, and from `/web` to `/web/`.

    Starlette can do so too, but to whatever name the client has sent as `Host`. Here only a path is told.
    """
    not_found = application.router.default

    async def redirect(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        other = path.rstrip("/") if path.endswith("/") else f"{path}/"
        there = {**scope, "path": other}
        if is_own_path(other) and any(route.matches(there)[0] is not Match.NONE for route in application.routes):
            query = scope["query_string"].decode("latin-1")
            place = quote(other, safe="/") + (f"?{query}" if query else "")
            await RedirectResponse(place, status_code=307)(scope, receive, send)
        else:
            await not_found(scope, receive, send)

    application.router.default = redirect


class Server:
    """The application, and what its process needs to know about it.

    `server_state` exists while it runs. `failure` is what kept it from starting, or ended it. With `offers_login`, and
    if a login is needed, `login_path` logs the first admin in, once and within the hour: for who started it, and nobody
    else may read it. With `only_health` it is how a worker listens: health, readiness and metrics, and nothing else.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        models: Mapping[str, Model] | None = None,
        tools: Sequence[AnyTool] = (),
        client_tools: Sequence[AnyTool] = (),
        worker: bool = True,
        clock: Clock | None = None,
        pace: Pace = DEFAULT_PACE,
        offers_login: bool = False,
        only_health: bool = False,
    ) -> None:
        check_oidc(settings)
        self.settings = settings
        self.pace = pace
        self.server_state: ServerState | None = None
        self.failure: BaseException | None = None
        self.login_path: str | None = None
        self.only_health = only_health
        self._offers_login = offers_login
        self._models = models or {}
        self._tools = tools
        self._client_tools = client_tools
        self._worker = worker
        self._clock = clock or SystemClock()
        limited = BodyLimits(self._make_application())
        access = AccessMiddleware(limited, settings, find_state=lambda: self.server_state)
        self.application: ASGIApp = HeadRequests(
            OpenAIErrors(access, base_path=normalize_base_path(settings.base_path))
        )

    def begin_shutdown(self) -> None:
        """Fail the readiness check, let the worker drain, and send every feed `end`: its reader reconnects elsewhere.

        Replies that are streamed to a client that cannot do so stay open, until `end_streams`.
        """
        if self.server_state is not None:
            self.server_state.is_ready = False
            self.server_state.app.leave()

    @property
    def is_left(self) -> bool:
        """Whether no reply is streamed any more to a client that cannot resume it elsewhere."""
        return self.server_state is None or self.server_state.app.feed.is_left

    def end_streams(self) -> None:
        """End the streams that are still open."""
        if self.server_state is not None:
            self.server_state.app.feed.close()

    def _make_application(self) -> FastAPI:
        application = FastAPI(
            title="Indelible",
            version="1",
            lifespan=self._live,
            docs_url=None,  # `show_docs` serves it: FastAPI's own page loads scripts from another site
            redoc_url=None,
            redirect_slashes=False,  # see `_redirect_slashes`
        )
        _redirect_slashes(application)
        if self.only_health:
            _add_routes(application, health.health)
            add_problem_handlers(application)
            return application
        # The routes of every turn come first: a request is compared with one route after the other.
        every = (chats, feed, messages, queue, turns, debug, lists, files, session, tokens, users, shares, shared_links)
        for routes in every:
            _add_routes(application, routes.router, prefix=PREFIX)
        _add_routes(application, health.models, prefix=PREFIX)
        _add_routes(application, health.health)
        _add_routes(application, wires.router)
        application.add_exception_handler(RefusedByName, answer_refusal_by_name)
        add_problem_handlers(application)
        add_answer_schemas(application)

        @application.get("/web/routes.json", include_in_schema=False)
        async def list_routes() -> JSONResponse:
            """Which routes this server has: the page hides what it lacks."""
            routes = [
                f"{method} {route.path}"
                for route in application.routes
                if isinstance(route, APIRoute)
                for method in sorted(route.methods or ())
            ]
            routers = [route for route in application.routes if isinstance(route, Router)]
            routes += [f"{each.method} {each.path}" for router in routers for each in router.operations]
            return JSONResponse(routes, headers=_PAGE_HEADERS)

        application.mount("/web", _WebFiles(directory=_WEB), name="web")

        base_path = normalize_base_path(self.settings.base_path)

        def show_html(page: str) -> HTMLResponse:
            """A page whose links include the base path under which we are served."""
            return HTMLResponse(page.replace('"/web/', f'"{base_path}/web/'), headers=_PAGE_HEADERS)

        async def show_file(name: str) -> Response:
            file = _WEB / name
            if not base_path:
                return FileResponse(file, headers=_PAGE_HEADERS)
            return show_html(await asyncio.to_thread(file.read_text))

        @application.get("/", include_in_schema=False)
        async def show_page() -> Response:
            return await show_file("index.html")

        @application.get("/docs", include_in_schema=False)
        async def show_docs() -> HTMLResponse:
            return show_html(write_docs_page(application.openapi()))

        if self.settings.oidc_issuer:
            _add_routes(application, oidc_routes.router)
        login.add_login_pages(application, show_file, has_oidc=bool(self.settings.oidc_issuer))

        return application

    @asynccontextmanager
    async def _live(self, application: FastAPI) -> AsyncIterator[None]:
        metrics = PrometheusMetrics()
        try:
            async with open_app(
                settings=self.settings,
                model=self._models.get(self.settings.model),
                models=self._models,
                tools=self._tools,
                client_tools=self._client_tools,
                worker=self._worker,
                listed_models_only=True,
                clock=self._clock,
                metrics=metrics,
            ) as app:
                self.server_state = ServerState(
                    app=app,
                    settings=self.settings,
                    metrics=metrics,
                    pace=self.pace,
                    client_tools=frozenset(name_of(tool) for tool in self._client_tools),
                )
                application.state.server_state = self.server_state
                first = await ensure_first_admin(app.accounts)
                if self._offers_login and self.server_state.authenticator.needs_login and not first.disabled:
                    path = await offer_login(app.accounts, clock=app.clock)
                    self.login_path = f"{self.server_state.base_path}{path}"
                watching = asyncio.create_task(self.server_state.revocation.run(), name="revocation")
                self.server_state.is_ready = True
                try:
                    yield
                finally:
                    self.begin_shutdown()
                    watching.cancel()
                    await asyncio.wait([watching])
        except BaseException as error:
            self.failure = error
            raise
