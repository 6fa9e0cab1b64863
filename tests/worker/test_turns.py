"""Turns through the whole stack: models that fail, the queue, steers, branches.

Whatever happens on the way, a reader sees one reply, the model gets a legal history, and every turn has one end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from tests.support.app_harness import AppHarness, LongSleeps, WatchedStore, make_settings
from tests.support.messages import find_notices, find_reply, outline, read_text
from tests.support.stored import load_path
from tests.support.waiting import deadline

from indelible.content import Part, TextDelta
from indelible.errors import ModelFailed, NotAllowed
from indelible.machine.commands import Command
from indelible.models.protocol import Call
from indelible.store.commands.change import CONTINUE
from indelible.store.database.errors import DatabaseUnreachable
from indelible.store.journal.append import Appended, JournalRow
from indelible.store.store import Store
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script

BUSY = ModelFailed("It is overloaded.", kind="overloaded", provider="scripted", status=529)
NO_KEY = ModelFailed("The key is wrong.", kind="auth", provider="scripted", status=401)


def say(text: str) -> Script:
    return [parts.text_delta("1", text), parts.finish()]


HI = say("Hi")
ROLL: Script = [parts.tool_call("c1", "roll", "{}"), parts.finish("tool_calls")]


async def roll() -> str:
    return "4"


def read_prompt(call: Call) -> list[tuple[str, str]]:
    return [(message.role, read_text(message.blocks)) for message in call.messages]


# --- a provider that fails ---


async def test_failure_after_a_hundred_tokens_keeps_them_and_goes_on(harness: AppHarness) -> None:
    tokens = [f"{number} " for number in range(100)]
    model = ScriptedModel([[*(parts.text_delta("1", token) for token in tokens), BUSY], say("and done")])
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    reply = await chat.send("Count")
    assert (reply.text, reply.outcome) == ("".join(tokens) + "and done", "complete")
    first, second = [message for message in await chat.messages() if message.role == "assistant"]
    assert (first.partial, first.reason, second.partial, second.continues) == (True, "failed", False, first.id)
    assert read_text(first.blocks) + read_text(second.blocks) == reply.text
    stored = await load_path(harness.store, chat.id)
    assert [(message.visibility, read_text(message.blocks)) for message in stored if message.visibility == "model"] == [
        ("model", CONTINUE)
    ]
    assert read_prompt(model.calls[1]) == [("user", "Count"), ("assistant", "".join(tokens)), ("user", CONTINUE)]
    told = "".join(part.text for event in await harness.read_events(chat) for part in event.parts)
    assert told == reply.text


async def test_retries_exhausted_after_text_keep_it_and_retry_continues_with_another_model(harness: AppHarness) -> None:
    model = ScriptedModel([[parts.text_delta("1", "One, "), BUSY], [parts.text_delta("1", "two, "), BUSY]])
    other = ScriptedModel([say("three.")], name="other")
    await harness.start_worker(model, models={"other": other}, settings=make_settings(retry_max_attempts=2))
    chat = await harness.app.create_chat()
    reply = chat.send("Count")
    with pytest.raises(ModelFailed) as failed:
        await reply
    assert (failed.value.kind, failed.value.message, reply.text) == ("overloaded", BUSY.message, "One, two, ")
    view = await harness.store.view(chat.id)
    assert (view.status, view.error["kind"], view.error["message"]) == ("error", "overloaded", BUSY.message)
    assert outline(view.messages)[-1] == ("notice", BUSY.message)
    again = await chat.retry(model="other")
    assert (again.text, again.outcome) == ("three.", "complete")
    assert read_prompt(other.calls[0])[-1] == ("user", CONTINUE)
    last = find_reply(await chat.messages())
    partials = [message for message in await chat.messages() if message.partial]
    assert (last.continues, last.model, len(partials)) == (partials[-1].id, "other", 2)
    assert (await harness.store.view(chat.id)).error is None


async def test_retry_with_nothing_shown_asks_anew(harness: AppHarness) -> None:
    model = ScriptedModel([[NO_KEY], HI])
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    with pytest.raises(ModelFailed, match="The key is wrong"):
        await chat.send("Hello")
    assert (await chat.retry()).text == "Hi"
    assert read_prompt(model.calls[1]) == [("user", "Hello")]
    assert [turn.outcome for turn in (await harness.load(chat)).turns] == ["failed", "complete"]


async def test_failure_before_text_is_announced_with_its_wait_and_then_succeeds(harness: AppHarness) -> None:
    clock = LongSleeps()
    waits = ModelFailed("Too fast.", kind="rate_limit", provider="scripted", status=429, retry_after_s=30.0)
    await harness.start_worker(ScriptedModel([[parts.reasoning_delta("r", "Hm"), waits], HI]), clock=clock)
    chat = await harness.app.create_chat("Hello")
    await clock.waiting.wait()
    snapshot = await harness.feed.snapshot(chat.id)
    assert snapshot.retry is not None
    told = [snapshot.retry[name] for name in ("number", "delay_ms", "kind", "provider", "status", "message")]
    assert told == [1, 30000, "rate_limit", "scripted", 429, "Too fast."]
    assert "retrying_at" in snapshot.retry
    assert (snapshot.live, snapshot.status) == (None, "running")
    clock.continue_.set()
    view = await harness.wait_for_end(chat)
    assert (view.status, view.retry, outline(view.messages)) == ("idle", None, [("user", "Hello"), ("assistant", "Hi")])
    kinds = [event.kind for event in await harness.read_events(chat)]
    assert kinds.index("retry") < kinds.index("status", kinds.index("retry"))
    attempts = (await harness.load(chat)).attempts
    assert [(row.step, row.number, row.outcome) for row in attempts] == [(1, 1, "reset"), (1, 2, "complete")]


async def test_a_model_nobody_has_is_an_error_that_retry_mends(harness: AppHarness) -> None:
    await harness.start_worker(models={"good": ScriptedModel([HI])})
    chat = await harness.app.create_chat()
    with pytest.raises(ModelFailed) as failed:
        await chat.send("Hello", model="nonesuch")
    assert failed.value.kind == "config"
    assert outline(await chat.messages())[0] == ("user", "Hello")
    with pytest.raises(ModelFailed):
        await chat.retry()
    assert (await chat.retry(model="good")).text == "Hi"


async def test_a_model_that_says_nothing_is_told_so(harness: AppHarness) -> None:
    await harness.start_worker(ScriptedModel([[parts.finish()]]))
    chat = await harness.app.create_chat()
    reply = await chat.send("Hello")
    assert (reply.text, reply.outcome) == ("", "complete")
    assert find_notices(await chat.messages()) == ["The model returned nothing."]


async def test_a_reply_cut_at_its_length_is_marked_and_can_be_continued(harness: AppHarness) -> None:
    await harness.start_worker(ScriptedModel([[parts.text_delta("1", "One"), parts.finish("length")], say(" two")]))
    chat = await harness.app.create_chat()
    await chat.send("Count")
    cut = find_reply(await chat.messages())
    assert (cut.partial, cut.reason) == (True, "length")
    assert (await chat.continue_()).text == " two"
    assert find_reply(await chat.messages()).continues == cut.id


@pytest.mark.may_log("the model scripted:scripted raised an error")
async def test_something_broken_in_a_turn_parks_it_as_an_error(harness: AppHarness) -> None:
    def broken(call: Call) -> AsyncIterator[Part]:
        return 7  # type: ignore[return-value]

    await harness.start_worker(ScriptedModel([broken, HI]))
    chat = await harness.app.create_chat()
    with pytest.raises(ModelFailed):
        await chat.send("Hello")
    assert (await chat.retry()).text == "Hi"


async def test_max_steps_ends_the_turn(harness: AppHarness) -> None:
    await harness.start_worker(ScriptedModel([ROLL, ROLL]), tools=[roll], settings=make_settings(max_steps=2))
    chat = await harness.app.create_chat()
    reply = await chat.send("Roll for ever")
    assert reply.outcome == "complete"
    roles = [message.role for message in await chat.messages()]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "notice"]


@pytest.mark.parametrize("kind", ["CommitStep", "FinishTurn", "StartAttempt"])
@pytest.mark.may_log("waits for the database")
async def test_a_commit_whose_answer_was_lost_is_repeated_without_harm(harness: AppHarness, kind: str) -> None:
    lost = asyncio.Event()

    async def lose(command: Command) -> None:
        if type(command).__name__ == kind and not lost.is_set():
            lost.set()
            raise DatabaseUnreachable("The connection was lost.")

    await harness.start_worker(ScriptedModel([ROLL, HI]), tools=[roll], store=WatchedStore(harness.store, after=lose))
    chat = await harness.app.create_chat()
    reply = await chat.send("Roll")
    assert reply.text == "Hi"
    async with deadline("the answer that is lost"):  # readers are told before it is
        await lost.wait()
    assert outline(await chat.messages()) == [("user", "Roll"), ("assistant", ""), ("tool", "4"), ("assistant", "Hi")]


class CountingStore(WatchedStore):
    """It keeps the rows that the journal writes."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.rows: list[JournalRow] = []

    async def append(self, rows: Sequence[JournalRow]) -> Appended:
        self.rows += rows
        return await self._store.append(rows)


