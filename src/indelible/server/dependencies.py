"""What every route depends on: the process state, the user's service, and JSON responses.

A route calls one method of the service (service/local.py), which checks that the chat is the user's. A write may carry
an `Idempotency-Key`: `Writes` is then the service for this one request, so that the command, its response and the key
are committed in one transaction (SPEC 3.5). A repeated request gets the same response and changes nothing.

Every dependency is `async`, though none of these waits: FastAPI sends others to a thread, which cost more than the
request. None depends on another: FastAPI resolves each one anew for every request, which costs as much as a query.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import Depends, Query, Request
from starlette.responses import Response

from indelible.app.app import App
from indelible.content import encode
from indelible.server.feed_slots import FeedSlots
from indelible.server.prometheus import PrometheusMetrics
from indelible.server.readiness import Readiness
from indelible.server.sse import Pace
from indelible.service.local import LocalService
from indelible.service.protocol import MAX_PAGE
from indelible.settings import Settings

JSON: Final = "application/json"
PageLimit = Annotated[int, Query(ge=1, le=MAX_PAGE)]


@dataclass
class ServerState:
    """One per process. `is_ready` is true between the end of the startup and the beginning of the shutdown."""

    app: App
    settings: Settings
    metrics: PrometheusMetrics
    pace: Pace
    client_tools: frozenset[str] = frozenset()
    """The names of the tools that every client runs (`serve --client-tools`)."""
    is_ready: bool = False
    feed_slots: FeedSlots = field(init=False)
    readiness: Readiness = field(init=False)

    def __post_init__(self) -> None:
        self.readiness = Readiness(self.app)
        self.feed_slots = FeedSlots(self.settings.user_max_feeds)


async def get_state(request: Request) -> ServerState:
    state: ServerState = request.app.state.server_state
    return state


State = Annotated[ServerState, Depends(get_state)]


async def get_service(request: Request) -> LocalService:
    return (await get_state(request)).app.service


Reads = Annotated[LocalService, Depends(get_service)]
"""The service of the user who sent the request."""


async def get_service_once(request: Request) -> LocalService:
    service = await get_service(request)
    key = request.headers.get("idempotency-key")
    if key is None:
        return service
    body_hash = hashlib.sha256(await request.body()).digest()
    return await service.once(key, route=f"{request.method} {request.url.path}", body_hash=body_hash)


Writes = Annotated[LocalService, Depends(get_service_once)]
"""The same, for a request that may be repeated."""


def answer_json(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status_code=status, media_type=JSON)
