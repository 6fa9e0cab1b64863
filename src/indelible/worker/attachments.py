"""Files for models: what a message names by id, with its bytes, as far as the model can take them.

Messages hold references, so the bytes are loaded once for each step, right before the prompt is built, and are gone
with the request. Pictures and PDFs go to models that take them (`ModelTraits`), text goes as text, and anything else is
named in a sentence, so that the model knows that there is something it cannot see. The newest files come first when
there are more than fit into a request. A picture that is larger than providers accept is made smaller.

While the database does not answer, a turn waits (outages.py). A file whose bytes cannot be read for another reason
fails the turn visibly, and a retry may succeed: a reply about a picture that the model never got would be worse. A file
that is gone for good is named.

It also stores what tools return (`keep`). The chat uses such a file when the tool's result is recorded, and not before:
a worker that lost the chat can only leave a file that the sweep removes.

Must stay true (tests/worker/test_attachments.py): a prompt never holds a file that the chat does not use, and never
more than the limits.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from indelible.api.shapes import StoredFile
from indelible.content import Block, File, Message, Text, ToolResult
from indelible.errors import ModelFailed, NotFound, Refused, StoreFailed
from indelible.files.bytes import split_chunks
from indelible.files.images import FORMATS, shrink_for_model
from indelible.files.media_types import is_text_type
from indelible.files.store import FileStore
from indelible.models.protocol import ModelTraits
from indelible.store.database.errors import DatabaseUnreachable
from indelible.store.queries.tree import find_file_ids
from indelible.worker.outages import Outages

_log: Final = logging.getLogger(__name__)
MAX_REQUEST_BYTES: Final = 20 * 1024 * 1024
"""The limit for all pictures and documents in one request. Providers accept about 32 MB, and base64 adds a third."""
MAX_PICTURE_BYTES: Final = 3_500_000
MAX_PICTURE_PIXELS: Final = 8000
"""The longest side of a picture. Pictures that exceed this or `MAX_PICTURE_BYTES` are made smaller."""
MAX_TEXT_BYTES: Final = 256 * 1024
"""How much of one text file is sent; the rest is left out."""
_PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_UNREADABLE: Final = "its content cannot be shown to you"
_NO_ROOM: Final = "it is left out here, because newer files fill the request"


class Attachments:
    """The files of one chat, for one turn."""

    def __init__(self, files: FileStore, *, chat_id: str, owner_id: str, outages: Outages) -> None:
        self._files = files
        self._chat_id = chat_id
        self._owner_id = owner_id
        self._outages = outages

    async def load(self, messages: Sequence[Message], traits: ModelTraits) -> Sequence[Message]:
        """The messages with the bytes of their files, for a model with these traits."""
        wanted = {file_id for message in messages for file_id in find_file_ids(message.blocks)}
        if not wanted:
            return messages
        find = partial(self._files.find_used, self._chat_id, sorted(wanted))
        known = await self._outages.wait_out(find, what="finding the files of a prompt")
        loading = _Loading(self._files, known, traits, self._outages)
        newest_first = [await loading.fill(message) for message in reversed(messages)]
        return newest_first[::-1]

    async def keep(self, file: File) -> File | str:
        """Store a file that a tool returned; gives its reference, or why it was not stored."""
        data = file.data
        assert data is not None

        def upload() -> Awaitable[StoredFile]:
            return self._files.upload(
                self._owner_id, _split(data), name=file.name or "file", hint=file.media_type, announced_bytes=len(data)
            )

        try:
            stored = await self._outages.wait_out(upload, what="storing a file of a tool", failure=DatabaseUnreachable)
        except Refused as refusal:
            return str(refusal)
        except StoreFailed as error:
            _log.warning("a file of a tool could not be stored: %s", error)
            return "the file storage failed"
        return stored.to_block()


class _Loading:
    """Loads files until the request is full. Each is loaded once, however often it is named."""

    def __init__(self, files: FileStore, known: dict[str, StoredFile], traits: ModelTraits, outages: Outages) -> None:
        self._files = files
        self._outages = outages
        self._known = known
        self._traits = traits
        self._left_bytes = MAX_REQUEST_BYTES
        self._loaded: dict[str, File | str] = {}

    async def fill(self, message: Message) -> Message:
        if not find_file_ids(message.blocks):
            return message
        return replace(message, blocks=[await self._fill_block(block) for block in message.blocks])

    async def _fill_block(self, block: Block) -> Block:
        if isinstance(block, ToolResult) and block.files:
            shown = [await self._get(file) for file in block.files]
            return replace(block, files=[file for file in shown if isinstance(file, File)])
        if not isinstance(block, File) or block.file_id is None:
            return block
        found = await self._get(block)
        return found if isinstance(found, File) else _describe(block, found)

    async def _get(self, file: File) -> File | str:
        """The file with its bytes, or why it has none."""
        assert file.file_id is not None
        if file.file_id not in self._loaded:
            stored = self._known.get(file.file_id)
            self._loaded[file.file_id] = "it was deleted" if stored is None else await self._load(stored)
        return self._loaded[file.file_id]

    async def _load(self, stored: StoredFile) -> File | str:
        kind = stored.media_type
        is_picture = self._traits.accepts_images and (kind in _PICTURES or kind in FORMATS)
        is_document = self._traits.accepts_pdfs and kind == "application/pdf"
        load = self._load_picture if is_picture else self._load_whole if is_document else self._load_text
        if not (is_picture or is_document or is_text_type(kind)):
            return _UNREADABLE
        try:
            return await load(stored)
        except NotFound:
            return "it was deleted"
        except StoreFailed as error:
            message = f"The file {stored.name} could not be read from the file storage. Retry in a moment."
            raise ModelFailed(message, kind="server_error", detail=str(error)[:500]) from error

    async def _load_text(self, stored: StoredFile) -> File | str:
        size = min(stored.size, MAX_TEXT_BYTES)
        if size > self._left_bytes:
            return _NO_ROOM
        data = (await self._read(stored, size)).decode("utf-8", "replace")
        if size < stored.size:
            data += f"\n\n[The other {stored.size - size:,} bytes of this file are left out.]"
        self._left_bytes -= size
        return File("text/plain", name=stored.name, data=data.encode())

    async def _load_picture(self, stored: StoredFile) -> File | str:
        sides = (stored.width or 0, stored.height or 0)
        fits = stored.size <= MAX_PICTURE_BYTES and max(sides) <= MAX_PICTURE_PIXELS
        if fits and stored.media_type in _PICTURES:
            return await self._load_whole(stored)
        if min(sides) == 0:  # it cannot be decoded, or has more pixels than are decoded here
            return _UNREADABLE
        data = await shrink_for_model(stored.media_type, await self._read(stored, stored.size))
        if data is None or len(data) > MAX_PICTURE_BYTES:
            return _UNREADABLE
        if len(data) > self._left_bytes:
            return _NO_ROOM
        self._left_bytes -= len(data)
        return File("image/webp", name=stored.name, data=data)

    async def _load_whole(self, stored: StoredFile) -> File | str:
        if stored.size > self._left_bytes:
            return _NO_ROOM
        self._left_bytes -= stored.size
        return File(stored.media_type, name=stored.name, data=await self._read(stored, stored.size))

    async def _read(self, stored: StoredFile, size: int) -> bytes:
        read = partial(self._read_once, stored.id, size)
        return await self._outages.wait_out(read, what="reading a file for a prompt", failure=DatabaseUnreachable)

    async def _read_once(self, file_id: str, size: int) -> bytes:
        return b"".join([chunk async for chunk in self._files.read_file(file_id, stop=size)])


def _describe(file: File, why: str) -> Text:
    size = "" if file.size is None else f", {file.size:,} bytes"
    return Text(f"[The attached file {file.name or 'without a name'} ({file.media_type}{size}): {why}.]")


async def _split(data: bytes) -> AsyncIterator[bytes]:
    for chunk in split_chunks(data):
        yield chunk
