"""Ends of steps and turns that hardly ever come, on both databases: each of them has its line in turn_writer.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.log_records import DATABASE_AWAY
from tests.support.app_harness import AppHarness, DroppingNotifier, RunningWorker, WatchedStore, make_settings
from tests.support.messages import find_notices, find_reply, outline, read_text
from tests.support.waiting import DEADLINE_S, Watched, wait_for_task

from indelible.app.chat import Chat
from indelible.content import Part, TextDelta, ToolResult, ToolStarted, Usage, decode_parts, encode
from indelible.errors import ModelFailed
from indelible.ids import new_id
from indelible.machine.commands import Command, CommitStep, Interrupt, StartAttempt
from indelible.models.protocol import Call
from indelible.store.database.errors import DatabaseUnreachable
from indelible.store.journal.append import Appended, JournalRow, RunKey, RunStarted
from indelible.store.outcome import Outcome
from indelible.store.payloads import AttemptStart
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script
from indelible.tools.tool import tool

pytestmark = pytest.mark.both_databases

HI: Script = [parts.text_delta("1", "Hi"), parts.finish()]
CALL: Sequence[Part] = [parts.tool_call("c1", "work", "{}"), parts.finish("tool_calls")]


# --- S96: a turn that lost a worker while its tool ran ---


class CountedStore(WatchedStore, Watched):
    """Remembers how many suspects each search asked for."""

    def __init__(self, store: Any) -> None:
        WatchedStore.__init__(self, store)
        Watched.__init__(self)
        self.asked: list[int | None] = []

    async def acquire(self, *given: Any, **named: Any) -> list[Outcome]:
        found = await self._store.acquire(*given, **named)
        self.asked.append(named["suspects"])
        self.changed()
        return found

    async def search_twice(self) -> list[int | None]:
        """How many suspects two searches ask for, the second of which begins later than now."""
        before = len(self.asked)
        await self.wait_until(lambda: len(self.asked) > before + 1, what="two more searches")
        return self.asked[before : before + 2]


async def lose_two_workers_in_the_tool(harness: AppHarness, chat: Chat) -> None:
    """The chat's turn was taken over once, and its tool has started and not settled."""
    (taken,) = await harness.store.acquire(new_id("worker"), limit=1, chat_ids=[chat.id])
    turn_id = taken.turn_id or ""
    command = StartAttempt(epoch=taken.epoch, turn_id=turn_id)
    started = await harness.store.execute(chat.id, command, AttemptStart(model="scripted", provider="scripted"))
    assert started.attempt is not None
    name = started.attempt
    key = f"{turn_id}/{name.step}/0"
    change = RunStarted(RunKey(turn_id, name.step, 0), name.id, "c1", "work", "{}", key)
    written = encode([*CALL, ToolStarted("c1", "work")])
    await harness.store.append([JournalRow(chat.id, name.id, taken.epoch, 1, written, (change,))])
    (again,) = await harness.store.acquire(new_id("worker"), limit=1, chat_ids=[chat.id])
    assert (again.takeovers, again.in_tool) == (1, True)


async def test_s96_a_suspect_is_on_trial_until_its_tool_has_settled(harness: AppHarness) -> None:
    began, may_settle, asked, may_answer = [asyncio.Event() for _ in range(4)]
    runs: list[str] = []

    async def answer() -> AsyncIterator[Part]:
        asked.set()
        await may_answer.wait()
        yield TextDelta("1", "Hi")
        yield parts.finish()

    async def work() -> str:
        runs.append("run")
        began.set()
        await may_settle.wait()
        return "done"

    chats = [await harness.app.create_chat("Go") for _ in range(2)]
    for chat in chats:
        await lose_two_workers_in_the_tool(harness, chat)
    store = CountedStore(harness.store)
    model = ScriptedModel([lambda call: answer(), lambda call: answer()])
    await harness.start_worker(model, store=store, tools=[tool(work, idempotent=True)])
    await began.wait()
    assert (await store.search_twice())[1] == 0
    assert runs == ["run"]
    may_settle.set()
    await asked.wait()
    assert 1 in await store.search_twice()
    may_answer.set()
    for chat in chats:
        await harness.wait_for_end(chat)
    assert runs == ["run", "run"]


