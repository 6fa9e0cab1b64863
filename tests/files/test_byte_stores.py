"""Every byte store does the same: what was committed is read, in whole or in part, and `delete` leaves nothing."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.s3_server import S3Server

from indelible.app.compose import open_bytes
from indelible.errors import Invalid, NotFound, StoreFailed
from indelible.files import bytes as byte_stores
from indelible.files.bytes import CHUNK_BYTES, ByteStore, DatabaseBytes, DirectoryBytes
from indelible.files.s3 import Credentials, S3Bytes
from indelible.ids import new_id
from indelible.store.database.transaction import Database, Transaction, insert
from indelible.testing import ManualClock

DATA = bytes(range(256)) * 1024 * 2 + b"the rest"  # two chunks and a bit
DEADLINE_S = 30
CHUNKS = [DATA[:CHUNK_BYTES], DATA[CHUNK_BYTES : 2 * CHUNK_BYTES], DATA[2 * CHUNK_BYTES :]]
RANGES = [(0, None), (0, 10), (CHUNK_BYTES - 1, CHUNK_BYTES + 1), (CHUNK_BYTES, 2 * CHUNK_BYTES), (5, None), (7, 7)]


@pytest.fixture(params=["database", "directory", "s3"])
async def store(request: pytest.FixtureRequest, opened: Database, tmp_path: Path) -> AsyncIterator[ByteStore]:
    if request.param == "s3":
        async with S3Server.run() as server:
            found = await open_bytes(server.place, opened, clock=ManualClock(), environment=server.environment)
            yield found
            await found.close()
    else:
        place = f"directory:{tmp_path}/files" if request.param == "directory" else "database"
        yield await open_bytes(place, opened, clock=ManualClock())


async def make_row(database: Database) -> str:
    """A file to which bytes may belong."""
    file_id = new_id("file")

    async def add(transaction: Transaction) -> None:
        now = await transaction.now()
        row = {
            "id": file_id,
            "owner_id": "user_ada",
            "state": "uploading",
            "name": "a",
            "media_type": "",
            "preview": "none",
        }
        await insert(transaction, "files", {**row, "size_bytes": 0, "place": "database", "created_at": now})

    await database.write(add)
    return file_id


async def write(store: ByteStore, file_id: str) -> None:
    writer = store.open_writer(file_id, "content")
    for chunk in CHUNKS:
        await writer.write(chunk)
    await writer.commit()


async def read(store: ByteStore, file_id: str, start: int = 0, stop: int | None = None) -> bytes:
    return b"".join([chunk async for chunk in store.read(file_id, "content", start=start, stop=stop)])


async def test_what_was_committed_is_read_in_whole_and_in_part(store: ByteStore, opened: Database) -> None:
    file_id = await make_row(opened)
    await write(store, file_id)
    for start, stop in RANGES:
        assert await read(store, file_id, start, stop) == DATA[start:stop], (start, stop)

    preview = store.open_writer(file_id, "preview")
    await preview.write(b"small")
    await preview.commit()
    assert [chunk async for chunk in store.read(file_id, "preview")] == [b"small"]
    assert await read(store, file_id) == DATA


async def test_delete_removes_every_variant_and_may_be_repeated(store: ByteStore, opened: Database) -> None:
    file_id, other = await make_row(opened), await make_row(opened)
    await write(store, file_id)
    await write(store, other)
    for _ in range(2):
        await store.delete(file_id)
        with pytest.raises(NotFound):
            await read(store, file_id)
    assert await read(store, other) == DATA


async def test_an_aborted_write_is_removed_too(store: ByteStore, opened: Database) -> None:
    file_id = await make_row(opened)
    writer = store.open_writer(file_id, "content")
    await writer.write(CHUNKS[0])
    await writer.abort()
    await store.delete(file_id)
    with pytest.raises(NotFound):
        await read(store, file_id)


# --- a directory ---


async def test_a_file_in_a_directory_is_its_owners_and_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    store = DirectoryBytes(tmp_path / "deep" / "files")
    await store.open()
    writer = store.open_writer("file_abcd", "content")
    await writer.write(b"half")
    assert [path.name for path in (tmp_path / "deep/files").rglob("*") if path.is_file()] == [".file_abcd.part"]
    with pytest.raises(NotFound):
        await read(store, "file_abcd")
    await writer.commit()
    path = tmp_path / "deep/files/cd/file_abcd"
    assert path.read_bytes() == b"half"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    left = store.open_writer("file_abcd", "preview")
    await left.write(b"of a crash")
    await left.abort()
    await store.delete("file_abcd")
    assert [path for path in (tmp_path / "deep/files").rglob("*") if path.is_file()] == []


async def test_a_cancelled_write_ends_before_its_file_is_closed(tmp_path: Path) -> None:
    store = DirectoryBytes(tmp_path)
    writer = store.open_writer("file_abcd", "content")
    await writer.write(b"one")
    writing = asyncio.create_task(writer.write(bytes(CHUNK_BYTES)))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await writer.abort()
    assert (tmp_path / "cd/.file_abcd.part").stat().st_size == CHUNK_BYTES + 3


class SlowDisk:
    """A call that reaches the disk in a thread stands still there until it is released."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.has_ended = False

    def write(self, chunk: bytes) -> int:
        self.has_begun.set()
        assert self.may_end.wait(DEADLINE_S)
        self.has_ended = True
        return len(chunk)


