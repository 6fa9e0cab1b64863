"""The process itself: which models there are, whether it is well, what it has counted."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from indelible.server.dependencies import Context, answer_json
from indelible.server.problem_details import NotReady

models = APIRouter(tags=["process"])
health = APIRouter(tags=["process"])


@models.get("/models")
async def list_models(context: Context) -> Response:
    """The names under which a message, a chat or a retry may ask for a model."""
    default = context.server_state.settings.model
    return answer_json(
        {"items": [{"id": name, "default": name == default} for name in context.server_state.app.models]}
    )


@health.get("/healthz")
async def tell_alive() -> Response:
    """The process runs."""
    return answer_json({"status": "ok"})


@health.get("/readyz")
async def tell_ready(context: Context) -> Response:
    """The process takes requests: it has started, is not about to end, and its database answers."""
    if not context.server_state.is_ready:
        raise NotReady
    await context.store.owner("nobody")  # any question will do
    return answer_json({"status": "ready"})


@health.get("/metrics")
async def tell_metrics(context: Context) -> Response:
    """Counters and measures for Prometheus."""
    counted = await context.store.count_chats()
    context.server_state.metrics.chats_counted(counted.by_state, stuck=counted.stuck)
    return Response(generate_latest(context.server_state.metrics.registry), media_type=CONTENT_TYPE_LATEST)