async def test_a_reply_that_comes_in_one_piece_is_written_once_with_its_end(harness: AppHarness) -> None:
    """Its first row is urgent, but would cost a commit of its own for nothing."""
    store = CountingStore(harness.store)
    gate = asyncio.Event()
    await harness.start_worker(ScriptedModel([HI, gated(gate, "One")]), store=store)
    chat = await harness.app.create_chat()
    assert (await chat.send("Hello")).text == "Hi"
    assert store.rows == []
    waiting = asyncio.create_task(chat.send("And one that does not").wait())
    await harness.wait_for_text(chat, "One")
    assert [row.n for row in store.rows] == [1]
    gate.set()
    await waiting


async def test_parameters_system_and_the_models_of_chat_and_message_reach_the_model(harness: AppHarness) -> None:
    first, second = ScriptedModel([HI]), ScriptedModel([HI], name="second")
    await harness.start_worker(models={"first": first, "second": second})
    chat = await harness.app.create_chat("Hello", model="first", system="Be brief.")
    await harness.wait_for_end(chat)
    assert read_prompt(first.calls[0]) == [("system", "Be brief."), ("user", "Hello")]
    await chat.send("And you?", model="second")
    assert read_prompt(second.calls[0])[0] == ("system", "Be brief.")


# --- the queue ---


