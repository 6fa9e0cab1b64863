"""What was tried: the attempts of a chat, and what was exchanged with its providers, as far as it was recorded.

A run may be a hundred megabytes, so it goes out while it is read, exchange by exchange (recording/storage/export.py).
When it begins, its status has been sent. If the run is deleted meanwhile, or the database goes away, the answer
therefore ends without its end, which every HTTP client tells from a whole one; whoever asks again is told what is the
matter.

Must stay true (tests/server/test_debug_over_http.py): what was cut is never taken for a whole run.
"""

from __future__ import annotations

import logging
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from indelible.errors import NotFound, StoreFailed
from indelible.recording.storage.export import write_run
from indelible.server.dependencies import JSON, Context, OwnedChatId, answer_json, check_name
from indelible.server.routes.chats import PageLimit

_log: Final = logging.getLogger(__name__)

router = APIRouter(tags=["debug"])


@router.get("/chats/{chat_id}/attempts")
async def list_attempts(
    chat_id: OwnedChatId, context: Context, before: str | None = None, limit: PageLimit = 50
) -> Response:
    """Every try at every step, also those that came to nothing; the newest first."""
    found = await context.store.attempts(chat_id, before=before and check_name(before), limit=limit + 1)
    page = found[:limit]
    return answer_json({"items": page, "next": page[-1].id if len(found) > limit else None})


@router.get("/chats/{chat_id}/debug/runs")
async def list_runs(
    chat_id: OwnedChatId, context: Context, before: str | None = None, limit: PageLimit = 50
) -> Response:
    """Recorded work with models, the newest first."""
    found = await context.app.records.list_runs(chat_id, before=before and check_name(before), limit=limit + 1)
    page = found[:limit]
    return answer_json({"items": page, "next": page[-1].id if len(found) > limit else None})


@router.get("/chats/{chat_id}/debug/runs/{run_id}")
async def read_run(
    chat_id: OwnedChatId, run_id: str, context: Context, *, bodies: bool = True, download: bool = False
) -> Response:
    """One run with its steps and exchanges, redacted; without `bodies`, only how large they are; or as a file."""
    records = context.app.records
    run = await records.load_tree(chat_id, check_name(run_id))
    if run is None:
        raise NotFound("There is no such run in this chat.")
    answer = _Export(write_run(records, run), media_type=JSON) if bodies else answer_json(run)
    if download:
        answer.headers["content-disposition"] = f'attachment; filename="{run.id}.json"'
    return answer


class _Export(StreamingResponse):
    """An answer that is cut where it can not go on."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except (NotFound, StoreFailed) as error:
            _log.warning("an export was cut: %s", error)
