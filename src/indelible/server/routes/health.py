"""The process: its models, health, readiness and metrics."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from indelible.api.shapes import Health, ModelPage
from indelible.errors import NotPermitted
from indelible.server.dependencies import Login, Reads, ReadyState, State, answer_json
from indelible.server.openapi.response_schemas import answers

models = APIRouter(tags=["process"])
health = APIRouter(tags=["process"])


@models.get("/models", **answers(ModelPage))
async def list_models(service: Reads) -> Response:
    """List the model names that a chat, a message or a retry may use."""
    return answer_json(await service.list_models())


@health.get("/healthz", **answers(Health))
async def get_health() -> Response:
    """Liveness: the process is running."""
    return answer_json(Health(status="ok"))


@health.get("/readyz", **answers(Health))
async def get_readiness(state: ReadyState) -> Response:
    """Readiness: the process has started, is not shutting down, and its database can be read and written."""
    await state.readiness.check()
    return answer_json(Health(status="ready"))


@health.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "The Prometheus text format."}},
)
async def get_metrics(state: State, login: Login) -> Response:
    """Metrics of the process, for Prometheus. They count everybody's chats, so they are for admins."""
    if login.role != "admin":
        raise NotPermitted("Only an admin may read the metrics.")
    counted = await state.app.store.count_chats()
    state.metrics.chats_counted(counted.by_state, stuck=counted.stuck)
    return Response(generate_latest(state.metrics.registry), media_type=CONTENT_TYPE_LATEST)