async def test_s96_a_suspect_without_a_tool_is_on_trial_until_it_has_a_new_part(harness: AppHarness) -> None:
    asked, may_begin, may_end = [asyncio.Event() for _ in range(3)]
    tried: list[str] = []

    async def answer(call: Call) -> AsyncIterator[Part]:
        tried.append(read_text(call.messages[-1].blocks))
        asked.set()
        await may_begin.wait()
        yield TextDelta("1", "Hi")
        await may_end.wait()
        yield parts.finish()

    chats = {text: await harness.app.create_chat(text) for text in ("One", "Two")}
    for chat in chats.values():
        await harness.store.acquire(new_id("worker"), limit=1, chat_ids=[chat.id])
        (taken,) = await harness.store.acquire(new_id("worker"), limit=1, chat_ids=[chat.id])
        assert (taken.takeovers, taken.in_tool) == (1, False)
    store = CountedStore(harness.store)
    await harness.start_worker(ScriptedModel([answer, answer]), store=store)
    await asked.wait()
    assert (await store.search_twice())[1] == 0
    may_begin.set()
    await harness.wait_for_text(chats[tried[0]], "Hi")
    assert 1 in await store.search_twice()
    may_end.set()
    for chat in chats.values():
        await harness.wait_for_end(chat)


async def test_s96_a_turn_that_lost_one_worker_only_is_on_no_trial(harness: AppHarness) -> None:
    asked, may_end = asyncio.Event(), asyncio.Event()

    async def answer() -> AsyncIterator[Part]:
        asked.set()
        await may_end.wait()
        yield parts.finish()

    chat = await harness.app.create_chat("Go")
    await harness.store.acquire(new_id("worker"), limit=1, chat_ids=[chat.id])
    store = CountedStore(harness.store)
    await harness.start_worker(ScriptedModel([lambda call: answer()]), store=store)
    await asked.wait()
    assert (await store.search_twice())[1] == 1
    may_end.set()
    await harness.wait_for_end(chat)


# --- a commit whose answer is lost ---


@pytest.mark.may_log(*DATABASE_AWAY)
async def test_r5_a_steer_of_a_commit_whose_answer_was_lost_is_in_the_next_prompt(harness: AppHarness) -> None:
    gate, lost = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        await gate.wait()
        return "waited"

    async def lose(command: Command) -> None:
        if isinstance(command, CommitStep) and not lost.is_set():
            lost.set()
            raise DatabaseUnreachable("The connection was lost. Try again.")

    model = ScriptedModel([CALL, HI])
    await harness.start_worker(model, store=WatchedStore(harness.store, after=lose), tools=[work])
    chat = await harness.app.create_chat("Work")
    await harness.wait_until(chat, lambda view: view.live is not None and bool(view.live.blocks))
    await chat.post("In French", if_busy="steer")
    gate.set()
    await harness.wait_for_end(chat)
    assert lost.is_set()
    assert [(message.role, read_text(message.blocks)) for message in model.calls[1].messages][-1] == (
        "user",
        "In French",
    )
    assert [message.role for message in await chat.messages()] == ["user", "assistant", "tool", "user", "assistant"]
    assert len((await harness.load(chat)).turns) == 1


# --- a hand-over ---


