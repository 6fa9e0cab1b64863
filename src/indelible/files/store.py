"""Files: their rows, quotas, uploads and uses.

The row of a file is always in the database, so that a message and the use of its file are one transaction; its bytes
are in one of three places (bytes.py).

An upload is three things in this order: a row that says `uploading` and reserves the announced size, the bytes, and one
transaction that makes the row `ready`. Whatever happens in between, the row is there to find the bytes by: an upload
that fails marks its row `deleted`, and one whose process dies is found by the sweep a day later.

Quotas are counted under a lock on the user's row: in the first transaction, whenever a stream that announced too little
grows beyond what is reserved for it, before its bytes are written, and in the last, which gives back what was reserved
too much. Such a stream doubles its reservation, so that counting costs little however long it grows; but it takes at
most half of what is free, so that there is room for others meanwhile. The idempotency key is claimed in the last one,
when the hash of the body is known; a repeated upload whose key is known already is only hashed, not stored.

The sweep marks in one transaction and removes bytes in others, so a crash between the two only repeats work.

Must stay true (tests/files/test_file_store.py, test_file_uses.py): every sentence below, on both databases and in each
place.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from indelible.api.shapes import StoredFile
from indelible.concurrency.tasks import run_to_completion
from indelible.content import encode
from indelible.errors import (
    Invalid,
    NotAllowed,
    NotFound,
    StoredFileNotFound,
    StoreFailed,
    TooLarge,
    TooMany,
    UnsupportedType,
)
from indelible.files.bytes import CHUNK_BYTES, ByteStore, ByteWriter, split_chunks
from indelible.files.images import PictureLine, Size, find_size, make_preview
from indelible.files.media_types import clean_name, find_media_type, is_allowed
from indelible.ids import is_id, new_id
from indelible.store.database.transaction import Database, Row, Transaction, insert, to_time, try_update, update
from indelible.store.outcome import IdempotencyKey, StoredResponse, claim, find_response, settle
from indelible.store.queries.tree import is_file_shown

_log: Final = logging.getLogger(__name__)
_RESERVED_AHEAD: Final = 4 * CHUNK_BYTES
"""How much more than it needs now an upload without an announced size reserves at first; later as much as it has."""
_MIB: Final = 1024 * 1024
UNUSED_FOR: Final = timedelta(days=1)
"""How long an upload is kept that no message uses, finished or not."""

_COLUMNS: Final = "id, name, media_type, size_bytes, sha256, width, height, place, preview, created_at"
_FIND: Final = f"SELECT {_COLUMNS} FROM files WHERE id = $1 AND owner_id = $2 AND state = 'ready'"
_LIST: Final = f"""
SELECT {_COLUMNS} FROM files
WHERE owner_id = $1 AND state = 'ready' AND (CAST($2 AS TEXT) IS NULL OR id < $2) ORDER BY id DESC LIMIT $3
"""
_USED: Final = f"""
SELECT {_COLUMNS} FROM file_uses JOIN files ON files.id = file_uses.file_id
WHERE file_uses.chat_id = $1 AND file_uses.file_id = ANY($2) AND state = 'ready'
"""
_PLACE: Final = "SELECT place FROM files WHERE id = $1 AND state = 'ready'"
_LOCK_USER: Final = "SELECT id FROM users WHERE id = $1 FOR NO KEY UPDATE"
_COUNT: Final = """
SELECT count(*) AS files, coalesce(sum(size_bytes), 0) AS bytes FROM files
WHERE owner_id = $1 AND state <> 'deleted' AND id <> $2
"""
_LOCK_FILE: Final = "SELECT id FROM files WHERE id = $1 AND owner_id = $2 AND state = 'ready' FOR UPDATE"
_IS_USED: Final = "SELECT 1 AS used FROM file_uses WHERE file_id = $1 LIMIT 1"
_DISCARD: Final = "UPDATE files SET state = 'deleted', unused_since = $2 WHERE id = $1 AND state = 'uploading'"
_LOCK_LEFT: Final = """
SELECT id FROM files
WHERE unused_since IS NOT NULL AND (unused_since <= $1 OR state = 'deleted')
ORDER BY unused_since LIMIT $2 FOR UPDATE SKIP LOCKED
"""
_MARK_LEFT: Final = """
UPDATE files SET state = 'deleted' WHERE id = ANY($1) AND unused_since IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM file_uses WHERE file_id = files.id)
"""
_DELETED: Final = "SELECT id, place FROM files WHERE id = ANY($1) AND state = 'deleted'"
_HAS_KEY: Final = "SELECT 1 AS known FROM idempotency_keys WHERE user_id = $1 AND key = $2"


class FileLimits(msgspec.Struct, frozen=True, kw_only=True):
    """See the settings `file_max_bytes`, `user_max_files`, `user_max_file_bytes` and `file_types`."""

    file_bytes: int = 32 * 1024 * 1024
    user_files: int = 10_000
    user_bytes: int = 10 * 1024 * 1024 * 1024
    types: Sequence[str] = ()


class _Received(NamedTuple):
    """What an upload was found to be."""

    size: int
    sha256: bytes
    media_type: str
    picture: Size | None


class FileStore:
    """`bytes_stores` are by place; new files go to the first. `on_left()` wakes the sweep."""

    def __init__(
        self, database: Database, bytes_stores: Sequence[ByteStore], *, limits: FileLimits | None = None
    ) -> None:
        self.limits = limits or FileLimits()
        self.on_left: Callable[[], object] | None = None
        self._database = database
        self._new = bytes_stores[0]
        self._pictures = PictureLine()
        self._by_place = {store.place: store for store in reversed(bytes_stores)}

    # --- uploading ---

    async def upload(
        self,
        owner_id: str,
        chunks: AsyncIterator[bytes],
        *,
        name: str,
        hint: str | None = None,
        announced_bytes: int | None = None,
        key: IdempotencyKey | None = None,
    ) -> StoredFile:
        """Store a file from a stream; when this returns, it is durable.

        * Memory is bounded: no more than a chunk of it is held, however large it is.
        * The type is found in its first bytes; the name and the `hint` only tell kinds of text apart.
        * A file that is too large is `TooLarge`, one of a refused type `UnsupportedType`, an empty one `Invalid`; more
          files or bytes than a user may have are `TooMany`. Then nothing is kept.
        * If the stream fails or the caller is cancelled, no file is visible, and what was written is swept.
        * With a `key`, a repeated upload of the same bytes gets the same file; of other bytes, `Invalid`.
        * Uploads that run at once never hold more bytes together than a user may have, whatever they announced.
        """
        name = clean_name(name)
        self._check_size(announced_bytes or 0)
        if key is not None and await self._has_key(key):
            return await self._repeat(key, chunks)
        file_id = await self._begin(owner_id, name, announced_bytes or 0)
        writer = self._new.open_writer(file_id, "content")
        try:
            reserved = _Reservation(partial(self._reserve, owner_id, file_id), announced_bytes or 0)
            received = await self._receive(writer, chunks, reserved, name=name, hint=hint)
            await writer.commit()
            return await self._finish(owner_id, file_id, received, key=key)
        except BaseException:
            await self._discard(file_id, writer)
            raise

    async def _has_key(self, key: IdempotencyKey) -> bool:
        row = await self._database.read(lambda given: given.one(_HAS_KEY, key.user_id, key.key), single=True)
        return row is not None

    async def _repeat(self, key: IdempotencyKey, chunks: AsyncIterator[bytes]) -> StoredFile:
        """The response that this upload got before, if these are the same bytes."""
        digest, size = hashlib.sha256(), 0
        async for chunk in chunks:
            size += len(chunk)
            self._check_size(size)
            digest.update(chunk)
        seen = key._replace(body_hash=digest.digest())
        given = await self._database.read(lambda transaction: find_response(transaction, seen))
        if given is None:
            raise StoreFailed("The idempotency key expired during the upload. Retry.")
        return msgspec.json.decode(given.body, type=StoredFile)

    async def _begin(self, owner_id: str, name: str, announced_bytes: int) -> str:
        file_id = new_id("file")

        async def reserve(transaction: Transaction) -> None:
            await self._check_quota(transaction, owner_id, file_id, announced_bytes)
            now = await transaction.now()
            row = {"id": file_id, "owner_id": owner_id, "state": "uploading", "name": name, "media_type": ""}
            row |= {"place": self._new.place, "preview": "none"}
            times = {"unused_since": now, "created_at": now}
            await insert(transaction, "files", {**row, "size_bytes": announced_bytes, **times})

        await self._database.write(reserve)
        return file_id

    async def _receive(
        self, writer: ByteWriter, chunks: AsyncIterator[bytes], reserved: _Reservation, *, name: str, hint: str | None
    ) -> _Received:
        digest, size = hashlib.sha256(), 0
        start: bytes | None = None
        media_type = ""
        async for chunk in _regroup(chunks):
            size += len(chunk)
            self._check_size(size)
            if start is None:
                start = chunk
                media_type = find_media_type(start, name=name, hint=hint)
                if not is_allowed(media_type, self.limits.types):
                    allowed = ", ".join(self.limits.types)
                    raise UnsupportedType(f"Files of type {media_type} are not accepted here. Accepted: {allowed}.")
            digest.update(chunk)
            await reserved.grow(size)
            await writer.write(chunk)
        if start is None:
            raise Invalid("The file is empty.")
        return _Received(size, digest.digest(), media_type, await find_size(media_type, start))

    async def _finish(
        self, owner_id: str, file_id: str, received: _Received, *, key: IdempotencyKey | None
    ) -> StoredFile:
        """Make the file visible, in one transaction with the key."""
        key = None if key is None else key._replace(body_hash=received.sha256)

        async def publish(transaction: Transaction) -> StoredFile:
            now = await transaction.now()
            if key is not None:
                given = await claim(transaction, key, now)
                if given is not None:  # another one with this key was quicker
                    await transaction.run(_DISCARD, file_id, now)
                    return msgspec.json.decode(given.body, type=StoredFile)
            await self._check_quota(transaction, owner_id, file_id, received.size)
            picture = received.picture
            found = {"media_type": received.media_type, "size_bytes": received.size, "sha256": received.sha256}
            found |= {} if picture is None else {**picture._asdict(), "preview": "unmade"}
            if not await try_update(transaction, "files", {**found, "state": "ready"}, id=file_id, state="uploading"):
                raise StoreFailed("The upload took more than a day, and was removed.")
            stored = _read(await transaction.one(_FIND, file_id, owner_id))
            if key is not None:
                await settle(transaction, key, StoredResponse(201, encode(stored)), None)
            return stored

        stored = await self._database.write(publish)
        if stored.id != file_id:
            self._notify_left()
        return stored

    @run_to_completion
    async def _discard(self, file_id: str, writer: ByteWriter) -> None:
        """Leave nothing visible. If the database is unavailable, the sweep finds the row a day later."""
        try:
            await writer.abort()

            async def mark(transaction: Transaction) -> None:
                await transaction.run(_DISCARD, file_id, await transaction.now())

            await self._database.write(mark)
        except StoreFailed as error:
            _log.warning("a failed upload could not be removed now; it will be in a day: %s", error)
        self._notify_left()

    def _check_size(self, size: int) -> None:
        if size > self.limits.file_bytes:
            raise TooLarge(f"The file is larger than {_write_size(self.limits.file_bytes)}.")

    async def _reserve(self, owner_id: str, file_id: str, size: int, step: int) -> int:
        """Reserve room for `size` bytes of an upload, and up to `step` more of what is free; returns how many."""

        async def grow(transaction: Transaction) -> int:
            free = await self._check_quota(transaction, owner_id, file_id, size)
            reserved = min(size + min(step, free // 2), self.limits.file_bytes)
            if not await try_update(transaction, "files", {"size_bytes": reserved}, id=file_id, state="uploading"):
                raise StoreFailed("The upload took more than a day, and was removed.")
            return reserved

        return await self._database.write(grow)

    async def _check_quota(self, transaction: Transaction, owner_id: str, file_id: str, size: int) -> int:
        """How many bytes are free beyond `size` more. Raises `TooMany` if there is not even room for these."""
        await transaction.one(_LOCK_USER, owner_id)
        row = await transaction.one(_COUNT, owner_id, file_id)
        if row["files"] >= self.limits.user_files:
            raise TooMany(f"You have {self.limits.user_files:,} files, the limit. Delete some first.")
        if int(row["bytes"]) + size > self.limits.user_bytes:
            raise TooMany(f"Your files would exceed {self.limits.user_bytes:,} bytes, the limit. Delete some first.")
        return self.limits.user_bytes - int(row["bytes"]) - size

    # --- reading ---

    async def list_files(self, owner_id: str, *, before: str | None = None, limit: int = 50) -> list[StoredFile]:
        """The files of a user, newest first, older than the file `before`."""
        rows = await self._database.read(lambda given: given.all(_LIST, owner_id, before, limit), single=True)
        return [_read(row) for row in rows]

    async def get_file(self, owner_id: str, file_id: str) -> StoredFile:
        """One file of this user. Raises `NotFound` if there is none, or if it is another user's."""
        return _read(await self._find(owner_id, file_id))

    async def find_used(self, chat_id: str, file_ids: Sequence[str]) -> dict[str, StoredFile]:
        """Those of these files that the chat uses, by id."""
        wanted = sorted({file_id for file_id in file_ids if is_id(file_id)})
        rows = await self._database.read(lambda given: given.all(_USED, chat_id, wanted), single=True)
        return {row["id"]: _read(row) for row in rows}

    async def is_shown(self, chat_id: str, file_id: str) -> bool:
        """Whether people see this file in the chat: a message of the active branch, or a running tool's result, has it.

        * A file that is only queued, only for the model, or only on another branch is not shown.
        """
        if not is_id(file_id) or file_id not in await self.find_used(chat_id, [file_id]):
            return False
        return await self._database.read(lambda given: is_file_shown(given, chat_id, file_id))

    async def read_file(self, file_id: str, *, start: int = 0, stop: int | None = None) -> AsyncGenerator[bytes, None]:
        """The bytes of a file from `start` to before `stop`, in chunks. The caller has checked the owner."""
        row = await self._database.read(lambda given: given.one(_PLACE, file_id), single=True)
        if row is None:
            raise StoredFileNotFound
        async for chunk in self._at(row["place"]).read(file_id, "content", start=start, stop=stop):
            yield chunk

    async def load_preview(self, owner_id: str, file_id: str) -> bytes:
        """A small WebP picture of an image. It is made when it is first wanted, and stored.

        * Raises `NotFound` if the file has none, which an image that cannot be decoded has not.
        """
        row = await self._find(owner_id, file_id)
        if row["preview"] == "unmade":
            async with self._pictures.wait_for_turn(owner_id):  # the whole file is in memory meanwhile
                row = await self._find(owner_id, file_id)
                if row["preview"] == "unmade":
                    return await self._make_preview(row)
        if row["preview"] == "none":
            raise NotFound("This file has no preview.")
        return b"".join([chunk async for chunk in self._at(row["place"]).read(file_id, "preview")])

    @run_to_completion
    async def _make_preview(self, row: Row) -> bytes:
        """Once begun it is not left: the decoder could not be stopped, and the next one would wait for it anyway."""
        store = self._at(row["place"])
        data = b"".join([chunk async for chunk in store.read(row["id"], "content")])
        preview = await make_preview(row["media_type"], data)
        await self._keep_preview(store, row["id"], preview)
        if preview is None:
            raise NotFound("This file has no preview.")
        return preview

    @run_to_completion
    async def _keep_preview(self, store: ByteStore, file_id: str, preview: bytes | None) -> None:
        """Store a preview, or that there can be none. A file that was deleted meanwhile gets none."""
        kept = "UPDATE files SET preview = $2 WHERE id = $1 AND state = 'ready'"
        if preview is None:
            await self._database.write(lambda given: given.run(kept, file_id, "none"), single=True)
            return
        writer = store.open_writer(file_id, "preview")
        try:
            for chunk in split_chunks(preview):
                await writer.write(chunk)
            await writer.commit()
        except BaseException:
            await writer.abort()
            raise
        if not await self._database.write(lambda given: given.run(kept, file_id, "made"), single=True):
            await store.delete(file_id)

    # --- deleting ---

    async def delete_file(self, owner_id: str, file_id: str) -> None:
        """Delete a file. Raises `NotAllowed` while a chat uses it."""

        async def mark(transaction: Transaction) -> None:
            if not is_id(file_id) or await transaction.one(_LOCK_FILE, file_id, owner_id) is None:
                raise StoredFileNotFound
            if await transaction.one(_IS_USED, file_id) is not None:
                detail = "A chat uses this file. It is deleted with the last chat that uses it."
                raise NotAllowed(command="delete_file", state="in_use", detail=detail)
            changes = {"state": "deleted", "unused_since": await transaction.now()}
            await update(transaction, "files", changes, id=file_id)

        await self._database.write(mark)
        self._notify_left()

    async def sweep(self, *, limit: int = 100) -> int:
        """Remove what is deleted, and what was uploaded a day ago and never used; returns how many files.

        * A file that a chat uses is never removed.
        * Bytes go in short transactions, so that other writers are not blocked (R12).
        """

        async def mark(transaction: Transaction) -> list[Row]:
            before = await transaction.now() - UNUSED_FOR
            left = [row["id"] for row in await transaction.all(_LOCK_LEFT, before, limit)]
            if not left:
                return []
            await transaction.run(_MARK_LEFT, left)
            return await transaction.all(_DELETED, left)

        removed = 0
        for row in await self._database.write(mark):
            if row["place"] not in self._by_place:
                _log.warning("the bytes of %s are in %s, which is not configured; they stay there", *row[:2])
                continue
            await self._at(row["place"]).delete(row["id"])
            removed += await self._forget(row["id"])
        return removed

    async def _forget(self, file_id: str) -> int:
        gone = "DELETE FROM files WHERE id = $1 AND state = 'deleted'"
        return await self._database.write(lambda given: given.run(gone, file_id), single=True)

    def _notify_left(self) -> None:
        if self.on_left is not None:
            self.on_left()

    # --- rows ---

    async def _find(self, owner_id: str, file_id: str) -> Row:
        row = None
        if is_id(file_id):
            row = await self._database.read(lambda given: given.one(_FIND, file_id, owner_id), single=True)
        if row is None:
            raise StoredFileNotFound
        return row

    def _at(self, place: Any) -> ByteStore:
        if place not in self._by_place:
            raise StoreFailed(f"This file is stored in {place}, which the setting `files` no longer names.")
        return self._by_place[place]


