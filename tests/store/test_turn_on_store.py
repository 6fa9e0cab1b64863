"""The loop on the store: one turn, its parts through the journal, its steps as commands, on both databases.

What joins the two will be the worker. Here a few lines stand in for it, so that the promises that need both
(S4, S20, S21, S24, S25, S58–S60, S63) can be tried on real databases.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.engine import begin_write, get_database, transact
from tests.support.loop_harness import run_turn
from tests.support.stored import load_path
from tests.support.tables import users

from indelible import tool
from indelible.content import Message, Part, Text, TextDelta, ToolResult
from indelible.errors import Interrupted, LeaseLost, Shutdown
from indelible.loop import CancelScope, FinishedStep
from indelible.loop.prompt.build import build_prompt
from indelible.machine.commands import (
    Acquire,
    CommitStep,
    Create,
    Edit,
    FinishInterruption,
    FinishTurn,
    Interrupt,
    Release,
    StartAttempt,
)
from indelible.machine.states import Status
from indelible.models import Call
from indelible.store.journal.writer import Journal, JournalWriter
from indelible.store.outcome import Outcome
from indelible.store.payloads import Leftover, NewChat, StepResult, UserInput
from indelible.store.queries.chat_view import ChatView, load_view
from indelible.store.queries.leases import beat
from indelible.store.store import Store
from indelible.testing import ManualClock, ScriptedModel, parts

NOW = datetime(2026, 11, 15, tzinfo=UTC)
HELLO = [parts.text_delta("1", "Hel"), parts.text_delta("1", "lo")]


@tool
async def weather(city: str) -> str:
    return f"rain in {city}"


class Desk:
    """A chat that a worker holds, and the worker's few lines between loop and store."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.store = Store(get_database(engine), lease_timeout_s=3600)
        self.scope = CancelScope()
        self.saves = 0
        self.before_save: Callable[[int], Any] = lambda number: None
        self.spoken = asyncio.Event()
        self.journal = Journal(
            self.store, clock=ManualClock(skip_sleeps=True), on_committed=lambda rows: self.spoken.set(), interval_s=0
        )
        self.writer: JournalWriter | None = None
        self.attempt_id: str | None = None

    async def begin(self) -> None:
        async with begin_write(self.engine) as connection:
            await connection.execute(insert(users).values(id="user_1", name="ada", created_at=NOW))
        await transact(self.engine, beat, "worker_1")
        words = NewChat(owner_id="user_1", blocks=[Text("Is it raining?")])
        self.turn_id = (await self.store.execute("chat_1", Create(with_message=True), words)).turn_id or ""
        self.epoch = (await self.store.execute("chat_1", Acquire(worker_id="worker_1"))).epoch

    async def play(self, *streams: Any) -> None:
        """Play a turn. The flusher outlives it, as it does in a worker that hands over."""
        flusher = asyncio.create_task(self.journal.run())
        try:
            await run_turn(
                model=ScriptedModel(list(streams), provider="anthropic"),
                messages=await load_path(self.store, "chat_1"),
                persist_step=self.save,
                tools=[weather],
                scope=self.scope,
                publish=self.publish,
                open_attempt=self.start_attempt,
            )
        finally:
            flusher.cancel()
            await asyncio.wait([flusher])

    async def start_attempt(self, step: int, number: int) -> None:
        started = await self.store.execute("chat_1", StartAttempt(epoch=self.epoch, turn_id=self.turn_id))
        assert started.attempt is not None
        self.attempt_id = started.attempt.id
        self.writer = self.journal.open(started.attempt.chat_id, started.attempt.id, started.attempt.epoch)

    def publish(self, part: Part) -> Any:
        assert self.writer is not None
        return self.writer.publish(part)

    async def save(self, step: FinishedStep) -> list[Message]:
        self.saves += 1
        answer = self.before_save(self.saves)
        if asyncio.iscoroutine(answer):
            await answer
        assert self.writer is not None
        assert self.attempt_id is not None
        await self.journal.drain(self.writer)
        command: type[FinishTurn | CommitStep | FinishInterruption] = FinishTurn if step.last else CommitStep
        if step.reason == "interrupted":
            command = FinishInterruption
        words = StepResult(pending=await self.writer.close())
        saved = await self.store.execute(
            "chat_1", command(epoch=self.epoch, turn_id=self.turn_id, attempt_id=self.attempt_id), words
        )
        if saved.status is not Status.RUNNING and not step.last:
            self.scope.interrupt()
        return saved.steers

    async def stop(self) -> Outcome:
        outcome = await self.store.execute("chat_1", Interrupt())
        self.scope.interrupt()
        return outcome

    async def view(self) -> ChatView:
        return await transact(self.engine, load_view, "chat_1", lease_timeout_s=3600)

    async def read(self) -> list[tuple[str, str]]:
        return [(message.role, message.text) for message in await load_path(self.store, "chat_1")]


@pytest.fixture
async def desk(engine: AsyncEngine) -> Desk:
    desk = Desk(engine)
    await desk.begin()
    return desk


async def test_a_turn_with_a_tool_is_in_history_and_the_chat_waits(desk: Desk) -> None:
    ask = [parts.tool_call("c1", "weather", '{"city": "Oslo"}'), parts.finish("tool_calls")]
    await desk.play(ask, [parts.text_delta("1", "Yes."), parts.finish("stop")])
    view = await desk.view()
    assert [message.role for message in view.messages] == ["user", "assistant", "tool", "assistant"]
    (result,) = view.messages[2].blocks
    assert isinstance(result, ToolResult)
    assert (result.call_id, result.name, result.output) == ("c1", "weather", "rain in Oslo")
    assert result.started_at is not None
    assert result.duration_s is not None
    assert (view.status, view.live, view.turn) == ("idle", None, None)


