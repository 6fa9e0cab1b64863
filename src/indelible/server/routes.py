"""The routes of all use cases (api/operations.py), and those of plain JSON that are written by hand.

Each protocol has its object per request. A write may be repeated with its `Idempotency-Key`, unless it makes a secret,
which the stored response would have in it.

By hand: one recorded run, export and import, links, health and metrics. A run may have a hundred megabytes, so it is
streamed, exchange by exchange (recording/replay.py). Its status 200 is sent first. If the run is deleted meanwhile, or
the database fails, the only way left to report it is to truncate the response: every HTTP client detects that, and the
next request gets the reason.

A link reads a chat without a login. The key in the path is the right; it is never logged (logs.py). It has the same
bodies as the chat's own routes, as a guest sees them (service/guests.py), and nothing that changes anything: there is
no other route below `/shared`. A feed begins with a snapshot whatever the cursor is.

Must stay true (tests/server/test_debug_over_http.py): a truncated run is never mistaken for a whole one.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Annotated, Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from indelible.api.operations import PREFIX, PageLimit, operations
from indelible.api.records import RunTree, WholeRun
from indelible.api.shapes import ChatDetails, CreatedChat, ExportFormat, Health, MessagePage, StoredFile
from indelible.errors import NotFound, NotPermitted, StoreFailed
from indelible.recording.replay import write_run
from indelible.server.feed_routes import answer_feed, answer_turn
from indelible.server.file_routes import SENDS_BYTES, SENDS_PICTURE, answer_download, answer_preview
from indelible.server.limits import WithSlot
from indelible.server.openapi import refer_to
from indelible.server.router import HEADER, JSON, Router
from indelible.server.state import API_OBJECTS, Login, Reads, ReadyState, State, Writes, answer_json
from indelible.service.accounts import open_link
from indelible.service.guests import show_chat
from indelible.store.transfer import ChatFile

_STREAM: Final = {
    200: {
        "description": "With `Accept: text/event-stream`: events; see docs/http.md.",
        "content": {"text/event-stream": {}},
    }
}


def _make_router() -> Router:
    router = Router(prefix=PREFIX)
    for api, reads, writes in API_OBJECTS:
        for use_case in operations(api):
            declared = use_case.operation
            about: dict[str, Any] = {"tag": declared.path.split("/")[1]}
            if declared.starts_turn:
                about |= {"respond": partial(answer_turn, status=declared.status), "responses": _STREAM}
            router.add(use_case, reads if declared.method == "GET" else writes, **about)
    return router


router: Final = _make_router()
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


_MEDIA_TYPES: Final = {"json": JSON, "md": "text/markdown; charset=utf-8"}
_FILE: Final = {JSON: {"schema": refer_to(ChatFile)}}
_EXPORTED: Final = {"description": "The file.", "content": {**_FILE, "text/markdown": {"schema": {"type": "string"}}}}


@router.get("/chats/{chat_id}/export", tag="chats", responses={200: _EXPORTED})
async def export_chat(chat_id: str, service: Reads, format: ExportFormat = "json") -> Response:
    """Export the chat as a file: all of it as JSON, which can be imported, or the active branch as Markdown."""
    content = await service.lists.export_chat(chat_id, format)
    headers = {"content-disposition": f'attachment; filename="{chat_id}.{format}"'}
    return Response(content, media_type=_MEDIA_TYPES[format], headers=headers)


@router.post(
    "/chats/import",
    tag="chats",
    status=201,
    problems=(404,),  # the user has no such file
    request_body={"required": True, "content": _FILE},
)
async def import_chat(request: Request, service: Writes) -> CreatedChat:
    """Create a chat from an exported one. A file with a mistake is refused as a whole."""
    return await service.lists.import_chat(await request.body())


@router.get("/shared/{key}", tag="shared")
async def get_shared_chat(key: str, state: State) -> ChatDetails:
    """Get the chat behind a link, as it is now."""
    link = await open_link(state.app.shares, key)
    return show_chat(await state.app.service_of(link.owner_id).get_chat(link.chat_id))


@router.get("/shared/{key}/messages", tag="shared")
async def list_shared_messages(key: str, state: State, before: str | None = None, limit: PageLimit = 50) -> MessagePage:
    """List the messages of the chat behind a link."""
    link = await open_link(state.app.shares, key)
    owners = state.app.service_of(link.owner_id)
    return await owners.list_messages(link.chat_id, before=before, limit=limit, as_guest=True)


@router.get("/shared/{key}/files/{file_id}", tag="shared", **SENDS_BYTES)
async def download_shared_file(key: str, file_id: str, request: Request, state: State) -> Response:
    """Download a file that the chat behind a link shows, or a range of it."""
    link = await open_link(state.app.shares, key)
    files = state.app.service_of(link.owner_id).files
    return answer_download(request, files, await files.find_grant(file_id, link))


@router.get("/shared/{key}/files/{file_id}/preview", tag="shared", **SENDS_PICTURE)
async def show_shared_preview(key: str, file_id: str, request: Request, state: State) -> Response:
    """A small picture of an image that the chat behind a link shows."""
    link = await open_link(state.app.shares, key)
    files = state.app.service_of(link.owner_id).files
    return await answer_preview(request, files, await files.find_grant(file_id, link))


@router.get("/shared/{key}/files/{file_id}/info", tag="shared")
async def get_shared_file(key: str, file_id: str, state: State) -> StoredFile:
    """Get what is known about a file that the chat behind a link shows."""
    link = await open_link(state.app.shares, key)
    return (await state.app.service_of(link.owner_id).files.find_grant(file_id, link)).file


@router.get(
    "/shared/{key}/events",
    tag="shared",
    responses={200: {"content": {"text/event-stream": {}}, "description": "Events; see docs/feed.md."}},
)
async def stream_shared_events(
    key: str,
    request: Request,
    state: ReadyState,
    after: str | None = None,
    last_event_id: Annotated[str | None, HEADER] = None,
) -> WithSlot:
    """Stream the events of the chat behind a link (SSE)."""
    link = await open_link(state.app.shares, key)
    request.scope["open_request"].depend_on(link.share_id)
    service = state.app.service_of(link.owner_id)
    return answer_feed(request, state, service, link.chat_id, last_event_id or after, as_guest=True)


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


@health.get("/metrics", responses={200: {"content": {"text/plain": {}}, "description": "The Prometheus text format."}})
async def get_metrics(state: State, login: Login) -> Response:
    """Metrics of the process, for Prometheus. They count everybody's chats, so they are for admins."""
    if login.role != "admin":
        raise NotPermitted("Only an admin may read the metrics.")
    counted = await state.app.store.count_chats()
    state.metrics.chats_counted(counted.by_state, stuck=counted.stuck)
    return Response(generate_latest(state.metrics.registry), media_type=CONTENT_TYPE_LATEST)
