"""Every use case of files, for one user, in process.

`FileApi` (api/operations.py) says what each one promises; `LocalFiles` implements it here, and `RemoteFiles`
(client/client.py) over HTTP. A file of another user is `NotFound`, exactly as one that does not exist, unless a chat
that shows it is shared.

An upload takes a function that opens the stream, not the stream itself: a client whose connection broke sends the bytes
again from the beginning.

A guest opens a file by the authority of one share: the chat it shares has to use the file, and people have to see it
there. A file that is only queued, only for the model, or in another chat of the same owner does not exist for a guest.
A grant names its share, and a download ends with it.

Must stay true (tests/app/test_same_script.py, tests/server/test_file_routes.py, tests/server/test_shared_files.py): one
script gives the same results with either; no use case changes a file of another user, or reads one that no shared chat
shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from indelible.api.inputs import OpenChunks
from indelible.api.operations import FileApi
from indelible.api.shapes import FilePage, Link, StoredFile
from indelible.errors import Invalid, NotFound, StoredFileNotFound
from indelible.files.bytes import CHUNK_BYTES, split_chunks
from indelible.files.store import FileStore
from indelible.ids import is_id
from indelible.store.outcome import IdempotencyKey
from indelible.store.shares import ShareStore


class FileGrant(NamedTuple):
    """The right to open a file. `share_id` is the share that it depends on; None for the owner."""

    file: StoredFile
    owner_id: str
    share_id: str | None = None


class LocalFiles:
    """The files of one user in the store of this process. Without `shares`, a file is its owner's alone."""

    def __init__(
        self, files: FileStore, get_user_id: Callable[..., Awaitable[str]], shares: ShareStore | None = None
    ) -> None:
        self._files = files
        self._get_user_id = get_user_id
        self._shares = shares

    async def upload(
        self,
        open_chunks: OpenChunks,
        *,
        name: str,
        media_type: str | None = None,
        size: int | None = None,
        key: IdempotencyKey | None = None,
    ) -> StoredFile:
        """With a `key`, a repeated request gets the same file."""
        user_id = await self._get_user_id(create=True)
        return await self._files.upload(
            user_id, open_chunks(), name=name, hint=media_type, announced_bytes=size, key=key
        )

    async def list_files(self, *, limit: int = 50, cursor: str | None = None) -> FilePage:
        if cursor is not None and not is_id(cursor):
            raise Invalid("cursor: must be the `next` of the previous page.")
        found = await self._files.list_files(await self._get_user_id(), before=cursor, limit=limit + 1)
        items = found[:limit]
        return FilePage(items=items, next=items[-1].id if len(found) > limit else None)

    async def find_grant(self, file_id: str, link: Link | None = None) -> FileGrant:
        """What lets this user open the file, or whoever has this link to one of the user's chats. Raises `NotFound`."""
        if link is not None:
            file = await self._files.get_file(link.owner_id, file_id)
            if not await self._files.is_shown(link.chat_id, file_id):
                raise StoredFileNotFound
            return FileGrant(file, link.owner_id, link.share_id)
        user_id = await self._get_user_id()
        try:
            return FileGrant(await self._files.get_file(user_id, file_id), user_id)
        except NotFound:
            for one in [] if self._shares is None else await self._shares.find_file_shares(user_id, file_id):
                if await self._files.is_shown(one.chat_id, file_id):
                    return FileGrant(await self._files.get_file(one.owner_id, file_id), one.owner_id, one.share_id)
            raise

    async def get_file(self, file_id: str) -> StoredFile:
        return (await self.find_grant(file_id)).file

    @asynccontextmanager
    async def open_file(
        self, file_id: str, *, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        async with aclosing(self.read_granted(await self.find_grant(file_id), start, stop)) as chunks:
            yield chunks

    def read_granted(self, grant: FileGrant, start: int, stop: int | None) -> AsyncGenerator[bytes, None]:
        return self._files.read_file(grant.file.id, start=start, stop=stop)

    async def load_preview(self, file_id: str) -> bytes:
        return await self.load_granted_preview(await self.find_grant(file_id))

    async def load_granted_preview(self, grant: FileGrant) -> bytes:
        return await self._files.load_preview(grant.owner_id, grant.file.id)

    async def delete_file(self, file_id: str) -> None:
        await self._files.delete_file(await self._get_user_id(), file_id)


# --- what the library takes ------------------------------------------------------------------


class Upload:
    """A path or bytes, as the argument of an upload."""

    def __init__(self, source: str | Path | bytes, name: str | None) -> None:
        self._source = source
        self.name = name or (Path(source).name if not isinstance(source, bytes) else "file")

    async def find_size(self) -> int:
        """Raises `Invalid` if there is no such file here."""
        if isinstance(self._source, bytes):
            return len(self._source)
        path = Path(self._source)
        try:
            return (await asyncio.to_thread(path.stat)).st_size
        except OSError as error:
            raise Invalid(f"Can't read {path}: {error.strerror}.") from error

    async def open_chunks(self) -> AsyncIterator[bytes]:
        if isinstance(self._source, bytes):
            for chunk in split_chunks(self._source):
                yield chunk
            return
        path = Path(self._source)
        try:
            with await asyncio.to_thread(path.open, "rb") as file:
                while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                    yield chunk
        except OSError as error:
            raise Invalid(f"Can't read {path}: {error.strerror}.") from error


async def read_all(files: FileApi, file_id: str) -> bytes:
    """All bytes of a file. Raises `NotFound` if it was deleted meanwhile."""
    size = (await files.get_file(file_id)).size
    async with files.open_file(file_id) as chunks:
        data = b"".join([chunk async for chunk in chunks])
    if len(data) != size:
        raise StoredFileNotFound
    return data
