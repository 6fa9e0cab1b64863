"""The web application: it joins routes, page and error handlers with an `App`.

This is the server's composition root. It opens the store, the feed and, unless other processes do the work, a worker
with `open_app`, as any other program would, and closes them when the application shuts down.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from indelible.api.records import RunTree, WholeRun
from indelible.app.compose import open_app
from indelible.clock import Clock, SystemClock
from indelible.models.protocol import Model
from indelible.server import feed_routes, file_routes, login, oidc, openapi, routes
from indelible.server.access import AccessMiddleware
from indelible.server.authentication import normalize_base_path
from indelible.server.compat import ai_sdk, chat_completions, conversations, openai, responses
from indelible.server.health import PrometheusMetrics
from indelible.server.limits import BodyLimits
from indelible.server.problems import add_problem_handlers
from indelible.server.router import HeadRequests, Router
from indelible.server.sse import DEFAULT_PACE, Pace
from indelible.server.state import ServerState
from indelible.settings import Settings
from indelible.store.transfer import ChatFile
from indelible.tools.toolset import AnyTool, name_of

own: Final = Router()
"""The routes of our own API. They depend on no setting, so all servers of a process share them."""
for each in (routes, feed_routes, file_routes, login):
    own.include(each.router)
own.include(routes.health)
compatible: Final = Router()
"""Those of the compatible APIs, at the root. They are documented with their own APIs, not in our OpenAPI."""
for api in (responses, conversations, chat_completions, openai, ai_sdk):
    compatible.include(api.router)
_ALSO: Final = (ChatFile, RunTree, WholeRun)
"""The types of responses that are not sent by the router."""
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


def _redirect_slashes(application: Starlette) -> None:
    """Lead from `/docs/` to `/docs`, and from `/web` to `/web/`.

    Starlette can do so too, but to whatever name the client has sent as `Host`. Here only a path is told.
    """
    not_found = application.router.default

    async def redirect(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        other = path.rstrip("/") if path.endswith("/") else f"{path}/"
        there = {**scope, "path": other}
        if oidc.is_own_path(other) and any(route.matches(there)[0] is not Match.NONE for route in application.routes):
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
        oidc.check_oidc(settings)
        self.settings = settings
        self.pace = pace
        self.server_state: ServerState | None = None
        self.failure: BaseException | None = None
        self.login_path: str | None = None
        self.only_health = only_health
        self._offers_login = offers_login
        self._client_tools = client_tools
        self._open_app = partial(
            open_app,
            settings=settings,
            model=(models or {}).get(settings.model),
            models=models or {},
            tools=tools,
            client_tools=client_tools,
            worker=worker,
            listed_models_only=True,
            clock=clock or SystemClock(),
        )
        limited = BodyLimits(self._make_application())
        access = AccessMiddleware(limited, settings, find_state=lambda: self.server_state)
        self.application: ASGIApp = HeadRequests(
            openai.OpenAIErrors(access, base_path=normalize_base_path(settings.base_path))
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

    def _make_application(self) -> Starlette:
        served: list[BaseRoute] = [routes.health]
        if not self.only_health:
            served = [own, compatible, self._make_pages(), Mount("/web", _WebFiles(directory=_WEB), name="web")]
            if self.settings.oidc_issuer:
                served.append(oidc.router)
        application = Starlette(routes=served, lifespan=self._live)
        application.router.redirect_slashes = False  # see `_redirect_slashes`
        _redirect_slashes(application)
        application.add_exception_handler(openai.RefusedByName, openai.answer_refusal_by_name)
        add_problem_handlers(application)
        return application

    def _make_pages(self) -> Router:
        """What a browser shows."""
        pages = Router()
        base_path = normalize_base_path(self.settings.base_path)
        document = openapi.write_document(own.facts, also=_ALSO)

        def show_html(page: str) -> HTMLResponse:
            """A page whose links include the base path under which we are served."""
            return HTMLResponse(page.replace('"/web/', f'"{base_path}/web/'), headers=_PAGE_HEADERS)

        async def show_file(name: str) -> Response:
            file = _WEB / name
            if not base_path:
                return FileResponse(file, headers=_PAGE_HEADERS)
            return show_html(await asyncio.to_thread(file.read_text))

        @pages.get("/")
        async def show_page() -> Response:
            return await show_file("index.html")

        @pages.get("/docs")
        async def show_docs() -> HTMLResponse:
            return show_html(openapi.write_docs_page(document))

        @pages.get("/openapi.json")
        async def show_document() -> JSONResponse:
            return JSONResponse(document)

        @pages.get("/web/routes.json")
        async def list_routes(request: Request) -> JSONResponse:
            """Which routes this server has: the page hides what it lacks."""
            routers = [route for route in request.app.routes if isinstance(route, Router)]
            listed = [f"{each.method} {each.path}" for router in routers for each in router.facts]
            return JSONResponse(listed, headers=_PAGE_HEADERS)

        login.add_login_pages(pages, show_file, has_oidc=bool(self.settings.oidc_issuer))
        return pages

    @asynccontextmanager
    async def _live(self, application: Starlette) -> AsyncIterator[None]:
        metrics = PrometheusMetrics()
        try:
            async with self._open_app(metrics=metrics) as app:
                client_tools = frozenset(map(name_of, self._client_tools))
                self.server_state = ServerState(app, self.settings, metrics, self.pace, client_tools)
                application.state.server_state = self.server_state
                first = await login.ensure_first_admin(app.accounts)
                if self._offers_login and self.server_state.authenticator.needs_login and not first.disabled:
                    path = await login.offer_login(app.accounts, clock=app.clock)
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