class _Reservation:
    """The room that an upload has within its user's quota. A stream that announced nothing reserves as it grows."""

    def __init__(self, reserve: Callable[[int, int], Awaitable[int]], reserved_bytes: int) -> None:
        self._reserve = reserve
        self._reserved_bytes = reserved_bytes

    async def grow(self, size: int) -> None:
        """Room for `size` bytes. Raises `TooMany` if there is none."""
        if size > self._reserved_bytes:
            step = max(size, _RESERVED_AHEAD)
            self._reserved_bytes = await self._reserve(size, step)


def _write_size(size_bytes: int) -> str:
    return f"{size_bytes:,} bytes" if size_bytes % _MIB else f"{size_bytes // _MIB:,} MB"


def _read(row: Row) -> StoredFile:
    return StoredFile(
        id=row["id"],
        name=row["name"],
        media_type=row["media_type"],
        size=row["size_bytes"],
        sha256=bytes(row["sha256"]).hex(),
        width=row["width"],
        height=row["height"],
        has_preview=row["preview"] != "none",
        created_at=to_time(row["created_at"]),
    )


async def _regroup(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in chunks of `CHUNK_BYTES`, the last one perhaps smaller."""
    held = bytearray()
    async for chunk in chunks:
        held += chunk
        while len(held) >= CHUNK_BYTES:
            yield bytes(held[:CHUNK_BYTES])
            del held[:CHUNK_BYTES]
    if held:
        yield bytes(held)
