"""Files on a server behind a URL (see service/files.py for what each method promises).

An upload is a stream with an idempotency key: if the connection breaks, the stream is opened again and sent again, and
the server stores it once. The client asks before it sends (`Expect: 100-continue`), so a file that is refused for its
size is refused before any of it travels. A download that breaks is continued from where it stopped.

Must stay true (tests/app/test_same_script.py, tests/server/test_file_routes.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import msgspec

from indelible.client.wire import ServerFailed, WireClient
from indelible.files.protocol import CHUNK_BYTES, StoredFile
from indelible.service.files import FilePage, OpenChunks

_BYTES: Final = "application/octet-stream"
_RESUMED: Final = 5
"""How often a download that brought something is continued."""


class RemoteFiles:
    """The files of the user of the token."""

    def __init__(self, wire: WireClient) -> None:
        self._wire = wire

    async def upload(
        self, open_chunks: OpenChunks, *, name: str, media_type: str | None = None, size: int | None = None
    ) -> StoredFile:
        headers = {"Content-Type": media_type or _BYTES}
        if size is not None:
            headers["Content-Length"] = str(size)
        answer = await self._wire.send_bytes("/files", open_chunks, query={"name": name}, headers=headers)
        return msgspec.convert(answer, StoredFile)

    async def list_files(self, *, limit: int = 50, cursor: str | None = None) -> FilePage:
        return msgspec.convert(await self._wire.read_json("/files", {"limit": limit, "cursor": cursor}), FilePage)

    async def get_file(self, file_id: str) -> StoredFile:
        return msgspec.convert(await self._wire.read_json(f"/files/{file_id}/info"), StoredFile)

    @asynccontextmanager
    async def open_file(
        self, file_id: str, *, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        size = (await self.get_file(file_id)).size
        yield self._read(file_id, start, size if stop is None else min(stop, size))

    async def _read(self, file_id: str, start: int, stop: int) -> AsyncIterator[bytes]:
        place, resumed = start, 0
        while place < stop:
            began_at = place
            try:
                headers = {"Range": f"bytes={place}-{stop - 1}"}
                async with self._wire.open_bytes(f"/files/{file_id}", headers=headers) as response:
                    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                        place += len(chunk)
                        yield chunk
            except (ServerFailed, aiohttp.ClientError):
                resumed += 1
                if place == began_at or resumed > _RESUMED:
                    raise

    async def load_preview(self, file_id: str) -> bytes:
        async with self._wire.open_bytes(f"/files/{file_id}/preview") as response:
            return await response.read()

    async def delete_file(self, file_id: str) -> None:
        await self._wire.write_json("DELETE", f"/files/{file_id}")
