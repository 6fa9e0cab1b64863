"""The process: health, readiness and metrics."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from indelible.api.shapes import Health
from indelible.errors import NotPermitted
from indelible.server.dependencies import Login, ReadyState, State
from indelible.server.router import Router

health = Router(tag="process")


@health.get("/healthz")
async def get_health() -> Health:
    """Liveness: the process is running."""
    return Health(status="ok")


@health.get("/readyz")
async def get_readiness(state: ReadyState) -> Health:
    """Readiness: the process has started, is not shutting down, and its database can be read and written."""
    await state.readiness.check()
    return Health(status="ready")


@health.get(
    "/metrics",
    responses={200: {"content": {"text/plain": {}}, "description": "The Prometheus text format."}},
)
async def get_metrics(state: State, login: Login) -> Response:
    """Metrics of the process, for Prometheus. They count everybody's chats, so they are for admins."""
    if login.role != "admin":
        raise NotPermitted("Only an admin may read the metrics.")
    counted = await state.app.store.count_chats()
    state.metrics.chats_counted(counted.by_state, stuck=counted.stuck)
    return Response(generate_latest(state.metrics.registry), media_type=CONTENT_TYPE_LATEST)
