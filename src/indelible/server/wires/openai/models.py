"""`/v1/models`: the models that a request may name."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from indelible.errors import NotFound
from indelible.server.dependencies import Reads, answer_json

router = APIRouter(tags=["openai"], include_in_schema=False)


@router.get("/models")
async def list_models(service: Reads) -> Response:
    """List the models."""
    page = await service.list_models()
    return answer_json({"object": "list", "data": [_show(model.id) for model in page.items]})


@router.get("/models/{model_id:path}")
async def get_model(model_id: str, service: Reads) -> Response:
    """Get one model."""
    page = await service.list_models()
    if all(model.id != model_id for model in page.items):
        raise NotFound(f"The model {model_id[:100]!r} does not exist.")
    return answer_json(_show(model_id))


def _show(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "indelible"}
