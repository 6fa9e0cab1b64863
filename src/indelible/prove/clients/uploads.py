"""Uploading the files of a proof as a client does, and reading all of them back.

The files of one message are uploaded at the same time and in pieces, so that a kill finds uploads in every state. The
client repeats a broken upload with the same key; it has to be one file in the end. Now and then a user breaks off an
upload in the middle, of which nothing may ever be seen.

checks/files.py compares what was accepted with what is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Sequence
from typing import Final

from indelible.client.files import RemoteFiles
from indelible.client.remote import RemoteService
from indelible.errors import IndelibleError
from indelible.prove.checks.evidence import StoredCopy, UploadLog
from indelible.prove.files import ProofFile
from indelible.prove.script import draw_file_count
from indelible.service.files import read_all

_PIECE_BYTES: Final = 64 * 1024
_PIECES_OF_A_SMALL_FILE: Final = 3
_PAUSE_S: Final = 0.005
_BROKEN_OFF: Final = 0.1
_PAGE: Final = 200


class Uploader:
    """The uploads of one user, noted in the `log` of all."""

    def __init__(self, client: RemoteService, log: UploadLog, *, number: int, seed: int) -> None:
        self._files = client.files
        self._log = log
        self._chance = random.Random(f"files of {number}, {seed}")  # noqa: S311  (it only has to be reproducible)

    def draw_count(self) -> int:
        """How many files the next message has."""
        return draw_file_count(self._chance)

    async def upload(self, files: Sequence[ProofFile]) -> list[str]:
        """Upload these files at the same time; returns their ids, in order."""
        if self._chance.random() < _BROKEN_OFF:
            await self._break_off()
        return list(await asyncio.gather(*(upload(self._files, self._log, file) for file in files)))

    async def _break_off(self) -> None:
        """Send the beginning of a file, and hang up."""
        file = self._log.name_another("other")
        has_begun = asyncio.Event()

        async def begin() -> AsyncIterator[bytes]:
            yield file.data[:_PIECE_BYTES]
            has_begun.set()
            await asyncio.Event().wait()

        sending = asyncio.create_task(self._files.upload(begin, name=file.name, size=len(file.data)))
        beginning = asyncio.create_task(has_begun.wait())
        try:
            await asyncio.wait([sending, beginning], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            beginning.cancel()
            await asyncio.wait([sending, beginning])
        self._log.broken_off.append(file.key)
        if not sending.cancelled():
            sending.result()  # a refusal is a fault of the server


async def upload(files: RemoteFiles, log: UploadLog, file: ProofFile) -> str:
    """Upload a file in pieces, and note that it was accepted."""
    data = file.data
    size = max(1, min(_PIECE_BYTES, len(data) // _PIECES_OF_A_SMALL_FILE))

    async def read_pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), size):
            yield data[start : start + size]
            await asyncio.sleep(_PAUSE_S)

    stored = await files.upload(read_pieces, name=file.name, size=len(data))
    log.accepted[stored.id] = file.key
    return stored.id


async def upload_unused(clients: Sequence[RemoteService], log: UploadLog) -> None:
    """Upload a file that no message will use, to each of these servers at the same time."""
    await asyncio.gather(*(upload(client.files, log, log.name_another("picture")) for client in clients))


async def delete_files(client: RemoteService, file_ids: Sequence[str]) -> None:
    for file_id in file_ids:
        await client.files.delete_file(file_id)


async def load_copies(client: RemoteService) -> list[StoredCopy]:
    """Every file that the server lists, with the hash of what a download of it brings."""
    files, found = client.files, []
    cursor: str | None = None
    while True:
        page = await files.list_files(limit=_PAGE, cursor=cursor)
        for listed in page.items:
            try:
                brought = hashlib.sha256(await read_all(files, listed.id)).hexdigest()
            except IndelibleError as error:
                brought = str(error)
            found.append(StoredCopy(listed.id, listed.name, listed.media_type, listed.sha256, brought))
        cursor = page.next
        if cursor is None:
            return found
