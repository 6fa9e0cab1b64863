"""One recorded run with its exchanges.

A run may have a hundred megabytes, so it is streamed, exchange by exchange (recording/replay.py). Its status
200 is sent first. If the run is deleted meanwhile, or the database fails, the only way left to report it is to truncate
the response: every HTTP client detects that, and the next request gets the reason.

Must stay true (tests/server/test_debug_over_http.py): a truncated run is never mistaken for a whole one.
"""

from __future__ import annotations

import logging
from typing import Final

from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from indelible.api.records import RunTree, WholeRun
from indelible.errors import NotFound, StoreFailed
from indelible.recording.replay import write_run
from indelible.server.dependencies import Reads, State, answer_json
from indelible.server.openapi_document import refer_to
from indelible.server.router import JSON
from indelible.server.routes.operations import router

_log: Final = logging.getLogger(__name__)

_RUN: Final = {
    200: {
        "description": "A recorded run; without `bodies`, only their sizes.",
        "content": {JSON: {"schema": {"anyOf": [refer_to(WholeRun), refer_to(RunTree)]}}},
    }
}


@router.get("/chats/{chat_id}/debug/runs/{run_id}", tag="chats", responses=_RUN)
async def get_run(
    chat_id: str, run_id: str, service: Reads, state: State, *, bodies: bool = True, download: bool = False
) -> Response:
    """Get one run with its steps and exchanges, redacted; without `bodies`, only their sizes; or as a file."""
    run = await service.get_run(chat_id, run_id)
    answer = _Export(write_run(state.app.records, run), media_type=JSON) if bodies else answer_json(run)
    if download:
        answer.headers["content-disposition"] = f'attachment; filename="{run.id}.json"'
    return answer


class _Export(StreamingResponse):
    """A response that is truncated when the run can no longer be read."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except (NotFound, StoreFailed) as error:
            _log.warning("an export was truncated: %s", error)
