"""A provider for tests: any model behind all three wire formats, over real HTTP on loopback.

    async with SimulatedProvider([[parts.text_delta("1", "Hello"), parts.finish()]]) as provider:
        client = anthropic.AsyncAnthropic(base_url=provider.base_url("anthropic"), api_key="any")

exchange.py parses a request and sends the model's reply; this module has the socket and the test's interface. Requests
are kept in `requests`. Responses that a client aborted are counted in `drops`: that is how a test sees that a stop has
reached the provider. `faults` breaks responses on purpose (faults.py).

A call beyond the model's scripts (`ScriptEnded`) gets an error that is not retried, and leaving the provider raises it:
no test passes by accident.

Must stay true (tests/testing/test_provider_sdks.py, test_provider_faults.py): the official SDKs stream from it without
errors; each fault does at the socket what it promises.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from aiohttp import web

from indelible.models.protocol import Model
from indelible.testing.model import Script, ScriptedModel, ScriptEnded
from indelible.testing.provider.dialect import encode_json
from indelible.testing.provider.exchange import DIALECTS, ProviderExchange, ProviderState, SeenRequest, Tally, WireName
from indelible.testing.provider.faults import Fault, Refusal

_MAX_REQUEST_BYTES: Final = 64 * 1024 * 1024


class SimulatedProvider:
    """See the module header. `require_key`: requests with another key, or with none, are rejected."""

    def __init__(
        self,
        model: Model | Sequence[Script],
        faults: Iterable[Fault | None] = (),
        *,
        require_key: str | None = None,
    ) -> None:
        scripted: Model = ScriptedModel(model) if isinstance(model, Sequence) else model
        self.url = ""
        self._state = ProviderState(scripted, faults, require_key)
        self._dropped = Tally()
        self._answering: set[asyncio.Task[Any]] = set()
        self._is_closing = False
        self._unscripted: ScriptEnded | None = None
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=_MAX_REQUEST_BYTES)
        for dialect in DIALECTS.values():
            application.router.add_post(dialect.path, self._serve)
        application.router.add_get("/v1/models", self._list_models)
        application.router.add_route("*", "/{path:.*}", self._refuse_path)
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
        if error is None and self._unscripted is not None:
            raise self._unscripted

    async def aclose(self) -> None:
        """Abort the open responses and free the port."""
        self._is_closing = True
        answering = list(self._answering)
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    # --- the test's interface ---

    def base_url(self, wire: WireName) -> str:
        """The base URL for a client of this wire format."""
        return self.url if wire == "anthropic" else f"{self.url}/v1"

    @property
    def model(self) -> Model:
        return self._state.model

    @property
    def faults(self) -> deque[Fault | None]:
        """One for each coming request, in order; None is a correct response."""
        return self._state.faults

    @property
    def requests(self) -> list[SeenRequest]:
        return self._state.requests

    @property
    def open_streams(self) -> int:
        """The number of open responses."""
        return len(self._answering)

    @property
    def drops(self) -> int:
        """The number of responses that clients aborted."""
        return self._dropped.count

    async def wait_for_requests(self, count: int) -> None:
        await self._state.seen.wait_for(count)

    async def wait_for_drops(self, count: int) -> None:
        await self._dropped.wait_for(count)

    def forget_responses(self) -> None:
        """Lose all stored responses: a request that names one gets `previous_response_not_found`."""
        self._state.stored.clear()

    # --- HTTP ---

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        exchange = ProviderExchange(self._state, request)
        try:
            return await exchange.answer()
        except ScriptEnded as error:
            self._unscripted = error
            return exchange.response or await exchange.refuse(Refusal(str(error)))
        except asyncio.CancelledError:
            if not self._is_closing:
                self._dropped.add()
            raise
        except ConnectionError:
            self._dropped.add()
            return exchange.response or web.Response()
        finally:
            self._answering.discard(task)

    async def _list_models(self, request: web.Request) -> web.Response:
        dialect = DIALECTS["anthropic" if "anthropic-version" in request.headers else "openai"]
        key = dialect.find_key({name.lower(): value for name, value in request.headers.items()})
        if self._state.require_key not in {None, key}:
            refusal = dialect.refuse_key(key)
            return _answer_json(refusal.status, dialect.show(refusal, "req_models"))
        return _answer_json(200, dialect.list_models([self.model.name]))

    async def _refuse_path(self, request: web.Request) -> web.Response:
        dialect = DIALECTS["anthropic" if "anthropic-version" in request.headers else "openai"]
        refusal = dialect.refuse(404, f"Invalid URL ({request.method} {request.path})")
        return _answer_json(404, dialect.show(refusal, "req_unknown"))


def _answer_json(status: int, body: Any) -> web.Response:
    return web.Response(status=status, body=encode_json(body), content_type="application/json")
