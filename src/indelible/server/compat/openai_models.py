"""`/v1/models`: the models that a request may name, and how a program's own name for one is understood.

Programs written for OpenAI say `gpt-5.1` where we say `openai:gpt-5.1`. The short name is understood if exactly one of
the server's models has it; everything else is left as it is, and refused with the names that exist (404, as by OpenAI).
Tested in tests/server/compat/test_chat_completions.py.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from indelible.errors import Invalid
from indelible.server.compat.openai import PREFIX, RefusedByName
from indelible.server.router import Router
from indelible.server.state import Reads, answer_json
from indelible.service.chats import LocalService

router = Router(prefix=PREFIX)


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
        raise _refuse(f"The model {model_id[:100]!r} does not exist.")
    return answer_json(_show(model_id))


async def find_model_name(service: LocalService, given: str | None) -> str | None:
    """The name of a model that may be used: the given one, or the only one that ends so. Raises `RefusedByName`."""
    name = given
    if given is not None and ":" not in given:
        names = [model.id for model in (await service.list_models()).items]
        meant = [name for name in names if name.partition(":")[2].partition("@")[0] == given]
        name = meant[0] if len(meant) == 1 and given not in names else given
    try:
        service.check_model(name)
    except Invalid as error:
        raise _refuse(str(error)) from error
    return name


def _refuse(message: str) -> RefusedByName:
    return RefusedByName(message, status=404, code="model_not_found", param="model")


def _show(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "indelible"}
