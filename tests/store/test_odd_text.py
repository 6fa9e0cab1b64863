"""Text that a database does not take: halves of characters, and the character U+0000, wherever text can come in.

What people, models and tools say is kept with its U+0000, and a half of a character becomes U+FFFD, because neither
UTF-8 nor JSON has one (R6). What is shown, searched or compared loses both. A name that no name of ours looks like
names nothing. Nothing of it fails a write, on neither database.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, settle_in
from tests.store.responses import respond
from tests.support.engine import get_database
from tests.support.stored import load_journal, load_ledger
from tests.support.tables import messages

from indelible.api.events import BEGINNING
from indelible.content import (
    File,
    Finish,
    Part,
    Reasoning,
    ReasoningDelta,
    Source,
    StreamError,
    Text,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolStarted,
    decode_blocks,
    encode,
)
from indelible.errors import Invalid, NotFound
from indelible.ids import new_id
from indelible.machine import State
from indelible.machine import commands as c
from indelible.store.journal.append import JournalRow, RunChange, RunKey, RunSettled, RunStarted
from indelible.store.outcome import MAX_KEY_LENGTH, IdempotencyKey, StoredResponse
from indelible.store.payloads import ChatPatch, NewChat, UserInput
from indelible.store.store import Store

ODD = "half \ud83d, nothing \0, whole \ud83d\ude00 \u00e9"
KEPT = "half \ufffd, nothing \0, whole \U0001f600 \u00e9"
SHOWN = KEPT.replace("\0", "\ufffd")


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


@pytest.fixture
async def chat(store: Store, engine: AsyncEngine) -> Driver:
    """Running, with an open attempt that has said something."""
    return await (await Driver(store, engine).create()).work()


# --- what is said ---


async def test_a_message_is_kept_in_every_kind_of_block(store: Store, engine: AsyncEngine) -> None:
    chat = Driver(store, engine)
    blocks = [
        Text(ODD, metadata={ODD: [ODD]}),
        Reasoning(ODD, signature=ODD),
        ToolCall(ODD, ODD, arguments=ODD),
        ToolResult(ODD, ODD, output={ODD: ODD}),
        Source(ODD, url=ODD, title=ODD, quote=ODD),
        File(ODD, name=ODD, url=ODD, data=ODD.encode("utf-8", "surrogatepass")),
    ]
    await chat.do(c.Create(with_message=True), blocks=blocks)
    (row,) = await chat.rows(messages)
    (path,) = await chat.path()
    assert path.blocks == decode_blocks(row.blocks)
    assert path.blocks[0] == Text(KEPT, metadata={KEPT: [KEPT]})
    assert b"\\u0000" in row.blocks
    assert "\ufffd".encode() in row.blocks
    await chat.check()


async def test_a_queued_message_is_kept_while_it_waits_and_when_it_is_rewritten(chat: Driver) -> None:
    queued_id = (await chat.do(c.Send(), ODD, model=ODD)).queued_id
    assert await chat.queued() == [KEPT]
    assert queued_id is not None
    await chat.do(c.EditQueued(queued_id=queued_id), f"new {ODD}")
    assert [decode_blocks(row.blocks) for row in (await chat.store.view(chat.id)).queue] == [[Text(f"new {KEPT}")]]


async def test_what_the_holder_of_an_attempt_brings_along_is_kept(chat: Driver) -> None:
    rest = [TextDelta("1", ODD), ReasoningDelta(ODD, ODD), StreamError(ODD), Finish(metadata={ODD: ODD})]
    await chat.end(c.FinishTurn, pending=rest, response_id=ODD)
    assert (await chat.said())[-1] == ("assistant", f"It is{KEPT}")
    assert (await load_journal(chat.store, chat.id, chat.attempt_id))[-1].parts[0] == TextDelta("1", KEPT)
    await chat.check()


async def test_what_is_published_and_what_tools_do_is_kept(chat: Driver) -> None:
    call, result = ToolCall(ODD, ODD, arguments=ODD), ToolResult(ODD, ODD, output=ODD)
    started = RunStarted(RunKey(chat.turn_id, 1, 0), chat.attempt_id, ODD, ODD, ODD, f"{chat.turn_id}-0")
    settled = RunSettled(RunKey(chat.turn_id, 1, 0), result)
    rows: list[tuple[list[Part], RunChange]] = [([call, ToolStarted(ODD, ODD)], started), ([result], settled)]
    for n, (parts, change) in enumerate(rows, 2):
        row = JournalRow(chat.id, chat.attempt_id, chat.epoch, n, encode(parts), (change,))
        assert (await chat.store.append([row])).written == {chat.attempt_id}
    (run,) = await load_ledger(chat.store, chat.id, chat.turn_id)
    assert (run.call_id, run.name) == (SHOWN, SHOWN)
    assert run.result == ToolResult(KEPT, KEPT, output=KEPT)
    assert (await load_journal(chat.store, chat.id, chat.attempt_id))[2].parts == [run.result]
    await chat.end(c.CommitStep)
    await chat.check()


async def test_results_from_outside_are_kept_and_belong_to_their_call(chat: Driver) -> None:
    await chat.say(ToolCall(ODD, ODD, arguments=ODD), Finish("tool_calls"))
    await chat.end(c.AwaitAction)
    (call,) = [block for message in await chat.path() for block in message.blocks if isinstance(block, ToolCall)]
    assert call == ToolCall(KEPT, KEPT, arguments=KEPT)
    await chat.do(c.ToolResults(call_ids=(call.id,)), results=[ToolResult(call.id, "", output=ODD)])
    assert (await chat.said())[-1] == ("tool", KEPT)
    assert await chat.state() == State.RUNNING


async def test_a_summary_is_kept_once(store: Store, engine: AsyncEngine) -> None:
    chat = await (await Driver(store, engine).create()).work()
    await chat.end(c.FinishTurn)
    await chat.do(c.Compact())
    await chat.work()
    summary = msgspec.structs.replace((await chat.path())[0], blocks=[Text(ODD)], visibility="model", id=None)
    await chat.end(c.FinishTurn, summary=summary)
    assert [message.text for message in await chat.path()].count(KEPT) == 1


# --- what is told ---


async def test_an_error_and_its_notice_are_kept(chat: Driver) -> None:
    await chat.end(c.Fail, error={"kind": "unknown", "message": ODD, ODD: [ODD]}, notice=ODD)
    view = await chat.store.view(chat.id)
    assert view.error == {"kind": "unknown", "message": KEPT, KEPT: [KEPT]}
    assert (await chat.said())[-1] == ("notice", KEPT)
    assert ("error", None, view.error) in await chat.list_events()


async def test_the_error_of_a_wait_is_kept(chat: Driver) -> None:
    await chat.end(c.CommitStep, failed=True)
    await chat.end(c.AnnounceRetry, retry={"kind": "overloaded", "message": ODD})
    assert (await chat.store.view(chat.id)).retry == {"kind": "overloaded", "message": KEPT}


# --- what stands beside the conversation ---


async def test_what_describes_a_new_chat_is_kept_or_mended(store: Store, engine: AsyncEngine) -> None:
    chat = Driver(store, engine)
    await chat.do(c.Create(with_message=True), "Hello", title=ODD, model=ODD, system_prompt=ODD, parameters={ODD: ODD})
    row = await chat.row()
    assert (row.title, row.model) == (SHOWN, SHOWN)
    assert msgspec.json.decode(row.system_prompt) == KEPT
    assert msgspec.json.decode(row.parameters) == {KEPT: KEPT}


async def test_what_describes_a_chat_anew_is_kept_or_mended(chat: Driver) -> None:
    described = ChatPatch(title=ODD, labels=[ODD], model=ODD, system_prompt=ODD, parameters={ODD: [ODD]})
    await chat.do(c.UpdateChat(), payload=described)
    row = await chat.row()
    assert (row.title, row.model) == (SHOWN, SHOWN)
    assert msgspec.json.decode(row.labels) == [KEPT]
    assert msgspec.json.decode(row.system_prompt) == KEPT
    assert msgspec.json.decode(row.parameters) == {KEPT: [KEPT]}
    (summary,) = await chat.store.list_chats(OWNER)
    assert (summary.title, summary.labels) == (SHOWN, [KEPT])
    for text in (SHOWN, ODD):
        found = await chat.store.search(OWNER, text, limit=9)
        assert [item.id for item in found.items] == [chat.id]


async def test_the_names_of_provider_and_model_are_mended(store: Store, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create()
    await chat.do(c.Acquire(worker_id="live"))
    await chat.do(chat.name(c.StartAttempt), provider=ODD, model=ODD)
    attempt = await chat.attempt()
    assert (attempt.provider, attempt.model) == (SHOWN, SHOWN)
    await chat.say(TextDelta("1", "Yes"), Finish())
    reply = (await chat.end(c.FinishTurn)).messages[0]
    assert (reply.provider, reply.model) == (SHOWN, SHOWN)


async def test_a_user_is_found_by_the_name_as_it_was_given_and_as_it_is_kept(store: Store) -> None:
    with pytest.raises(Invalid, match="printable"):
        await store.ensure_user(ODD)
    assert await store.ensure_user(SHOWN) == await store.ensure_user(SHOWN) == await store.ensure_user(ODD)


# --- requests that may be repeated ---


async def test_the_same_odd_request_again_gets_the_same_answer(chat: Driver) -> None:
    given = StoredResponse(202, ODD.encode("utf-8", "surrogatepass"))
    request = IdempotencyKey(OWNER, ODD, f"POST /{ODD}", ODD.encode("utf-8", "surrogatepass"))
    for _ in range(2):
        send = partial(chat.store.execute, chat.id, c.Send(), UserInput(blocks=[Text(ODD)]))
        assert await respond(send, request._replace(respond=lambda outcome: given)) == given
    assert await chat.queued() == [KEPT]
    for other in (request._replace(route="POST /"), request._replace(body_hash=b"")):
        with pytest.raises(Invalid):
            await chat.store.execute(chat.id, c.Send(), key=other._replace(respond=lambda outcome: given))


@pytest.mark.parametrize("key", ["", "k" * (MAX_KEY_LENGTH + 1)])
async def test_a_key_that_is_none_or_too_long_is_refused(chat: Driver, key: str) -> None:
    """PostgreSQL could not keep a very long one in its index; SQLite could."""
    once = IdempotencyKey(OWNER, key, "POST /", b"", lambda outcome: StoredResponse(202, b""))
    with pytest.raises(Invalid, match="characters"):
        await chat.store.execute(chat.id, c.Send(), key=once)


# --- names ---


NAMING: dict[str, Callable[[Store, str, str], Awaitable[Any]]] = {
    "execute": lambda store, chat_id, odd: store.execute(odd, c.Send(), UserInput(blocks=[Text("Hello")])),
    "create": lambda store, chat_id, odd: store.execute(odd, c.Create(), NewChat(owner_id=OWNER)),
    "edit": lambda store, chat_id, odd: store.execute(
        chat_id, c.Edit(message_id=odd), UserInput(blocks=[Text("Hello")])
    ),
    "regenerate": lambda store, chat_id, odd: store.execute(chat_id, c.Regenerate(message_id=odd)),
    "delete queued": lambda store, chat_id, odd: store.execute(chat_id, c.DeleteQueued(queued_id=odd)),
    "interrupt": lambda store, chat_id, odd: store.execute(chat_id, c.Interrupt(turn_id=odd)),
    "view": lambda store, chat_id, odd: store.view(odd),
    "page": lambda store, chat_id, odd: store.page(odd),
    "page above": lambda store, chat_id, odd: store.page(chat_id, before=odd),
    "page up to": lambda store, chat_id, odd: store.page(chat_id, upto=odd),
    "work": lambda store, chat_id, odd: store.work(odd),
    "fork": lambda store, chat_id, odd: store.fork(odd, "message", new_chat_id=new_id("chat"), owner_id=OWNER),
    "changes": lambda store, chat_id, odd: store.changes(odd, BEGINNING),
    "fork at": lambda store, chat_id, odd: store.fork(chat_id, odd, new_chat_id=new_id("chat"), owner_id=OWNER),
}
ASKING: dict[str, tuple[Callable[[Store, str], Awaitable[Any]], object]] = {
    "owner": (lambda store, odd: store.owner(odd), None),
    "events": (lambda store, odd: store.events(odd, after=0), []),
    "positions": (lambda store, odd: store.positions([odd]), {}),
    "resume": (lambda store, odd: store.resume(odd, BEGINNING), None),
}


ODD_NAMES = pytest.mark.parametrize(
    "odd", ["chat_\0", "chat_\ud83d", "chat_é", "c" * 300], ids=["nul", "half", "accent", "long"]
)


@ODD_NAMES
async def test_what_no_name_of_ours_looks_like_names_nothing(chat: Driver, odd: str) -> None:
    for call in NAMING.values():
        with pytest.raises(NotFound):
            await call(chat.store, chat.id, odd)


@ODD_NAMES
async def test_of_what_no_name_of_ours_looks_like_there_is_nothing(chat: Driver, odd: str) -> None:
    assert {name: await ask(chat.store, odd) for name, (ask, _) in ASKING.items()} == {
        name: nothing for name, (_, nothing) in ASKING.items()
    }