def gated(gate: asyncio.Event, text: str) -> Script:
    """Says the text, and is done when the gate opens."""

    async def stream() -> AsyncIterator[Part]:
        yield TextDelta("1", text)
        await gate.wait()
        yield parts.finish()

    return lambda call: stream()


async def test_queued_messages_are_answered_in_order_each_as_its_own_turn(harness: AppHarness) -> None:
    gate = asyncio.Event()
    await harness.start_worker(ScriptedModel([gated(gate, "1"), say("2"), say("3")]))
    chat = await harness.app.create_chat("a")
    await harness.wait_for_text(chat, "1")
    waiting = [asyncio.create_task(chat.send(text)._read_all()) for text in ("b", "c")]
    await harness.wait_until(chat, lambda view: len(view.queue) == 2)
    gate.set()
    texts = sorted([(await task).text for task in waiting])
    assert texts == ["2", "3"]
    said = outline(await chat.messages())
    assert [text for role, text in said if role == "assistant"] == ["1", "2", "3"]
    stored = await harness.load(chat)
    assert [turn.outcome for turn in stored.turns] == ["complete"] * 3
    assert {row.epoch for row in stored.attempts} == {1}


async def test_interrupt_send_stops_the_reply_and_is_next(harness: AppHarness) -> None:
    await harness.start_worker(
        ScriptedModel([[parts.text_delta("1", "A long"), parts.hang()], say("Short"), say("Later")])
    )
    chat = await harness.app.create_chat("Talk")
    await harness.wait_for_text(chat, "A long")
    await chat.post("Afterwards")
    reply = await chat.send("Shorter!", if_busy="interrupt")
    assert (reply.text, reply.outcome) == ("Short", "complete")
    await harness.wait_for_end(chat)
    assert outline(await chat.messages()) == [
        ("user", "Talk"), ("assistant", "A long"), ("notice", "Stopped by you."), ("user", "Shorter!"),
        ("assistant", "Short"), ("user", "Afterwards"), ("assistant", "Later"),
    ]  # fmt: skip


