"""The process itself: which models there are, whether it is well, what it has counted."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from indelible.server.office import Asking, answer_json
from indelible.server.problems import NotReady

models = APIRouter(tags=["process"])
health = APIRouter(tags=["process"])


@models.get("/models")
async def list_models(caller: Asking) -> Response:
    """The names under which a message, a chat or a retry may ask for a model."""
    default = caller.office.settings.model
    return answer_json({"items": [{"id": name, "default": name == default} for name in caller.office.app.models]})


@health.get("/healthz")
async def tell_alive() -> Response:
    """The process runs."""
    return answer_json({"status": "ok"})


@health.get("/readyz")
async def tell_ready(caller: Asking) -> Response:
    """The process takes requests: it has started, is not about to end, and its database answers."""
    if not caller.office.is_ready:
        raise NotReady
    await caller.store.owner("nobody")  # any question will do
    return answer_json({"status": "ready"})


@health.get("/metrics")
async def tell_metrics(caller: Asking) -> Response:
    """Counters and measures for Prometheus."""
    counted = await caller.store.count_chats()
    caller.office.metrics.chats_counted(counted.by_state, stuck=counted.stuck)
    return Response(generate_latest(caller.office.metrics.registry), media_type=CONTENT_TYPE_LATEST)
