"""A chat uses the files in its messages: they are its owner's, and are there as long as a chat uses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER
from tests.support.engine import begin_write, get_database
from tests.support.stored import load_path
from tests.support.tables import file_uses

from indelible.api.shapes import StoredFile
from indelible.content import Block, File, Message, Text, ToolCall, ToolResult
from indelible.errors import NotAllowed, NotFound
from indelible.files.store import FileStore
from indelible.ids import new_id
from indelible.machine import commands as c
from indelible.store.journal.append import JournalRow, RunKey, RunSettled, RunStarted
from indelible.store.outcome import Outcome
from indelible.store.payloads import AttemptStart, NewChat, QueuedInput, UserInput
from indelible.store.store import Store
from indelible.store.transfer import FileMessage
from indelible.testing import ManualClock
from indelible.worker.upkeep import FileSweeper


@pytest.fixture
async def store(engine: AsyncEngine, files: FileStore) -> Store:
    return Store(get_database(engine))


async def upload(files: FileStore, data: bytes = b"rain") -> StoredFile:
    async def send() -> AsyncIterator[bytes]:
        yield data

    return await files.upload(OWNER, send(), name="rain.txt")


async def create(store: Store, *sent: StoredFile, owner: str = OWNER) -> Outcome:
    new = NewChat(owner_id=owner, blocks=[Text("Look"), *(File(file_id=file.id) for file in sent)])
    return await store.execute(new_id("chat"), c.Create(with_message=True), new)


async def run_tool(store: Store, chat: Outcome, *made: StoredFile) -> JournalRow:
    """A tool has started in this chat; the row that will record that it returned these files."""
    turn_id = chat.turn_id or ""
    (held,) = await store.acquire("worker_1", limit=1)
    begun = await store.execute(chat.chat_id, c.StartAttempt(epoch=held.epoch, turn_id=turn_id), AttemptStart())
    assert begun.attempt is not None
    key, attempt_id = RunKey(turn_id, 1, 0), begun.attempt.id
    started = RunStarted(key, attempt_id, "call_1", "plot", "{}", f"{turn_id}/1/0")
    await store.append([JournalRow(chat.chat_id, attempt_id, held.epoch, 1, b"[]", (started,))])
    settled = RunSettled(key, ToolResult("call_1", "plot", files=[file.to_block() for file in made]))
    return JournalRow(chat.chat_id, attempt_id, held.epoch, 2, b"[]", (settled,))


async def exists(files: FileStore, file: StoredFile) -> bool:
    await files.sweep()
    return [found.id for found in await files.list_files(OWNER)] == [file.id]


async def test_a_message_says_what_is_stored_and_not_what_its_sender_claims(store: Store, files: FileStore) -> None:
    file = await upload(files)
    claimed = File("image/png", name="cat.png", file_id=file.id, data=b"x", url="http://x", size=9)
    chat = await create(store)
    await store.execute(chat.chat_id, c.Edit(message_id=chat.messages[0].id or ""), UserInput(blocks=[claimed]))
    (message,) = await load_path(store, chat.chat_id)
    assert message.blocks == [File("text/plain", name="rain.txt", file_id=file.id, size=4)]


@pytest.mark.parametrize("whose", ["nobody's", "another user's", "an unfinished", "a deleted"])
async def test_a_message_with_a_file_that_is_not_its_owners_is_refused(
    store: Store, files: FileStore, whose: str
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


async def begin_with_history(store: Store, file: File, owner: str) -> str:
    history = [Message(role="user", blocks=[Text("Look"), file]), Message(role="assistant", blocks=[Text("I see.")])]
    new = NewChat(owner_id=owner, blocks=[Text("And now?")], history=history)
    return (await store.execute(new_id("chat"), c.Create(with_message=True), new)).chat_id


async def begin_with_progress(store: Store, file: File, owner: str) -> str:
    progress = [
        Message(role="assistant", blocks=[ToolCall(id="c", name="look", arguments="{}")]),
        Message(role="tool", blocks=[ToolResult(call_id="c", name="look", output="Rain.", files=[file])]),
    ]
    new = NewChat(owner_id=owner, blocks=[Text("Look")], progress=progress)
    return (await store.execute(new_id("chat"), c.Create(with_message=True), new)).chat_id


async def import_file(store: Store, file: File, owner: str) -> str:
    chat = await store.execute(new_id("chat"), c.Create(), NewChat(owner_id=owner))
    exported = await store.export_chat(chat.chat_id)
    await store.execute(chat.chat_id, c.Delete())
    at = exported.created_at
    message = FileMessage(id="m1", role="user", blocks=[Text("Look"), file], created_at=at)
    written = replace(exported, head="m1", messages=[message])
    return (await store.import_chat(written, owner_id=owner)).chat_id


BROUGHT = [begin_with_history, begin_with_progress, import_file]


@pytest.mark.parametrize("bring", BROUGHT)
async def test_a_conversation_that_is_brought_along_uses_its_files(
    store: Store, files: FileStore, bring: Callable[[Store, File, str], Awaitable[str]]
) -> None:
    file = await upload(files)
    chat_id = await bring(store, file.to_block(), OWNER)
    assert set(await files.find_used(chat_id, [file.id])) == {file.id}
    with pytest.raises(NotAllowed, match="A chat uses this file"):
        await files.delete_file(OWNER, file.id)


@pytest.mark.parametrize("whose", ["nobody's", "another user's"])
@pytest.mark.parametrize("bring", BROUGHT)
async def test_a_conversation_that_is_brought_along_with_a_file_of_somebody_else_is_refused(
    store: Store, files: FileStore, bring: Callable[[Store, File, str], Awaitable[str]], whose: str
) -> None:
    other = await store.ensure_user("Bob")
    file = await upload(files)
    block = replace(file.to_block(), file_id="file_none") if whose == "nobody's" else file.to_block()
    with pytest.raises(NotFound, match="File not found"):
        await bring(store, block, other)
    assert await store.list_chats(other) == []
    await files.delete_file(OWNER, file.id)  # nobody uses it


async def test_an_export_only_names_files_that_are_there_so_it_can_be_imported(
    store: Store, files: FileStore, engine: AsyncEngine
) -> None:
    """As after an import from before such files were refused, or a result whose file was deleted meanwhile."""
    kept, gone = await upload(files), await upload(files, b"sun")
    chat = await create(store, kept, gone)
    async with begin_write(engine) as connection:
        await connection.execute(file_uses.delete().where(file_uses.c.file_id == gone.id))
    file = await store.export_chat(chat.chat_id)
    assert file.messages[0].blocks[1:] == [kept.to_block(), replace(gone.to_block(), file_id=None)]
    copy = await store.import_chat(file, owner_id=OWNER)
    assert set(await files.find_used(copy.chat_id, [kept.id, gone.id])) == {kept.id}


async def test_a_file_that_a_chat_uses_cannot_be_deleted(store: Store, files: FileStore) -> None:
    file = await upload(files)
    chat = await create(store, file)
    with pytest.raises(NotAllowed, match="A chat uses this file"):
        await files.delete_file(OWNER, file.id)
    await store.execute(chat.chat_id, c.Delete())
    assert not await exists(files, file)


async def test_a_file_goes_with_the_last_chat_that_uses_it(store: Store, files: FileStore) -> None:
    file = await upload(files)
    first, second = await create(store, file), await create(store, file)
    fork = await store.fork(
        first.chat_id, first.messages[0].id or "", new_chat_id=new_id("chat"), owner_id=OWNER, user_id=OWNER
    )
    for chat_id in (first.chat_id, second.chat_id):
        await store.execute(chat_id, c.Delete())
        assert await exists(files, file)
    assert (await load_path(store, fork.chat_id))[0].blocks[1] == file.to_block()
    await store.execute(fork.chat_id, c.Delete())
    assert not await exists(files, file)


async def test_a_fork_uses_only_the_files_that_it_has(store: Store, files: FileStore) -> None:
    first = await create(store)
    file = await upload(files)
    await store.execute(
        first.chat_id, c.Edit(message_id=first.messages[0].id or ""), UserInput(blocks=[file.to_block()])
    )
    fork = await store.fork(first.chat_id, first.messages[0].id or "", new_chat_id=new_id("chat"), owner_id=OWNER)
    assert await files.find_used(fork.chat_id, [file.id]) == {}
    await store.execute(first.chat_id, c.Delete())
    assert not await exists(files, file)


async def test_a_queued_message_uses_its_files(store: Store, files: FileStore) -> None:
    chat = await create(store)
    file, other = await upload(files), await upload(files, b"sun")
    queued = await store.execute(chat.chat_id, c.Send(), UserInput(blocks=[File(file_id=file.id)]))
    assert (await store.queue(chat.chat_id))[0].blocks == [file.to_block()]
    edit = c.EditQueued(queued_id=queued.queued_id or "")
    await store.execute(chat.chat_id, edit, QueuedInput(blocks=[File(file_id=other.id)]))
    assert set(await files.find_used(chat.chat_id, [file.id, other.id])) == {other.id}


async def test_a_queued_message_that_is_removed_uses_its_files_no_longer(store: Store, files: FileStore) -> None:
    sent, twice, only = [await upload(files, data) for data in (b"sent", b"twice", b"only")]
    chat = await create(store, sent)
    blocks: list[Block] = [File(file_id=file.id) for file in (sent, twice, only)]
    first = await store.execute(chat.chat_id, c.Send(), UserInput(blocks=blocks))
    second = await store.execute(chat.chat_id, c.Send(), UserInput(blocks=[Text(only.id), File(file_id=twice.id)]))
    for queued, left in ((first, {sent.id, twice.id}), (second, {sent.id})):
        await store.execute(chat.chat_id, c.DeleteQueued(queued_id=queued.queued_id or ""))
        assert set(await files.find_used(chat.chat_id, [sent.id, twice.id, only.id])) == left
    again = await store.execute(chat.chat_id, c.Send(), UserInput(blocks=[File(file_id=only.id)]))  # for a day it can
    assert again.queued_id is not None
    await files.delete_file(OWNER, twice.id)
    await store.execute(chat.chat_id, c.Delete())
    assert await files.sweep() == 3


async def test_people_see_a_file_in_a_message_or_in_a_result_and_nowhere_else(store: Store, files: FileStore) -> None:
    sent, queued, hidden, made, quoted = [await upload(files, data) for data in (b"1", b"2", b"3", b"4", b"5")]
    only_model = Message(role="user", visibility="model", blocks=[hidden.to_block()])
    new = NewChat(owner_id=OWNER, history=[only_model], blocks=[Text(f"{queued.id} {quoted.id}"), sent.to_block()])
    chat = await store.execute(new_id("chat"), c.Create(with_message=True), new)
    await store.execute(chat.chat_id, c.Send(), UserInput(blocks=[queued.to_block(), hidden.to_block()]))
    await store.append([await run_tool(store, chat, made)])
    by_name = {"sent": sent, "queued": queued, "hidden": hidden, "made": made, "quoted": quoted}
    assert {name for name, file in by_name.items() if await files.is_shown(chat.chat_id, file.id)} == {"sent", "made"}
    other = await create(store)
    assert not await files.is_shown(other.chat_id, sent.id)
    assert not await files.is_shown(chat.chat_id, "file\0")


async def test_a_file_is_shown_on_the_active_branch_and_not_on_one_that_was_left(
    store: Store, files: FileStore
) -> None:
    left, made, kept = [await upload(files, data) for data in (b"1", b"2", b"3")]
    chat = await create(store, left)
    await store.append([await run_tool(store, chat, made)])

    async def find_shown() -> list[bool]:
        return [await files.is_shown(chat.chat_id, file.id) for file in (left, made, kept)]

    assert await find_shown() == [True, True, False]
    edit = c.Edit(message_id=chat.messages[-1].id or "")
    await store.execute(chat.chat_id, edit, UserInput(blocks=[kept.to_block()]))
    assert await find_shown() == [False, False, True]


async def test_a_chat_finds_only_files_that_it_uses(store: Store, files: FileStore) -> None:
    used, unused = await upload(files), await upload(files)
    chat = await create(store, used)
    assert await files.find_used(chat.chat_id, [used.id, unused.id, "a\0"]) == {used.id: used}


async def test_a_file_of_a_tool_is_used_when_its_result_is_recorded_by_the_chats_worker(
    store: Store, files: FileStore
) -> None:
    chat = await create(store)
    made, gone = await upload(files), await upload(files)
    result = await run_tool(store, chat, made, gone)
    await files.delete_file(OWNER, gone.id)
    assert (await store.append([result._replace(epoch=result.epoch - 1)])).written == frozenset()
    assert await files.find_used(chat.chat_id, [made.id]) == {}
    for _ in range(2):  # the answer to the first may have been lost
        assert (await store.append([result])).written == {result.attempt_id}
        assert await files.find_used(chat.chat_id, [made.id, gone.id]) == {made.id: made}
    await store.execute(chat.chat_id, c.Delete())
    assert not await exists(files, made)


async def test_a_result_uses_no_file_of_another_user(store: Store, files: FileStore) -> None:
    file = await upload(files)
    chat = await create(store, owner=await store.ensure_user("Bob"))
    await store.append([await run_tool(store, chat, file)])
    assert await files.find_used(chat.chat_id, [file.id]) == {}


async def test_a_file_that_is_sent_while_another_chat_is_deleted_is_there_or_refused(
    store: Store, files: FileStore
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


async def test_the_sweeper_removes_what_is_left_when_it_is_woken(store: Store, files: FileStore) -> None:
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