async def test_a_steer_joins_the_running_turn_at_its_next_step(harness: AppHarness) -> None:
    gate = asyncio.Event()

    async def wait_for_it() -> str:
        await gate.wait()
        return "waited"

    call: Script = [parts.tool_call("c1", "wait_for_it", "{}"), parts.finish("tool_calls")]
    model = ScriptedModel([call, say("As you wish")])
    await harness.start_worker(model, tools=[wait_for_it])
    chat = await harness.app.create_chat("Work")
    await harness.wait_until(chat, lambda view: view.live is not None and bool(view.live.blocks))
    steering = asyncio.create_task(chat.send("In French", if_busy="steer")._read_all())
    await harness.wait_until(chat, lambda view: len(view.queue) == 1)
    gate.set()
    reply = await steering
    assert (reply.text, reply.outcome) == ("As you wish", "complete")
    assert read_prompt(model.calls[1])[-1] == ("user", "In French")
    assert [message.role for message in await chat.messages()] == ["user", "assistant", "tool", "user", "assistant"]
    assert len((await harness.load(chat)).turns) == 1


async def test_a_steer_that_comes_too_late_is_the_next_turn(harness: AppHarness) -> None:
    gate = asyncio.Event()
    await harness.start_worker(ScriptedModel([gated(gate, "Done"), say("Fait")]))
    chat = await harness.app.create_chat("Work")
    await harness.wait_for_text(chat, "Done")
    steering = asyncio.create_task(chat.send("In French", if_busy="steer")._read_all())
    await harness.wait_until(chat, lambda view: len(view.queue) == 1)
    gate.set()
    reply = await steering
    assert (reply.text, reply.outcome) == ("Fait", "complete")
    assert len((await harness.load(chat)).turns) == 2


async def test_a_promoted_message_stops_the_reply_and_runs(harness: AppHarness) -> None:
    await harness.start_worker(ScriptedModel([[parts.text_delta("1", "A"), parts.hang()], say("C"), say("B")]))
    chat = await harness.app.create_chat("a")
    await harness.wait_for_text(chat, "A")
    await chat.post("b")
    await chat.post("c")
    await chat.promote_queued((await chat.queue())[1].id)
    await harness.wait_for_end(chat)
    assert [text for role, text in outline(await chat.messages()) if role == "assistant"] == ["A", "C", "B"]


async def test_an_error_leaves_the_queue_and_the_next_send_goes_on(harness: AppHarness) -> None:
    gate = asyncio.Event()

    async def fail() -> AsyncIterator[Part]:
        await gate.wait()
        yield parts.error(NO_KEY)

    await harness.start_worker(ScriptedModel([lambda call: fail(), say("B"), say("C")]))
    chat = await harness.app.create_chat("a")
    await harness.wait_until(chat, lambda view: view.live is not None)
    await chat.post("b")
    gate.set()
    await harness.wait_until(chat, lambda view: view.status == "error")
    assert len(await chat.queue()) == 1
    assert (await chat.send("c")).text == "C"
    assert [text for role, text in outline(await chat.messages()) if role == "user"] == ["a", "b", "c"]


