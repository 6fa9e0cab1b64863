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
from indelible.recording.storage.protocol import RunTree, WholeRun
from indelible.server.dependencies import JSON, PageLimit, Reads, State, answer_json
from indelible.server.openapi import answers
from indelible.service.results import AttemptPage, RunPage

_log: Final = logging.getLogger(__name__)

router = APIRouter(tags=["debug"])


@router.get("/chats/{chat_id}/attempts", **answers(AttemptPage))
async def list_attempts(chat_id: str, service: Reads, before: str | None = None, limit: PageLimit = 50) -> Response:
    """Every try at every step, also those that came to nothing; the newest first."""
    return answer_json(await service.list_attempts(chat_id, before=before, limit=limit))


@router.get("/chats/{chat_id}/debug/runs", **answers(RunPage))
async def list_runs(chat_id: str, service: Reads, before: str | None = None, limit: PageLimit = 50) -> Response:
    """Recorded work with models, the newest first."""
    return answer_json(await service.list_runs(chat_id, before=before, limit=limit))


@router.get("/chats/{chat_id}/debug/runs/{run_id}", **answers(WholeRun, RunTree))
async def get_run(
    chat_id: str, run_id: str, service: Reads, state: State, *, bodies: bool = True, download: bool = False
) -> Response:
    """One run with its steps and exchanges, redacted; without `bodies`, only how large they are; or as a file."""
    run = await service.get_run(chat_id, run_id)
    answer = _Export(write_run(state.app.records, run), media_type=JSON) if bodies else answer_json(run)
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