async def cancel_repeatedly(disk: SlowDisk, writing: asyncio.Task[None]) -> None:
    assert await asyncio.to_thread(disk.has_begun.wait, DEADLINE_S)
    for _ in range(3):
        writing.cancel()
        await asyncio.wait([writing], timeout=0.01)
    was_waiting = not writing.done()
    disk.may_end.set()
    await asyncio.wait([writing])
    assert writing.cancelled()
    assert was_waiting


@pytest.mark.parametrize("place", ["directory", "s3"])
async def test_a_write_that_is_cancelled_repeatedly_ends_before_its_caller(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk()
    if place == "directory":
        monkeypatch.setattr(byte_stores, "_write_all", lambda file, chunk: disk.write(chunk))
        store: ByteStore = DirectoryBytes(tmp_path)
    else:
        monkeypatch.setattr("tempfile.TemporaryFile", lambda: disk)
        store = S3Bytes("", prefix="", region="", credentials=Credentials("", ""), clock=ManualClock())
    writer = store.open_writer("file_abcd", "content")
    await cancel_repeatedly(disk, asyncio.create_task(writer.write(b"rain")))
    assert disk.has_ended


async def test_a_file_whose_first_write_is_cancelled_while_it_is_opened_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, create, opened = SlowDisk(), byte_stores._create, []

    def create_slowly(path: Path) -> int:
        disk.write(b"")
        opened.append(create(path))
        return opened[0]

    monkeypatch.setattr(byte_stores, "_create", create_slowly)
    writer = DirectoryBytes(tmp_path).open_writer("file_abcd", "content")
    await cancel_repeatedly(disk, asyncio.create_task(writer.write(b"rain")))
    await writer.abort()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


async def test_a_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match="can't create"):
        await DirectoryBytes(tmp_path / "file" / "files").open()


async def test_a_full_disk_is_a_failure_of_the_store() -> None:
    writer = DirectoryBytes(Path("/dev/full/x")).open_writer("file_abcd", "content")
    with pytest.raises(StoreFailed):
        await writer.write(b"x")


# --- the setting ---


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("tape", "unknown place"),
        ("directory:", "unknown place"),
        ("s3://", "not an S3 place"),
        ("s3://key:secret@bucket/x", "not an S3 place"),
        ("s3://bucket?color=red", "not an S3 place"),
        ("s3://bucket?endpoint=ftp://host", "endpoint must begin"),
    ],
)
async def test_a_wrong_place_is_reported_without_its_keys(opened: Database, place: str, problem: str) -> None:
    environment = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    with pytest.raises(Invalid, match=problem) as raised:
        await open_bytes(place, opened, clock=ManualClock(), environment=environment)
    assert "secret" not in str(raised.value)


async def test_s3_without_keys_names_the_variables(opened: Database) -> None:
    with pytest.raises(Invalid, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"):
        await open_bytes("s3://bucket", opened, clock=ManualClock(), environment={})


def test_the_default_is_the_database(opened: Database) -> None:
    assert DatabaseBytes(opened).place == "database"
