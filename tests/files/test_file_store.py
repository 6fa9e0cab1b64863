"""The store of files keeps its promises, on both databases.

`KEPT_BY` names, sentence by sentence, a test that fails when a promise of `FileStore` is not true any more.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import io
import re
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.store.driver import OWNER

from indelible.api.shapes import StoredFile
from indelible.errors import Invalid, NotFound, TooLarge, TooMany, UnsupportedType
from indelible.files.bytes import CHUNK_BYTES, DatabaseBytes, DirectoryBytes, FileVariant
from indelible.files.store import FileLimits, FileStore
from indelible.store.database.transaction import Database, Transaction
from indelible.store.outcome import IdempotencyKey

KEPT_BY = {
    "upload": {
        "Store a file from a stream": "a_file_is_stored_as_it_came_and_known_by_its_bytes",
        "Memory is bounded": "an_upload_holds_no_more_than_a_chunk",
        "The type is found": "a_file_is_stored_as_it_came_and_known_by_its_bytes",
        "A file that is too large": "what_is_refused_leaves_nothing",
        "If the stream fails": "an_upload_that_is_cut_leaves_nothing_visible_and_is_swept",
        "With a `key`, a repeated": "the_same_upload_again_gets_the_same_file",
        "Uploads that run at once": "uploads_at_once_never_hold_more_than_the_quota",
    },
    "list_files": {"The files of a user": "files_are_listed_newest_first_and_only_their_owners"},
    "get_file": {
        "One file of this user": "a_file_is_stored_as_it_came_and_known_by_its_bytes",
        "Raises `NotFound`": "files_are_listed_newest_first_and_only_their_owners",
    },
    "read_file": {
        "The bytes of a file": "a_file_is_stored_as_it_came_and_known_by_its_bytes",
        "The caller has checked": "a_file_is_stored_as_it_came_and_known_by_its_bytes",
    },
    "load_preview": {
        "A small WebP picture": "a_preview_is_made_once_and_stored",
        "It is made when": "a_preview_is_made_once_and_stored",
        "Raises `NotFound` if": "what_cannot_be_decoded_has_no_preview",
    },
    "delete_file": {
        "Delete a file": "a_deleted_file_is_gone_at_once_and_its_bytes_soon",
        "Raises `NotAllowed`": "a_file_that_a_chat_uses_cannot_be_deleted",
    },
    "is_shown": {
        "Whether people see": "people_see_a_file_in_a_message_or_in_a_result_and_nowhere_else",
        "A file that is only queued": "a_file_is_shown_on_the_active_branch_and_not_on_one_that_was_left",
    },
    "find_used": {"Those of these files": "a_chat_finds_only_files_that_it_uses"},
    "sweep": {
        "Remove what is deleted": "what_was_never_used_goes_after_a_day",
        "A file that a chat uses": "what_was_never_used_goes_after_a_day",
        "Bytes go in short": "what_was_never_used_goes_after_a_day",
    },
}

_STORED = """
SELECT coalesce(sum(length(content)), 0) AS n FROM file_chunks JOIN files ON files.id = file_chunks.file_id
WHERE files.state <> 'deleted'
"""
"""The bytes of files and uploads. Those of an upload that failed no longer count: the sweep removes them."""


async def stream(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def read(files: FileStore, file_id: str, **more: Any) -> bytes:
    return b"".join([chunk async for chunk in files.read_file(file_id, **more)])


async def count(database: Database, table: str = "files") -> int:
    row = await database.read(lambda given: given.one(f"SELECT count(*) AS n FROM {table}"), single=True)  # noqa: S608
    return int(row["n"])


async def age(database: Database, days: float = 2) -> None:
    """Let every upload that is not used have been there for so long."""

    async def move(transaction: Transaction) -> None:
        then = await transaction.now() - timedelta(days=days)
        await transaction.run("UPDATE files SET unused_since = $1 WHERE unused_since IS NOT NULL", then)

    await database.write(move)


def list_paths(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file()]


def draw() -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (1200, 600), "teal").save(written, "PNG")
    return written.getvalue()


def test_every_promise_has_its_test() -> None:
    named = {name: method for name, method in inspect.getmembers(FileStore, inspect.isfunction) if name[0] != "_"}
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert set(named) == set(KEPT_BY)
    for name, kept in KEPT_BY.items():
        text = " ".join((inspect.getdoc(named[name]) or "").replace("\n* ", " ").split())
        sentences = [sentence for sentence in re.split(r"(?<=\.)\s+", text) if not sentence.startswith("Then nothing")]
        assert len(sentences) == len(kept), (name, sentences)
        for sentence, (start, test) in zip(sentences, kept.items(), strict=True):
            assert sentence.startswith(start), (name, sentence)
            assert f"def test_{test}(" in tests, test


# --- uploading ---


async def test_a_file_is_stored_as_it_came_and_known_by_its_bytes(files: FileStore) -> None:
    data = draw() + bytes(3 * CHUNK_BYTES)
    pieces = [data[start : start + 70_001] for start in range(0, len(data), 70_001)]
    stored = await files.upload(OWNER, stream(*pieces), name="../cat.html", hint="text/html", announced_bytes=len(data))

    assert stored == StoredFile(
        id=stored.id,
        name="cat.html",
        media_type="image/png",
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        width=1200,
        height=600,
        has_preview=True,
        created_at=stored.created_at,
    )
    assert await files.get_file(OWNER, stored.id) == stored
    assert await read(files, stored.id) == data
    assert await read(files, stored.id, start=CHUNK_BYTES - 5, stop=CHUNK_BYTES + 5) == data[CHUNK_BYTES - 5 :][:10]


async def test_an_upload_holds_no_more_than_a_chunk(opened: Database) -> None:
    """Whoever sends waits until a chunk is written: no more than one was taken before the first was."""
    written: list[int] = []
    taken: list[int] = []

    class Slow(DatabaseBytes):
        def open_writer(self, file_id: str, variant: Any) -> Any:
            writer = super().open_writer(file_id, variant)
            write = writer.write

            async def note(chunk: bytes) -> None:
                await write(chunk)
                written.append(len(chunk))
                assert sum(taken) - sum(written) < 2 * 64 * 1024

            writer.write = note  # type: ignore[method-assign]
            return writer

    async def send() -> AsyncIterator[bytes]:
        for _ in range(40):
            taken.append(64 * 1024)
            yield bytes(64 * 1024)

    stored = await FileStore(opened, [Slow(opened)]).upload(OWNER, send(), name="zeros")
    assert (stored.size, written) == (40 * 64 * 1024, [CHUNK_BYTES] * 10)


@pytest.mark.parametrize(
    ("error", "chunks", "announced", "limits"),
    [
        (TooLarge, [b"x"], 11, {"file_bytes": 10}),
        (TooLarge, [b"xxxxx", b"yyyyyy"], None, {"file_bytes": 10}),
        (Invalid, [], None, {}),
        (Invalid, [b""], 0, {}),
        (UnsupportedType, [b"text"], None, {"types": ["image/*"]}),
        (TooMany, [b"x" * 11], 11, {"user_bytes": 10}),
        (TooMany, [b"x" * 11], None, {"user_bytes": 10}),
    ],
    ids=["announced", "streamed", "no body", "empty", "type", "quota", "quota of a stream"],
)
async def test_what_is_refused_leaves_nothing(
    opened: Database, error: type[Exception], chunks: Iterable[bytes], announced: int | None, limits: dict[str, Any]
) -> None:
    files = FileStore(opened, [DatabaseBytes(opened)], limits=FileLimits(**limits))
    with pytest.raises(error):
        await files.upload(OWNER, stream(*chunks), name="a", announced_bytes=announced)
    assert await files.list_files(OWNER) == []
    await files.sweep()
    assert (await count(opened), await count(opened, "file_chunks")) == (0, 0)


async def test_a_user_has_no_more_files_than_allowed_however_many_come_at_once(opened: Database) -> None:
    files = FileStore(opened, [DatabaseBytes(opened)], limits=FileLimits(user_files=3))
    uploads = [files.upload(OWNER, stream(b"rain"), name=f"{n}") for n in range(8)]
    done = await asyncio.gather(*uploads, return_exceptions=True)
    assert sorted(type(result).__name__ for result in done) == ["StoredFile"] * 3 + ["TooMany"] * 5
    assert len(await files.list_files(OWNER)) == 3


async def test_uploads_at_once_never_hold_more_than_the_quota(opened: Database) -> None:
    """All of them have begun, and none has announced its size: each step that a stream grows by is counted."""
    quota = 7 * CHUNK_BYTES
    files = FileStore(opened, [DatabaseBytes(opened)], limits=FileLimits(user_bytes=quota))
    begun, all_begun = [0], asyncio.Event()

    async def send() -> AsyncIterator[bytes]:
        begun[0] += 1
        if begun[0] == 4:
            all_begun.set()
        await all_begun.wait()
        for _ in range(3):
            yield bytes(CHUNK_BYTES)
            row = await opened.read(lambda given: given.one(_STORED), single=True)
            assert int(row["n"]) <= quota

    done = await asyncio.gather(*[files.upload(OWNER, send(), name="a") for _ in range(4)], return_exceptions=True)
    kept = [file for file in done if isinstance(file, StoredFile)]
    assert [result for result in done if not isinstance(result, StoredFile | TooMany)] == []
    assert sum(file.size for file in kept) <= quota
    await files.sweep()
    last = await files.upload(OWNER, stream(bytes(quota - sum(file.size for file in kept))), name="b")  # all of it
    assert last.size + sum(file.size for file in kept) == quota


async def test_an_upload_that_announced_nothing_counts_the_users_files_a_few_times(opened: Database) -> None:
    """It doubles what it has reserved, and keeps room for others; in the end it holds its size and no more."""
    size = 24 * CHUNK_BYTES
    files = FileStore(opened, [DatabaseBytes(opened)], limits=FileLimits(file_bytes=size, user_bytes=2 * size))
    reserved: list[int] = []
    reserve = files._reserve

    async def note(*given: Any) -> int:
        reserved.append(await reserve(*given))
        return reserved[-1]

    files._reserve = note  # type: ignore[method-assign,assignment]
    await files.upload(OWNER, stream(*[bytes(CHUNK_BYTES)] * 23), name="zeros")
    assert reserved == [5 * CHUNK_BYTES, 12 * CHUNK_BYTES, size]
    row = await opened.read(lambda given: given.one("SELECT sum(size_bytes) AS n FROM files"), single=True)
    assert int(row["n"]) == 23 * CHUNK_BYTES


@pytest.mark.parametrize("how", ["fails", "cancelled"])
async def test_an_upload_that_is_cut_leaves_nothing_visible_and_is_swept(
    files: FileStore, opened: Database, how: str
) -> None:
    begun, left = asyncio.Event(), asyncio.Event()
    files.on_left = left.set

    async def cut() -> AsyncIterator[bytes]:
        yield bytes(CHUNK_BYTES)
        begun.set()
        if how == "fails":
            raise ConnectionResetError
        await asyncio.Event().wait()

    uploading = asyncio.create_task(files.upload(OWNER, cut(), name="a"))
    await begun.wait()
    if how == "cancelled":
        assert await count(opened, "file_chunks") == 1
        assert await files.list_files(OWNER) == []
        uploading.cancel()
    with pytest.raises((ConnectionResetError, asyncio.CancelledError)):
        await uploading
    assert left.is_set()
    assert await files.list_files(OWNER) == []
    assert await files.sweep() == 1
    assert (await count(opened), await count(opened, "file_chunks")) == (0, 0)


async def test_an_upload_whose_process_died_is_swept_after_a_day(files: FileStore, opened: Database) -> None:
    file_id = await files._begin(OWNER, "a", 5)
    await DatabaseBytes(opened).open_writer(file_id, "content").write(b"half")
    assert await files.sweep() == 0  # it may still be coming
    await age(opened)
    assert await files.sweep() == 1
    assert await count(opened, "file_chunks") == 0


async def test_the_same_upload_again_gets_the_same_file(files: FileStore, opened: Database) -> None:
    key = IdempotencyKey(OWNER, "k", "POST /files?name=a")
    first = await files.upload(OWNER, stream(b"ra", b"in"), name="a", key=key)
    assert await files.upload(OWNER, stream(b"rain"), name="a", key=key) == first
    assert await files.list_files(OWNER) == [first]
    for chunks, route in (([b"sun"], key.route), ([b"rain"], "POST /files?name=b")):
        with pytest.raises(Invalid, match="another request"):
            await files.upload(OWNER, stream(*chunks), name="a", key=IdempotencyKey(OWNER, "k", route))
    assert await files.list_files(OWNER) == [first]


async def test_of_the_same_upload_many_times_at_once_one_file_is_left(files: FileStore, opened: Database) -> None:
    key = IdempotencyKey(OWNER, "k", "POST /files?name=a")
    done = await asyncio.gather(*[files.upload(OWNER, stream(b"rain"), name="a", key=key) for _ in range(5)])
    assert len({stored.id for stored in done}) == 1
    assert await files.list_files(OWNER) == [done[0]]
    await files.sweep()
    assert (await count(opened), await count(opened, "file_chunks")) == (1, 1)


# --- reading and deleting ---


async def test_files_are_listed_newest_first_and_only_their_owners(files: FileStore) -> None:
    stored = [await files.upload(OWNER, stream(b"x"), name=str(n)) for n in range(5)]
    first = await files.list_files(OWNER, limit=2)
    rest = await files.list_files(OWNER, before=first[-1].id)
    assert [*first, *rest] == stored[::-1]
    assert await files.list_files("user_bob") == []
    for file_id in (stored[0].id, "file_none", "a\0b", "x" * 500):
        with pytest.raises(NotFound):
            await files.get_file("user_bob", file_id)
        with pytest.raises(NotFound):
            await files.load_preview("user_bob", file_id)
        with pytest.raises(NotFound):
            await files.delete_file("user_bob", file_id)
    assert await files.list_files(OWNER, limit=9) == stored[::-1]


async def test_a_preview_is_made_once_and_stored(files: FileStore, opened: Database) -> None:
    stored = await files.upload(OWNER, stream(draw()), name="a.png")
    assert await count(opened, "file_chunks") == 1
    preview = await files.load_preview(OWNER, stored.id)
    with Image.open(io.BytesIO(preview)) as shown:
        assert (shown.format, shown.size) == ("WEBP", (512, 256))
    assert await count(opened, "file_chunks") == 2
    await opened.write(lambda given: given.run("DELETE FROM file_chunks WHERE variant = 'content'"))
    assert await files.load_preview(OWNER, stored.id) == preview


class CountingBytes(DatabaseBytes):
    """Counts how often a whole file is loaded."""

    loads = 0

    async def read(self, file_id: str, variant: FileVariant, **more: Any) -> AsyncIterator[bytes]:
        self.loads += variant == "content"
        async for chunk in super().read(file_id, variant, **more):
            yield chunk


async def test_many_who_want_a_preview_at_once_load_the_file_once(opened: Database) -> None:
    counting = CountingBytes(opened)
    files = FileStore(opened, [counting])
    for data, made in ((draw(), True), (draw()[:200], False)):
        stored = await files.upload(OWNER, stream(data), name="a.png")
        counting.loads = 0
        found = await asyncio.gather(*(files.load_preview(OWNER, stored.id) for _ in range(8)), return_exceptions=True)
        assert (counting.loads, len({str(one) for one in found})) == (1, 1)
        assert isinstance(found[0], bytes) == made


async def test_what_cannot_be_decoded_has_no_preview(files: FileStore) -> None:
    broken = await files.upload(OWNER, stream(draw()[:200]), name="a.png")
    text = await files.upload(OWNER, stream(b"rain"), name="a.png")
    assert (broken.has_preview, text.has_preview) == (True, False)
    for file_id in (broken.id, broken.id, text.id):
        with pytest.raises(NotFound, match="no preview"):
            await files.load_preview(OWNER, file_id)
        assert not (await files.get_file(OWNER, file_id)).has_preview


async def test_a_deleted_file_is_gone_at_once_and_its_bytes_soon(files: FileStore, opened: Database) -> None:
    stored = await files.upload(OWNER, stream(bytes(20 * CHUNK_BYTES)), name="a")
    await files.delete_file(OWNER, stored.id)
    with pytest.raises(NotFound):
        await files.get_file(OWNER, stored.id)
    with pytest.raises(NotFound):
        await read(files, stored.id)
    assert await files.sweep() == 1
    assert (await count(opened), await count(opened, "file_chunks")) == (0, 0)


async def test_what_was_never_used_goes_after_a_day(files: FileStore, opened: Database) -> None:
    used = await files.upload(OWNER, stream(b"used"), name="a")
    unused = await files.upload(OWNER, stream(b"unused"), name="b")
    await opened.write(lambda given: given.run("UPDATE files SET unused_since = NULL WHERE id = $1", used.id))
    await age(opened, days=0.9)
    assert await files.sweep() == 0
    await age(opened)
    assert await files.sweep() == 1
    assert [stored.id for stored in await files.list_files(OWNER)] == [used.id]
    assert await read(files, used.id) == b"used"
    with pytest.raises(NotFound):
        await files.get_file(OWNER, unused.id)


async def test_bytes_stay_readable_where_they_are_when_new_files_go_elsewhere(
    files: FileStore, opened: Database, tmp_path: Path
) -> None:
    old = await files.upload(OWNER, stream(b"old"), name="a")
    moved = FileStore(opened, [DirectoryBytes(tmp_path), DatabaseBytes(opened)])
    new = await moved.upload(OWNER, stream(b"new"), name="b")
    assert (await read(moved, old.id), await read(moved, new.id)) == (b"old", b"new")
    assert await count(opened, "file_chunks") == 1
    for stored in (old, new):
        await moved.delete_file(OWNER, stored.id)
    assert await moved.sweep() == 2
    assert list_paths(tmp_path) == []