async def stop_when_spoken(desk: Desk) -> None:
    playing = asyncio.create_task(desk.play([*HELLO, parts.hang()]))
    await desk.spoken.wait()
    await desk.stop()
    with pytest.raises(Interrupted):
        await playing


async def test_s58_s59_a_stop_keeps_the_partial_and_then_the_notice(desk: Desk) -> None:
    await stop_when_spoken(desk)
    view = await desk.view()
    assert [(message.role, message.partial) for message in view.messages] == [
        ("user", False),
        ("assistant", True),
        ("notice", False),
    ]
    assert view.messages[1].text == "Hello"
    assert (view.status, view.error) == ("idle", None)


async def test_s63_the_next_prompt_has_the_partial_and_not_the_notice(desk: Desk) -> None:
    await stop_when_spoken(desk)
    prompt = build_prompt(await load_path(desk.store, "chat_1"), provider="anthropic")
    said = ["".join(getattr(block, "text", "") for block in entry.blocks) for entry in prompt]
    assert said[:2] == ["Is it raining?", "Hello"]
    assert not any("Stopped" in text for text in said)


async def test_s60_a_stop_before_any_token_leaves_only_the_notice(desk: Desk) -> None:
    opened = asyncio.Event()

    async def silent(call: Call) -> AsyncIterator[Part]:
        opened.set()
        await asyncio.Event().wait()
        yield parts.finish("stop")

    playing = asyncio.create_task(desk.play(silent))
    await opened.wait()
    await desk.stop()
    with pytest.raises(Interrupted):
        await playing
    command = FinishInterruption(epoch=desk.epoch, turn_id=desk.turn_id)
    await desk.store.execute("chat_1", command)
    assert await desk.read() == [("user", "Is it raining?"), ("notice", "Stopped by you.")]
    assert (await desk.view()).status == "idle"


async def test_s24_a_save_that_answers_interrupted_is_followed_by_one_that_holds_everything(desk: Desk) -> None:
    async def answer_interrupted(number: int) -> None:
        if number == 1:
            await desk.store.execute("chat_1", Interrupt())
            raise Interrupted

    desk.before_save = answer_interrupted
    with pytest.raises(Interrupted):
        await desk.play([*HELLO, parts.finish("stop")])
    assert desk.saves == 2
    assert await desk.read() == [("user", "Is it raining?"), ("assistant", "Hello"), ("notice", "Stopped by you.")]


async def test_s25_a_stop_just_before_the_commit_loses_nothing(desk: Desk) -> None:
    async def stop(number: int) -> None:
        await desk.stop()

    desk.before_save = stop
    with pytest.raises(Interrupted):
        await desk.play([*HELLO, parts.finish("stop")])
    assert desk.saves == 1
    assert await desk.read() == [("user", "Is it raining?"), ("assistant", "Hello"), ("notice", "Stopped by you.")]
    assert not (await desk.view()).messages[1].partial


async def test_s4_a_late_save_after_a_stop_that_ended_the_turn_is_a_success_and_changes_nothing(desk: Desk) -> None:
    """The holder looked dead, so the stop ended the turn from the journal; then its save arrives."""

    async def stop_without_holder(number: int) -> None:
        assert desk.writer is not None
        await desk.journal.drain(desk.writer)
        impatient = Store(get_database(desk.engine), lease_timeout_s=-1)
        await impatient.execute("chat_1", Interrupt())
        desk.scope.interrupt()

    desk.before_save = stop_without_holder
    with pytest.raises(Interrupted):
        await desk.play([*HELLO, parts.finish("stop")])
    assert await desk.read() == [("user", "Is it raining?"), ("assistant", "Hello"), ("notice", "Stopped by you.")]


async def test_s5_a_late_save_after_an_edit_is_refused_and_leaves_no_stale_row(desk: Desk) -> None:
    first = (await load_path(desk.store, "chat_1"))[0].id or ""

    async def edit(number: int) -> None:
        await desk.store.execute("chat_1", Edit(message_id=first), UserInput(blocks=[Text("Is it snowing?")]))

    desk.before_save = edit
    with pytest.raises(LeaseLost):
        await desk.play([*HELLO, parts.finish("stop")])
    assert await desk.read() == [("user", "Is it snowing?")]


async def test_s20_s21_a_shutdown_hands_the_chat_over_and_an_interrupt_puts_it_to_rest(desk: Desk) -> None:
    playing = asyncio.create_task(desk.play([*HELLO, parts.hang()]))
    await desk.spoken.wait()
    desk.scope.shutdown()
    with pytest.raises(Shutdown):
        await playing
    assert desk.saves == 0
    assert desk.writer is not None
    await desk.store.execute("chat_1", Release(epoch=desk.epoch), Leftover(pending=await desk.writer.close()))
    view = await desk.view()
    assert view.status == "pending"
    assert [(message.role, message.text, message.reason) for message in view.messages] == [
        ("user", "Is it raining?", None),
        ("assistant", "Hello", "handed_over"),
    ]


async def test_what_a_reader_sees_is_committed_before(desk: Desk) -> None:
    """P1: the view that follows the first hint already holds the text, while the model goes on."""
    playing = asyncio.create_task(desk.play([TextDelta("1", "Hello"), parts.hang()]))
    await desk.spoken.wait()
    live = (await desk.view()).live
    assert live is not None
    assert live.blocks == [Text("Hello")]
    await desk.stop()
    with pytest.raises(Interrupted):
        await playing