# --- branches ---


async def test_edit_while_running_ends_the_old_branch_and_answers_the_new(harness: AppHarness) -> None:
    model = ScriptedModel([[parts.text_delta("1", "In Oslo"), parts.hang()], say("In Rome")])
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    old = asyncio.create_task(chat.send("Oslo?")._read_all())
    await harness.wait_for_text(chat, "In Oslo")
    asked = (await chat.messages())[0].id
    assert asked is not None
    new = await chat.edit(asked, "Rome?")
    assert (new.text, new.outcome, (await old).outcome) == ("In Rome", "complete", "edited")
    assert outline(await chat.messages()) == [("user", "Rome?"), ("assistant", "In Rome")]
    stored = await harness.load(chat)
    left = [row for row in stored.messages if row.reason == "edited"]
    assert [(row.partial, b"In Oslo" in row.blocks) for row in left] == [(True, True)]
    await chat.switch_branch(left[0].id)
    assert outline(await chat.messages()) == [("user", "Oslo?"), ("assistant", "In Oslo")]


async def test_regenerate_hangs_a_new_reply_beside_the_old(harness: AppHarness) -> None:
    model = ScriptedModel([ROLL, say("Old"), say("New")])
    await harness.start_worker(model, tools=[roll])
    chat = await harness.app.create_chat()
    await chat.send("Roll")
    old = find_reply(await chat.messages())
    assert old.id is not None
    assert (await chat.regenerate(old.id)).text == "New"
    assert outline(await chat.messages()) == [("user", "Roll"), ("assistant", "New")]
    assert read_prompt(model.calls[2]) == [("user", "Roll")]
    await chat.switch_branch(old.id)
    assert outline(await chat.messages())[-1] == ("assistant", "Old")


async def test_continue_after_a_stop_goes_on_with_the_partial(harness: AppHarness) -> None:
    model = ScriptedModel([[parts.text_delta("1", "One"), parts.hang()], say(" two"), HI])
    await harness.start_worker(model)
    chat = await harness.app.create_chat("Count")
    await harness.wait_for_text(chat, "One")
    await chat.interrupt()
    reply = await chat.continue_()
    assert (reply.text, reply.outcome) == (" two", "complete")
    assert read_prompt(model.calls[1]) == [("user", "Count"), ("assistant", "One"), ("user", CONTINUE)]
    with pytest.raises(NotAllowed):
        await chat.continue_()


async def test_a_fork_is_a_chat_of_its_own(harness: AppHarness) -> None:
    model = ScriptedModel([say("One"), say("Two"), say("Other")])
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    await chat.send("first")
    first = find_reply(await chat.messages())
    await chat.send("second")
    assert first.id is not None
    other = await chat.fork(first.id)
    assert (await other.send("another second")).text == "Other"
    assert read_prompt(model.calls[2]) == [("user", "first"), ("assistant", "One"), ("user", "another second")]
    assert outline(await chat.messages())[-1] == ("assistant", "Two")


async def test_delete_while_running_ends_the_work_and_leaves_nothing(harness: AppHarness) -> None:
    closed = asyncio.Event()

    async def stream() -> AsyncIterator[Part]:
        try:
            yield TextDelta("1", "I am")
            await asyncio.get_running_loop().create_future()
        finally:
            closed.set()

    await harness.start_worker(ScriptedModel([lambda call: stream()]))
    chat = await harness.app.create_chat()
    reply = asyncio.create_task(chat.send("Who?")._read_all())
    await harness.wait_for_text(chat, "I am")
    await chat.delete()
    assert (await reply).outcome == "deleted"
    await closed.wait()
    assert await harness.list_chat_ids() == []