class SlowStore(WatchedStore):
    """Its rows wait until the test lets them go on."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.waits = asyncio.Event()
        self.gate = asyncio.Event()

    async def append(self, rows: Sequence[JournalRow]) -> Appended:
        self.waits.set()
        await self.gate.wait()
        return await self._store.append(rows)


async def test_the_calls_of_a_reply_whose_end_was_not_written_yet_are_run_by_the_next_worker(
    harness: AppHarness,
) -> None:
    leaving, store = asyncio.Event(), SlowStore(harness.store)
    workers: list[RunningWorker] = []
    runs: list[str] = []

    async def work() -> str:
        runs.append("run")
        return "done"

    async def say() -> AsyncIterator[Part]:
        try:
            yield TextDelta("1", "Hi")
            await store.waits.wait()
            for part in CALL:
                yield part
        finally:  # the reply is complete: its worker is told to leave before any of its tools begins
            workers[0].worker._scope.on_cancel(leaving.set)
            workers[0].worker.stop()
            await leaving.wait()
            store.gate.set()

    settings = make_settings(tool_grace_s=DEADLINE_S)
    model = ScriptedModel([lambda call: say()])
    workers.append(await harness.start_worker(model, store=store, settings=settings, tools=[work]))
    chat = await harness.app.create_chat("Go")
    await wait_for_task(workers[0].task, what="the worker")
    assert ((await harness.store.view(chat.id)).status, runs) == ("pending", [])
    await harness.start_worker(ScriptedModel([[TextDelta("1", "Done"), parts.finish()]]), tools=[work])
    await harness.wait_for_end(chat)
    assert runs == ["run"]
    assert outline(await chat.messages()) == [
        ("user", "Go"), ("assistant", "Hi"), ("tool", "done"), ("assistant", "Done"),
    ]  # fmt: skip


# --- a retry ---


async def test_what_a_failed_attempt_sent_while_its_row_was_underway_is_in_the_journal(harness: AppHarness) -> None:
    """Nobody sees it, but it has to be paid for."""
    store, failed = SlowStore(harness.store), asyncio.Event()
    said: list[Part] = [
        parts.reasoning_start("r"),
        parts.reasoning_delta("r", "Hm"),
        parts.usage(Usage(input_tokens=7)),
    ]

    async def say() -> AsyncIterator[Part]:
        yield said[0]
        await store.waits.wait()
        for part in said[1:]:
            yield part
        failed.set()
        raise ModelFailed("Busy.", kind="overloaded")

    await harness.start_worker(ScriptedModel([lambda call: say(), HI]), store=store)
    chat = await harness.app.create_chat("Go")
    await failed.wait()
    for _ in range(100):  # whoever does not wait for the row has time not to
        await harness.store.view(chat.id)
    store.gate.set()
    await harness.wait_for_end(chat)
    stored = await harness.load(chat)
    rows = [row for row in stored.journal if row.attempt_id == stored.attempts[0].id]
    kept = [part for row in rows for part in decode_parts(row.parts)]
    assert [type(part) for part in kept] == [type(part) for part in said]
    assert kept[1:] == said[1:]


# --- a stop ---


async def test_a_step_that_is_committed_while_the_chat_is_being_stopped_is_the_turns_last_command(
    harness: AppHarness,
) -> None:
    """Its worker hears of the stop in no other way."""
    commands: list[type[Command]] = []

    async def stop(command: Command) -> None:
        commands.append(type(command))
        if isinstance(command, CommitStep):
            assert (await harness.store.execute(chat.id, Interrupt())).status == "interrupting"

    async def work() -> str:
        return "done"

    chat = await harness.app.create_chat("Go")
    store, settings = WatchedStore(harness.store, before=stop), make_settings(poll_interval_s=600)
    model = ScriptedModel([CALL, HI])
    running = await harness.start_worker(
        model, store=store, tools=[work], notifier=DroppingNotifier(), settings=settings
    )
    await harness.wait_for_end(chat)
    await harness.stop_worker(running)
    assert commands == [StartAttempt, CommitStep]
    assert len(model.calls) == 1
    assert outline(await chat.messages()) == [
        ("user", "Go"), ("assistant", ""), ("tool", "done"), ("notice", "Stopped by you."),
    ]  # fmt: skip


async def test_a_stop_with_nothing_but_held_back_text_keeps_it(harness: AppHarness) -> None:
    """It might be the beginning of a tag, so nobody has seen it, and no first part has a time."""
    held = asyncio.Event()

    async def say() -> AsyncIterator[Part]:
        yield TextDelta("1", "<thi")
        held.set()
        await asyncio.get_running_loop().create_future()

    await harness.start_worker(ScriptedModel([lambda call: say()]))
    chat = await harness.app.create_chat("Go")
    await held.wait()
    assert (await chat.interrupt()).status == "idle"
    messages = await chat.messages()
    assert outline(messages)[1] == ("assistant", "<thi")
    assert find_notices(messages) == ["Stopped by you."]
    reply = find_reply(messages)
    assert (reply.partial, reply.reason) == (True, "interrupted")
    assert [row.outcome for row in (await harness.load(chat)).turns] == ["interrupted"]
    assert not any(isinstance(block, ToolResult) for block in reply.blocks)
