"""Files on a server behind a URL (see service/files.py for what each method promises).

An upload is a stream with an idempotency key: if the connection breaks, the stream is opened again and sent again, and
the server stores it once. The client asks before it sends (`Expect: 100-continue`), so a file that is refused for its
size is refused before any of it travels. A download that breaks is continued from where it stopped, also after a
restart of the server.

Must stay true (tests/app/test_same_script.py, tests/server/test_file_routes.py,
tests/server/test_unreliable_servers.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final

from indelible.api.shapes import FilePage, StoredFile
from indelible.client.http_transport import HttpTransport
from indelible.service.files import OpenChunks

_BYTES: Final = "application/octet-stream"


class RemoteFiles:
    """The files of the user of the token."""

    def __init__(self, http: HttpTransport) -> None:
        self._http = http

    async def upload(
        self, open_chunks: OpenChunks, *, name: str, media_type: str | None = None, size: int | None = None
    ) -> StoredFile:
        headers = {"Content-Type": media_type or _BYTES}
        if size is not None:
            headers["Content-Length"] = str(size)
        return await self._http.upload(StoredFile, "/files", open_chunks, query={"name": name}, headers=headers)

    async def list_files(self, *, limit: int = 50, cursor: str | None = None) -> FilePage:
        return await self._http.read(FilePage, "/files", {"limit": limit, "cursor": cursor})

    async def get_file(self, file_id: str) -> StoredFile:
        return await self._http.read(StoredFile, f"/files/{file_id}/info")

    @asynccontextmanager
    async def open_file(
        self, file_id: str, *, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        size = (await self.get_file(file_id)).size
        stop = size if stop is None else min(stop, size)
        async with aclosing(self._http.download(f"/files/{file_id}", start, stop)) as chunks:
            yield chunks

    async def load_preview(self, file_id: str) -> bytes:
        return await self._http.read_bytes(f"/files/{file_id}/preview")

    async def delete_file(self, file_id: str) -> None:
        await self._http.delete(f"/files/{file_id}")
