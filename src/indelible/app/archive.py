"""A chat with its files in one ZIP archive, and back: here or on another server.

    chat.json                 what `chat.export()` gives
    files/<file id>/<name>    the bytes of each file that the chat names

An archive is written and read by whoever has the chat, with the use cases that the library and a remote client share:
the server needs no route for it, and whoever may read the chat may take its files along. It streams: no more than a
chunk of a file is in memory. An import uploads the files first, as any upload, and then creates the chat, which names
them by their new ids; if it fails in between, the uploads are unused, and are deleted after a day. Only files that the
chat names are uploaded, and nothing is unpacked to disk.

Must stay true (tests/app/test_archive.py): an imported chat has the same messages and the same files; a broken archive
is `Invalid`; an export that fails leaves no archive.
"""

from __future__ import annotations

import asyncio
import lzma
import os
import secrets
import zipfile
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal, TypeVar

from msgspec.structs import replace

from indelible.api.operations import ChatApi, FileApi
from indelible.api.shapes import CreatedChat
from indelible.concurrency.tasks import run_to_completion
from indelible.content import Block, File, ToolResult, encode
from indelible.errors import Invalid, NotFound
from indelible.files.bytes import CHUNK_BYTES
from indelible.store.queries.tree import find_file_ids
from indelible.store.transfer import ChatFile, parse_file

_CHAT: Final = "chat.json"
_SIGNATURE: Final = b"PK\x03\x04"
_FILES: Final = "files/"
_DAMAGED: Final = (zlib.error, lzma.LZMAError)
_MAX_CHAT_BYTES: Final = 256 * 1024 * 1024
_EARLIEST: Final = (1980, 1, 1, 0, 0, 0)
"""Of a ZIP archive. The times of the chat are in its JSON."""
T = TypeVar("T")


async def write_archive(service: ChatApi, chat_id: str, path: Path) -> None:
    """Write a chat and its files to `path`, which appears when it is whole. Raises `Invalid` if it can't be written."""
    content = await service.lists.export_chat(chat_id)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        async with _open(path, part, "w") as archive:
            await _run(path, archive.writestr, zipfile.ZipInfo(_CHAT, _EARLIEST), content, zipfile.ZIP_DEFLATED)
            for file_id in sorted(_list_files(parse_file(content))):
                await _add(service.files, file_id, archive, path)
        await _run(path, os.replace, part, path)
    finally:
        await asyncio.to_thread(part.unlink, missing_ok=True)


async def _add(files: FileApi, file_id: str, archive: zipfile.ZipFile, path: Path) -> None:
    try:
        file = await files.get_file(file_id)
    except NotFound:  # the chat still names it
        return
    info = zipfile.ZipInfo(f"{_FILES}{file_id}/{file.name}", _EARLIEST)
    info.file_size = file.size
    member = await _run(path, archive.open, info, "w")
    try:
        async with files.open_file(file_id) as chunks:
            async for chunk in chunks:
                await _run(path, member.write, chunk)
    finally:
        await _run(path, member.close)


def is_archive(path: Path) -> bool:
    """Whether this is a ZIP archive, whole or not, and not an exported chat alone."""
    try:
        with path.open("rb") as file:
            return file.read(len(_SIGNATURE)) == _SIGNATURE
    except OSError:
        return False


async def read_archive(service: ChatApi, path: Path) -> CreatedChat:
    """Create a chat from an archive. Raises `Invalid` if it is none."""
    async with _open(path, path) as archive:
        chat = parse_file(await _run(path, _read_chat, archive))
        members = dict(_find_members(archive.infolist()))
    named = _list_files(chat)
    new_ids: dict[str, str] = {}
    for file_id, info in members.items():
        if file_id in named:
            reader = _Member(path, info)
            name = info.filename.rpartition("/")[2] or "file"
            stored = await service.files.upload(reader.open_chunks, name=name, size=info.file_size)
            new_ids[file_id] = stored.id
    messages = [
        replace(message, blocks=[_rename(block, new_ids) for block in message.blocks]) for message in chat.messages
    ]
    return await service.lists.import_chat(encode(replace(chat, messages=messages)))


class _Member:
    """A file of an archive, as an upload takes it: each attempt reads it from the beginning."""

    def __init__(self, path: Path, info: zipfile.ZipInfo) -> None:
        self._path = path
        self._info = info

    async def open_chunks(self) -> AsyncIterator[bytes]:
        async with _open(self._path, self._path) as archive:
            member = await _run(self._path, archive.open, self._info)
            while chunk := await _run(self._path, member.read, CHUNK_BYTES):
                yield chunk


def _read_chat(archive: zipfile.ZipFile) -> bytes:
    with archive.open(_CHAT) as member:
        content = member.read(_MAX_CHAT_BYTES + 1)
    if len(content) > _MAX_CHAT_BYTES:
        raise Invalid(f"{_CHAT}: at most {_MAX_CHAT_BYTES:,} bytes.")
    return content


def _find_members(infos: Iterable[zipfile.ZipInfo]) -> Iterable[tuple[str, zipfile.ZipInfo]]:
    for info in infos:
        if info.filename.startswith(_FILES) and not info.is_dir():
            yield info.filename.removeprefix(_FILES).partition("/")[0], info


def _list_files(chat: ChatFile) -> set[str]:
    return {file_id for message in chat.messages for file_id in find_file_ids(message.blocks)}


def _rename(block: Block, new_ids: dict[str, str]) -> Block:
    """The same block with the files' new ids. A file that the archive lacks is only named."""
    if isinstance(block, ToolResult) and block.files:
        return replace(block, files=[_rename_file(file, new_ids) for file in block.files])
    return _rename_file(block, new_ids) if isinstance(block, File) else block


def _rename_file(file: File, new_ids: dict[str, str]) -> File:
    return file if file.file_id is None else replace(file, file_id=new_ids.get(file.file_id))


@asynccontextmanager
async def _open(path: Path, where: Path, mode: Literal["r", "w"] = "r") -> AsyncIterator[zipfile.ZipFile]:
    archive = await _run(path, zipfile.ZipFile, where, mode)
    try:
        yield archive
    finally:
        await _run(path, archive.close)


@run_to_completion
async def _run(path: Path, do: Callable[..., T], *given: object) -> T:
    """Run something that touches the archive in a thread, to its end. What is wrong with it is said in one sentence."""
    try:
        return await asyncio.to_thread(do, *given)
    except OSError as error:
        raise Invalid(f"Can't use {path}: {error.strerror or error}.") from error
    except (zipfile.BadZipFile, KeyError, ValueError, RuntimeError, NotImplementedError, EOFError, *_DAMAGED) as error:
        raise Invalid(f"{path} is not an archive of a chat: {error}") from error
