"""Files: upload, download (or one range of it), preview.

What somebody uploaded must never run in the origin of the page: a file is always sent as an attachment, with the type
that its bytes show, `nosniff`, and a policy that lets nothing in it run or load. Only the preview, which this server
drew itself, is shown in place.

A download's status is sent before its bytes. If the file is deleted meanwhile, or the storage fails, the response is
truncated, which every client detects by its length. One range of bytes is served, as browsers and download programs ask
for it (RFC 9110 §14). Several at once are allowed to be answered with everything, and are. So is anything that cannot
be parsed.

Must stay true (tests/server/test_file_routes.py).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Final
from urllib.parse import quote

from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from indelible.api.operations import PREFIX
from indelible.api.shapes import StoredFile
from indelible.errors import NotFound, Refused, StoreFailed
from indelible.files.media_types import describe_content_type
from indelible.server.limits import UploadBody
from indelible.server.openapi import refer_to
from indelible.server.problems import answer_refusal, make_problem
from indelible.server.router import JSON, Router, is_head
from indelible.server.sse import wait_for_leave
from indelible.server.state import Reads, answer_json
from indelible.service.files import FileGrant, LocalFiles
from indelible.store.outcome import IdempotencyKey

_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class Unsatisfiable(Exception):
    """The range begins after the end of the file."""


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """The first byte and the one after the last; None for all of them. Raises `Unsatisfiable`."""
    found = None if header is None else _RANGE.fullmatch(header.strip())
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        if int(found[2]) == 0:
            raise Unsatisfiable
        return max(0, size - int(found[2])), size
    start = int(found[1])
    stop = min(size, int(found[2]) + 1) if found[2] else size
    if found[2] and int(found[2]) < start:
        return None
    if start >= size:
        raise Unsatisfiable
    return start, stop


_log: Final = logging.getLogger(__name__)
_MAX_NAME: Final = 1000
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}
"""process.py adds `nosniff` to every response."""
_KNOWN: Final = {"description": "The client has it already (`If-None-Match`)."}
_ANY: Final = {"content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}}
SENDS_BYTES: Final[dict[str, Any]] = {
    "responses": {
        200: {"description": "The bytes, with the type of the file.", **_ANY},
        206: {"description": "The bytes of the range that was asked for.", **_ANY},
        304: _KNOWN,
        416: {"description": "The file has no such range."},
    }
}
SENDS_PICTURE: Final[dict[str, Any]] = {
    "responses": {200: {"description": "The picture.", "content": {"image/webp": {}}}, 304: _KNOWN}
}
_UPLOAD: Final = {"description": "The stored file.", "content": {JSON: {"schema": refer_to(StoredFile)}}}
router = Router(prefix=PREFIX, tag="files")


@router.post("/files", responses={201: _UPLOAD}, status=201, request_body={"required": True, **_ANY})
async def upload_file(
    request: Request, service: Reads, name: Annotated[str, Meta(min_length=1, max_length=_MAX_NAME)]
) -> Response:
    """Upload a file: its bytes are the body of the request. The type is found in its first bytes."""
    body = UploadBody(request)
    given = request.headers.get("idempotency-key")
    route = f"POST {request.url.path}?name={name}"
    key = None if given is None else IdempotencyKey(await service.get_user_id(), given, route)
    length = request.headers.get("content-length", "")
    try:
        stored = await service.files.upload(
            body.read,
            name=name,
            media_type=request.headers.get("content-type"),
            size=int(length) if length.isdecimal() else None,
            key=key,
        )
    except Refused as error:
        response = answer_refusal(error)
        if not await body.discard():
            response.headers["Connection"] = "close"
        return response
    except ClientDisconnect:
        return make_problem(400, "bad_request", "The upload was cut.")  # nobody reads it
    return answer_json(stored, 201)


@router.get("/files/{file_id}", **SENDS_BYTES)
async def download_file(file_id: str, request: Request, service: Reads) -> Response:
    """Download a file, or a range of it. It is always sent as an attachment."""
    return answer_download(request, service.files, await service.files.find_grant(file_id))


def answer_download(request: Request, files: LocalFiles, grant: FileGrant) -> Response:
    """The bytes of a file, or a range of them. The download ends with the right to it."""
    request.scope["open_request"].depend_on(grant.share_id)
    file = grant.file
    headers = {
        **_HEADERS,
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}",
        "ETag": f'"{file.sha256}"',
        "Accept-Ranges": "bytes",
    }
    if _is_known(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    wanted = request.headers.get("range") if request.headers.get("if-range") in (None, headers["ETag"]) else None
    try:
        part = parse_range(wanted, file.size)
    except Unsatisfiable:
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{file.size}"})
    start, stop = part or (0, file.size)
    headers["Content-Type"] = describe_content_type(file.media_type, file.size)
    headers["Content-Length"] = str(stop - start)
    if part is not None:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
    status = 200 if part is None else 206
    if is_head(request.scope):
        return Response(status_code=status, headers=headers)
    return _Download(files.read_granted(grant, start, stop), status_code=status, headers=headers)


@router.get("/files/{file_id}/preview", **SENDS_PICTURE)
async def show_preview(file_id: str, request: Request, service: Reads) -> Response:
    """A small picture of an image. 404 if the file is no image, or cannot be decoded."""
    return await answer_preview(request, service.files, await service.files.find_grant(file_id))


async def answer_preview(request: Request, files: LocalFiles, grant: FileGrant) -> Response:
    """The small picture of an image. For a client that leaves before its turn comes, none is made."""
    headers = {**_HEADERS, "ETag": f'"{grant.file.sha256}-preview"', "Content-Disposition": "inline"}
    if grant.file.has_preview and _is_known(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    loading = asyncio.create_task(files.load_granted_preview(grant))
    leaving = asyncio.create_task(wait_for_leave(request.receive))
    try:
        await asyncio.wait([loading, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            return make_problem(400, "bad_request", "The request was cut.")  # nobody reads it
        return Response(loading.result(), media_type="image/webp", headers=headers)
    finally:
        for task in (loading, leaving):
            task.cancel()
        await asyncio.gather(loading, leaving, return_exceptions=True)


def _is_known(request: Request, etag: str) -> bool:
    """Whether the client has this version already."""
    given = request.headers.get("if-none-match", "")
    return given == "*" or etag in [known.strip().removeprefix("W/") for known in given.split(",")]


class _Download(StreamingResponse):
    """A response that is truncated when the file can no longer be read. Its stream is closed however it ends."""

    body_iterator: AsyncGenerator[bytes, None]

    async def stream_response(self, send: Send) -> None:
        try:
            async with aclosing(self.body_iterator):
                await super().stream_response(send)
        except (NotFound, StoreFailed) as error:
            _log.warning("a download was truncated: %s", error)
