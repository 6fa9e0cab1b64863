"""What a worker asks the store, on both databases: what there is to do, what it holds, what is overdue, who is gone."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, fill_payload, settle_in
from tests.support.engine import begin_read, begin_write, get_database
from tests.support.tables import chats, idempotency_keys, users, workers

from indelible.api.inputs import LONGEST_USER_NAME
from indelible.content import Finish, Part, Text, TextDelta, ToolCall, ToolResult, Usage
from indelible.errors import Invalid, NotFound
from indelible.machine import Status
from indelible.machine import commands as c
from indelible.store.database.transaction import clean_label
from indelible.store.outcome import IdempotencyKey, StoredResponse
from indelible.store.payloads import ChatPatch, NewChat, UserInput
from indelible.store.queries.open_turn import Expired, Held
from indelible.store.store import Store

LOOK = ToolCall(id="c1", name="look", arguments="{}")
USED = Usage(input_tokens=7, output_tokens=5)


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


async def make(store: Store, engine: AsyncEngine, **words: Any) -> Driver:
    chat = Driver(store, engine)
    await chat.do(c.Create(with_message=True), "Hello", **words)
    return chat


# --- work ---


async def test_the_work_of_a_chat_is_its_open_turn_and_the_whole_conversation(
    store: Store, engine: AsyncEngine
) -> None:
    chat = await make(store, engine, model="small", system_prompt="Be brief.")
    await chat.do(c.UpdateChat(), payload=ChatPatch(parameters={"temperature": 0.5}))
    await chat.do(c.Acquire(worker_id="live"))
    work = await store.work(chat.id)
    assert (work.chat_id, work.owner_id, work.turn_id, work.kind) == (chat.id, OWNER, chat.turn_id, "reply")
    assert (work.status, work.epoch, work.holder, work.titled) == (Status.RUNNING, chat.epoch, "live", False)
    assert (work.model, work.system_prompt, work.parameters) == ("small", "Be brief.", {"temperature": 0.5})
    assert work.messages == await chat.path()
    assert (work.next_step, work.attempt, work.parts, work.n, work.usage) == (1, None, [], 0, None)


async def test_a_chat_that_rests_has_no_work(store: Store, engine: AsyncEngine) -> None:
    chat = await make(store, engine, model="small", title="Rain")
    await chat.work()
    await chat.end(c.FinishTurn, pending=[Finish()])
    work = await store.work(chat.id)
    assert (work.status, work.turn_id, work.attempt, work.messages) == (Status.IDLE, None, None, [])
    assert (work.model, work.titled, work.holder) == ("small", True, None)


async def test_a_chat_that_does_not_exist_has_none_either(store: Store) -> None:
    with pytest.raises(NotFound):
        await store.work("chat_nowhere")


async def test_the_model_is_that_of_the_message_and_a_message_keeps_the_chats_of_its_time(
    store: Store, engine: AsyncEngine
) -> None:
    chat = await make(store, engine)
    assert (await store.work(chat.id)).model is None
    await chat.do(c.UpdateChat(), payload=ChatPatch(model="small"))
    assert (await store.work(chat.id)).model is None, "it was asked when the chat had none"
    await chat.work()
    await chat.do(c.Send(), "with the big one", model="big")
    await chat.do(c.Send(), "with the small one")
    await chat.do(c.UpdateChat(), payload=ChatPatch(model="other"))
    await chat.end(c.FinishTurn, pending=[Finish()])
    assert (await store.work(chat.id)).model == "big", "the model chosen at enqueue time travels with the message"
    await chat.start()
    await chat.end(c.FinishTurn, pending=[TextDelta("1", "Yes."), Finish()])
    assert (await store.work(chat.id)).model == "small"


@pytest.mark.parametrize("kind", [c.Retry, c.Edit, c.Regenerate, c.Send])
async def test_a_turn_that_is_begun_anew_may_have_another_model(
    store: Store, engine: AsyncEngine, kind: type[c.Command]
) -> None:
    chat = await make(store, engine, model="small")
    await chat.work()
    await chat.end(c.Fail)
    role = {c.Edit: "user", c.Regenerate: "assistant"}.get(kind)
    command = kind() if role is None else kind(message_id=await chat.last_id(role))
    await chat.do(command, payload=fill_payload(command, model="big"))
    assert (await store.work(chat.id)).model == "big"


async def test_a_compaction_is_recognised(store: Store, engine: AsyncEngine) -> None:
    chat = await make(store, engine)
    await chat.work()
    await chat.end(c.FinishTurn, pending=[Finish()])
    await chat.do(c.Compact(), model="summariser")
    work = await store.work(chat.id)
    assert (work.kind, work.model, len(work.messages)) == ("compaction", "summariser", 2)


async def test_an_adopted_attempt_comes_with_its_parts_and_where_its_journal_ends(
    store: Store, engine: AsyncEngine
) -> None:
    chat = await make(store, engine)
    await chat.work("live", TextDelta("1", "Let me look."))
    await chat.end(c.CommitStep, pending=[Finish(usage=USED)])
    await chat.start()
    said: list[list[Part]] = [
        [TextDelta("2", "Again:"), LOOK],
        [Finish("tool_calls")],
        [ToolResult(call_id="c1", name="look", output=1)],
    ]
    for row in said:
        await chat.say(*row)
    await chat.end(c.Release)
    await chat.do(c.Acquire(worker_id="live"))
    work = await store.work(chat.id)
    assert work.attempt is not None
    assert (work.attempt.id, work.attempt.epoch) == (chat.attempt_id, chat.epoch)
    assert (work.attempt.turn_id, work.attempt.step, work.attempt.number) == (chat.turn_id, 2, 1)
    assert (work.parts, work.n) == ([part for row in said for part in row], 3)
    assert (work.next_step, work.usage) == (3, USED)


async def test_the_next_step_is_the_one_that_the_store_will_number_so(store: Store, engine: AsyncEngine) -> None:
    chat = await make(store, engine)
    await chat.do(c.Acquire(worker_id="live"))
    for expected in (1, 2, 3):
        for _ in range(2):  # an attempt that left nothing does not count
            assert (await store.work(chat.id)).next_step == expected
            named = (await chat.start()).attempt
            assert named is not None
            assert named.step == expected
            await chat.do(chat.name(c.AnnounceRetry), retry={})
        await chat.start()
        await chat.end(c.CommitStep, pending=[TextDelta("1", "Well."), Finish()])


async def test_the_usage_is_the_last_replys_even_if_that_is_not_known(store: Store, engine: AsyncEngine) -> None:
    chat = await make(store, engine)
    await chat.work("live", TextDelta("1", "One."))
    await chat.end(c.CommitStep, pending=[Finish(usage=USED)])
    assert (await store.work(chat.id)).usage == USED
    await chat.start()
    await chat.end(c.CommitStep, pending=[TextDelta("1", "Two."), Finish()])
    assert (await store.work(chat.id)).usage is None


async def test_work_is_of_one_moment_whatever_is_written_meanwhile(store: Store, engine: AsyncEngine) -> None:
    """A step is open or it is in the conversation, never both and never neither."""
    chat = await make(store, engine)
    await chat.do(c.Acquire(worker_id="live"))
    for step in range(1, 13):
        await chat.start()
        await chat.say(TextDelta("1", f"step {step}"), Finish())
        seen = await asyncio.gather(store.work(chat.id), chat.end(c.CommitStep), store.work(chat.id))
        for work in (seen[0], seen[2]):
            said = [message.text for message in work.messages if message.role == "assistant"]
            assert (work.attempt is None) == (f"step {step}" in said)


# --- held ---


async def test_a_worker_reads_what_it_holds_and_what_is_wanted_of_it(store: Store, engine: AsyncEngine) -> None:
    await store.beat("other")
    running, stopped, others, released = [await make(store, engine) for _ in range(4)]
    for chat, worker in ((running, "live"), (stopped, "live"), (others, "other"), (released, "live")):
        await chat.work(worker)
    await stopped.do(c.Interrupt())
    await released.end(c.Release)
    assert sorted(await store.held("live")) == sorted(
        [
            Held(running.id, Status.RUNNING, running.epoch, running.turn_id),
            Held(stopped.id, Status.INTERRUPTING, stopped.epoch, stopped.turn_id),
        ]
    )
    assert await store.held("nobody") == []


async def test_what_was_taken_away_is_not_held_any_more(store: Store, engine: AsyncEngine) -> None:
    chat = await make(store, engine)
    await chat.work()
    await chat.do(c.Edit(message_id=await chat.last_id("user")), "Rather this")
    assert await store.held("live") == []


async def test_the_next_turn_is_held_by_the_same_worker(store: Store, engine: AsyncEngine) -> None:
    chat = await make(store, engine)
    await chat.work()
    await chat.do(c.Send(), "And now?")
    first = chat.turn_id
    await chat.end(c.FinishTurn, pending=[Finish()])
    assert await store.held("live") == [Held(chat.id, Status.RUNNING, chat.epoch, chat.turn_id)]
    assert chat.turn_id != first


# --- expired ---


async def wait_outside(chat: Driver, *, deadline_s: float | None) -> Driver:
    await chat.work("live", LOOK, Finish("tool_calls"))
    await chat.end(c.AwaitAction, deadline_s=deadline_s)
    return chat


async def set_deadline(engine: AsyncEngine, chat: Driver, ago_s: float) -> None:
    async with begin_write(engine) as connection:
        then = datetime.now(UTC) - timedelta(seconds=ago_s)
        await connection.execute(update(chats).where(chats.c.id == chat.id).values(deadline_at=then))


async def test_chats_that_waited_in_vain_are_found_the_longest_waiting_first(store: Store, engine: AsyncEngine) -> None:
    late, later, patient, endless = [await make(store, engine) for _ in range(4)]
    for chat, deadline_s in ((late, 60.0), (later, 60.0), (patient, 3600.0), (endless, None)):
        await wait_outside(chat, deadline_s=deadline_s)
    await set_deadline(engine, late, 5)
    await set_deadline(engine, later, 50)
    found = [Expired(later.id, later.turn_id), Expired(late.id, late.turn_id)]
    assert await store.expired(limit=9) == found
    assert await store.expired(limit=1) == found[:1]
    await later.do(c.ActionExpired(turn_id=later.turn_id))
    assert await store.expired(limit=9) == [found[1]]


async def test_a_chat_that_was_answered_is_not_overdue(store: Store, engine: AsyncEngine) -> None:
    chat = await wait_outside(await make(store, engine), deadline_s=60)
    await set_deadline(engine, chat, 5)
    result = ToolResult(call_id="c1", name="look", output="seen")
    await chat.do(c.ToolResults(call_ids=("c1",)), results=[result])
    assert await store.expired(limit=9) == []


# --- workers and users ---


async def list_workers(engine: AsyncEngine) -> set[str]:
    async with begin_read(engine) as connection:
        return set((await connection.execute(select(workers.c.id))).scalars())


async def test_when_all_workers_are_retired_their_chats_are_anybodys_at_once(store: Store, engine: AsyncEngine) -> None:
    chat = await make(store, engine)
    await chat.work()
    await store.retire_all()
    assert await list_workers(engine) == set()
    await store.beat("new")
    assert [outcome.chat_id for outcome in await store.acquire("new", limit=9)] == [chat.id]


async def test_cleaning_up_forgets_old_keys_and_workers_long_dead_and_nothing_else(
    store: Store, engine: AsyncEngine
) -> None:
    chat = await make(store, engine)
    await chat.do(c.Acquire(worker_id="dead"))
    for key in ("old", "young"):
        request = IdempotencyKey(user_id=OWNER, key=key, route="POST /messages", body_hash=b"1")
        words = UserInput(blocks=[Text(key)])
        await store.execute(
            chat.id, c.Send(), words, key=request._replace(respond=lambda outcome: StoredResponse(202, b"{}"))
        )
    async with begin_write(engine) as connection:
        long_ago = datetime.now(UTC) - timedelta(seconds=1)
        old = idempotency_keys.c.key == "old"
        await connection.execute(update(idempotency_keys).where(old).values(expires_at=long_ago))
    await store.clean_up(dead_for_s=2 * 24 * 3600)
    assert await list_workers(engine) == {"live", "dead"}, "dead for a day, not for two"
    await store.clean_up(dead_for_s=3600)
    assert await list_workers(engine) == {"live"}
    async with begin_read(engine) as connection:
        assert list((await connection.execute(select(idempotency_keys.c.key))).scalars()) == ["young"]
    await chat.do(c.Acquire(worker_id="live"))
    assert (await chat.row()).holder == "live", "a chat that names a forgotten worker is anybody's"


async def test_a_user_is_made_once_and_found_again(store: Store, engine: AsyncEngine) -> None:
    ids = await asyncio.gather(*(store.ensure_user("grace") for _ in range(6)))
    assert len(set(ids)) == 1
    assert await store.ensure_user("Ada") == OWNER
    assert await store.ensure_user("ada") not in {OWNER, ids[0]}
    async with begin_read(engine) as connection:
        assert sorted((await connection.execute(select(users.c.name))).scalars()) == ["Ada", "ada", "grace"]


@pytest.mark.parametrize("name", ["", " ada", "ada\n", "a\0", "x" * (LONGEST_USER_NAME + 1), "\x1b[31m"])
async def test_a_user_gets_no_name_that_an_account_may_not_have(store: Store, engine: AsyncEngine, name: str) -> None:
    with pytest.raises(Invalid, match="printable"):
        await store.ensure_user(name)
    async with begin_write(engine) as connection:
        assert list((await connection.execute(select(users.c.name))).scalars()) == ["Ada"]
        await connection.execute(insert(users).values(id="old", name=clean_label(name), created_at=datetime.now(UTC)))
    assert await store.ensure_user(name) == "old", "a user who has such a name is found"


async def test_a_user_that_was_made_may_own_chats(store: Store) -> None:
    owner_id = await store.ensure_user("grace")
    await store.execute("chat_1", c.Create(), NewChat(owner_id=owner_id))
    assert [chat.id for chat in await store.list_chats(owner_id)] == ["chat_1"]


async def test_a_chat_has_an_owner_if_it_is_there(store: Store, engine: AsyncEngine) -> None:
    chat = await make(store, engine)
    assert await store.owner(chat.id) == OWNER
    await chat.do(c.Delete())
    assert await store.owner(chat.id) is None
