"""What every route depends on: the process state, the user's service, and JSON responses.

A route calls one method of the service of the user who sent the request (service/chats.py), which checks that the chat
is theirs. A write may carry an `Idempotency-Key`: `Writes` is then the service for this one request, so that the
command, its response and the key are committed in one transaction (rule 3.5). A repeated request gets the same response
and changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from indelible.api.operations import AccountApi, ChatApi, FileApi, ListApi
from indelible.app.app import App
from indelible.content import encode
from indelible.errors import RateLimited
from indelible.server.authentication import Authenticator, normalize_base_path
from indelible.server.health import PrometheusMetrics, Readiness
from indelible.server.limits import FeedSlots, TokenBuckets
from indelible.server.problems import NotReady
from indelible.server.revocation import Revocation
from indelible.server.router import JSON, FromRequest
from indelible.server.sse import Pace
from indelible.service.access import Access, Identity
from indelible.service.accounts import LocalAccounts
from indelible.service.chats import LocalService
from indelible.settings import Settings


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

    def __post_init__(self) -> None:
        self.readiness = Readiness(self.app)
        self.feed_slots = FeedSlots(self.settings.user_max_feeds)
        self.base_path = normalize_base_path(self.settings.base_path)
        self.authenticator = Authenticator(self.app, self.settings)
        self.revocation = Revocation(
            self.app.accounts,
            self.app.feed.notifier,
            clock=self.app.clock,
            session_timeout_s=self.settings.session_timeout_s,
            forget=self.authenticator.forget,
        )
        self.app.on_rights_changed.append(self.revocation.wake)
        rate = self.settings.user_max_requests_per_s
        self._rates = TokenBuckets(rate, 10 * rate, monotonic=self.app.clock.monotonic) if rate else None

    def check_ready(self) -> None:
        """Raises `NotReady` while the process starts or shuts down."""
        if not self.is_ready:
            raise NotReady

    def check_rate(self, user_id: str) -> None:
        """Raises `RateLimited` if this user sends too many requests."""
        if self._rates is not None and (wait_s := self._rates.acquire(user_id)):
            limit = self.settings.user_max_requests_per_s
            raise RateLimited(f"Too many requests (limit {limit} per second). Slow down.", retry_after_s=wait_s)


def get_state(request: Request) -> ServerState:
    state: ServerState = request.app.state.server_state
    return state


State = Annotated[ServerState, FromRequest(get_state)]


def get_ready_state(request: Request) -> ServerState:
    state = get_state(request)
    state.check_ready()
    return state


ReadyState = Annotated[ServerState, FromRequest(get_ready_state)]
"""The state, for a route that opens a stream or starts a reply: a process that is leaving refuses it (`NotReady`)."""


def get_identity(request: Request) -> Identity:
    """Who sends the request. access.py lets no request without one reach a route that asks."""
    identity: Identity = request.scope["identity"]
    return identity


Login = Annotated[Identity, FromRequest(get_identity)]
"""Who sends the request."""


def get_service(request: Request) -> LocalService:
    identity = get_identity(request)
    return get_state(request).app.service_of(identity.user_id, is_admin=identity.is_admin)


Reads = Annotated[LocalService, FromRequest(get_service)]
"""The service of the user who sent the request."""


async def get_service_once(request: Request) -> LocalService:
    service = get_service(request)
    key = request.headers.get("idempotency-key")
    if key is None:
        return service
    body_hash = hashlib.sha256(await request.body()).digest()
    return await service.once(key, route=f"{request.method} {request.url.path}", body_hash=body_hash)


Writes = Annotated[LocalService, FromRequest(get_service_once)]
"""The same, for a request that may be repeated."""


async def get_lists_once(request: Request) -> ListApi:
    return (await get_service_once(request)).lists


def get_files(request: Request) -> FileApi:
    return get_service(request).files


def get_accounts(request: Request) -> AccountApi:
    app = get_state(request).app
    access = Access(app.store, app.shares)
    return LocalAccounts(app.accounts, app.shares, access, get_identity(request), clock=app.clock)


API_OBJECTS: Final[Sequence[tuple[type, Callable[[Request], Any], Callable[[Request], Any]]]] = (
    (ChatApi, get_service, get_service_once),
    (ListApi, lambda request: get_service(request).lists, get_lists_once),
    (FileApi, get_files, get_files),
    (AccountApi, get_accounts, get_accounts),
)
"""The protocols of api/operations.py, with what makes their objects of a request that reads, and of one that writes."""


def answer_json(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status_code=status, media_type=JSON)
