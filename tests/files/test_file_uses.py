"""A chat uses the files in its messages: they are its owner's, and are there as long as a chat uses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER
from tests.support.engine import get_database

from indelible.content import File, Text
from indelible.errors import NotAllowed, NotFound
from indelible.files.protocol import StoredFile
from indelible.files.sql_files import SqlFiles
from indelible.files.sweeper import FileSweeper
from indelible.ids import new_id
from indelible.machine import commands as c
from indelible.store.payloads import NewChat, QueuedInput, UserInput
from indelible.store.protocol import Outcome
from indelible.store.sql_store import SqlStore
from indelible.testing import ManualClock


@pytest.fixture
async def store(engine: AsyncEngine, files: SqlFiles) -> SqlStore:
    return SqlStore(get_database(engine))


async def upload(files: SqlFiles, data: bytes = b"rain", *, chat_id: str | None = None) -> StoredFile:
    async def send() -> AsyncIterator[bytes]:
        yield data

    return await files.upload(OWNER, send(), name="rain.txt", chat_id=chat_id)


async def create(store: SqlStore, *sent: StoredFile, owner: str = OWNER) -> Outcome:
    new = NewChat(owner_id=owner, blocks=[Text("Look"), *(File(file_id=file.id) for file in sent)])
    return await store.execute(new_id("chat"), c.Create(with_message=True), new)


async def exists(files: SqlFiles, file: StoredFile) -> bool:
    await files.sweep()
    return [found.id for found in await files.list_files(OWNER)] == [file.id]


async def test_a_message_says_what_is_stored_and_not_what_its_sender_claims(store: SqlStore, files: SqlFiles) -> None:
    file = await upload(files)
    claimed = File("image/png", name="cat.png", file_id=file.id, data=b"x", url="http://x", size=9)
    chat = await create(store)
    await store.execute(chat.chat_id, c.Edit(message_id=chat.messages[0].id or ""), UserInput(blocks=[claimed]))
    (message,) = await store.path(chat.chat_id)
    assert message.blocks == [File("text/plain", name="rain.txt", file_id=file.id, size=4)]


@pytest.mark.parametrize("whose", ["nobody's", "another user's", "an unfinished", "a deleted"])
async def test_a_message_with_a_file_that_is_not_its_owners_is_refused(
    store: SqlStore, files: SqlFiles, whose: str
) -> None:
    other = await store.ensure_user("Bob")
    file = await upload(files)
    file_id = "file_none" if whose == "nobody's" else file.id
    owner = other if whose == "another user's" else OWNER
    chat = await create(store, owner=owner)
    if whose == "an unfinished":
        file_id = await files._begin(OWNER, "a", 1)
    if whose == "a deleted":
        await files.delete_file(OWNER, file.id)
    before = await store.view(chat.chat_id)
    blocks = UserInput(blocks=[Text("Look"), File(file_id=file_id)])
    with pytest.raises(NotFound, match="File not found"):
        await store.execute(chat.chat_id, c.Send(), blocks)
    assert await store.view(chat.chat_id) == before


async def test_a_file_that_a_chat_uses_cannot_be_deleted(store: SqlStore, files: SqlFiles) -> None:
    file = await upload(files)
    chat = await create(store, file)
    with pytest.raises(NotAllowed, match="A chat uses this file"):
        await files.delete_file(OWNER, file.id)
    await store.execute(chat.chat_id, c.Delete())
    assert not await exists(files, file)


async def test_a_file_goes_with_the_last_chat_that_uses_it(store: SqlStore, files: SqlFiles) -> None:
    file = await upload(files)
    first, second = await create(store, file), await create(store, file)
    fork = await store.fork(
        first.chat_id, first.messages[0].id or "", new_chat_id=new_id("chat"), owner_id=OWNER, user_id=OWNER
    )
    for chat_id in (first.chat_id, second.chat_id):
        await store.execute(chat_id, c.Delete())
        assert await exists(files, file)
    assert (await store.path(fork.chat_id))[0].blocks[1] == file.to_block()
    await store.execute(fork.chat_id, c.Delete())
    assert not await exists(files, file)


async def test_a_fork_uses_only_the_files_that_it_has(store: SqlStore, files: SqlFiles) -> None:
    first = await create(store)
    file = await upload(files)
    await store.execute(
        first.chat_id, c.Edit(message_id=first.messages[0].id or ""), UserInput(blocks=[file.to_block()])
    )
    names = {"new_chat_id": new_id("chat"), "owner_id": OWNER}
    fork = await store.fork(first.chat_id, first.messages[0].id or "", **names)
    assert await files.find_used(fork.chat_id, [file.id]) == {}
    await store.execute(first.chat_id, c.Delete())
    assert not await exists(files, file)


async def test_a_queued_message_uses_its_files(store: SqlStore, files: SqlFiles) -> None:
    chat = await create(store)
    file, other = await upload(files), await upload(files, b"sun")
    queued = await store.execute(chat.chat_id, c.Send(), UserInput(blocks=[File(file_id=file.id)]))
    assert (await store.queue(chat.chat_id))[0].blocks == [file.to_block()]
    edit = c.EditQueued(queued_id=queued.queued_id or "")
    await store.execute(chat.chat_id, edit, QueuedInput(blocks=[File(file_id=other.id)]))
    assert set(await files.find_used(chat.chat_id, [file.id, other.id])) == {file.id, other.id}


async def test_a_chat_finds_only_files_that_it_uses(store: SqlStore, files: SqlFiles) -> None:
    used, unused = await upload(files), await upload(files)
    chat = await create(store, used)
    assert await files.find_used(chat.chat_id, [used.id, unused.id, "a\0"]) == {used.id: used}


async def test_a_file_of_a_tool_is_used_from_the_beginning(store: SqlStore, files: SqlFiles) -> None:
    chat = await create(store)
    made = await upload(files, chat_id=chat.chat_id)
    assert await files.find_used(chat.chat_id, [made.id]) == {made.id: made}
    await store.execute(chat.chat_id, c.Delete())
    assert not await exists(files, made)
    with pytest.raises(NotFound, match="Chat not found"):
        await upload(files, chat_id=chat.chat_id)
    assert await files.sweep() == 1


async def test_a_file_that_is_sent_while_another_chat_is_deleted_is_there_or_refused(
    store: SqlStore, files: SqlFiles
) -> None:
    """On PostgreSQL both wait for the file's row, and the second one judges by what the first has left."""
    for _ in range(4):
        file = await upload(files)
        old, new = await create(store, file), await create(store)
        send = store.execute(new.chat_id, c.Send(), UserInput(blocks=[File(file_id=file.id)]))
        sent, _ = await asyncio.gather(send, store.execute(old.chat_id, c.Delete()), return_exceptions=True)
        assert await exists(files, file) == isinstance(sent, Outcome)
        await store.execute(new.chat_id, c.Delete())
        await files.sweep()


async def test_the_sweeper_removes_what_is_left_when_it_is_woken(store: SqlStore, files: SqlFiles) -> None:
    woken, swept = asyncio.Event(), asyncio.Event()
    sweep = files.sweep

    async def note(**more: int) -> int:
        removed = await sweep(**more)
        if removed:
            swept.set()
        return removed

    files.sweep = note  # type: ignore[method-assign]
    file = await upload(files)
    chat = await create(store, file)
    sweeping = asyncio.create_task(FileSweeper(files, clock=ManualClock(), woken=woken).run())
    await store.execute(chat.chat_id, c.Delete())
    woken.set()
    async with asyncio.timeout(100):
        await swept.wait()
    sweeping.cancel()
    await asyncio.wait([sweeping])
