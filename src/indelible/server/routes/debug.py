"""What was tried: the attempts of a chat, and what was exchanged with its providers, as far as it was recorded."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from indelible.errors import NotFound
from indelible.server.office import Asking, OwnChat, answer_json, check_name
from indelible.server.routes.chats import PageLimit

router = APIRouter(tags=["debug"])


@router.get("/chats/{chat_id}/attempts")
async def list_attempts(chat_id: OwnChat, caller: Asking, before: str | None = None, limit: PageLimit = 50) -> Response:
    """Every try at every step, also those that came to nothing; the newest first."""
    found = await caller.store.attempts(chat_id, before=before and check_name(before), limit=limit + 1)
    page = found[:limit]
    return answer_json({"items": page, "next": page[-1].id if len(found) > limit else None})


@router.get("/chats/{chat_id}/debug/runs")
async def list_runs(chat_id: OwnChat, caller: Asking, before: str | None = None, limit: PageLimit = 50) -> Response:
    """Recorded work with models, the newest first."""
    found = await caller.store.records.list_runs(chat_id, before=before and check_name(before), limit=limit + 1)
    page = found[:limit]
    return answer_json({"items": page, "next": page[-1].id if len(found) > limit else None})


@router.get("/chats/{chat_id}/debug/runs/{run_id}")
async def read_run(chat_id: OwnChat, run_id: str, caller: Asking, *, download: bool = False) -> Response:
    """One run with its steps and exchanges, redacted; with `download`, as a file."""
    run = await caller.store.records.load_run(chat_id, check_name(run_id))
    if run is None:
        raise NotFound("There is no such run in this chat.")
    answer = answer_json(run)
    if download:
        answer.headers["content-disposition"] = f'attachment; filename="{run.id}.json"'
    return answer
