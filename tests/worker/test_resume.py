"""Taking over: what becomes of a turn whose worker died, or left, at each moment of it (P3).

The first part is the pure plan; then dead workers (dead_worker.py), and workers that really are killed or stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.app_harness import AppHarness, DroppingNotifier, LongSleeps, make_settings
from tests.support.messages import find_notices, find_reply, outline, read_text
from tests.support.stored import load_ledger, load_path
from tests.support.waiting import deadline
from tests.worker.dead_worker import DeadWorker, die_after

from indelible.content import Message, Part, Text, TextDelta, ToolCall, ToolResult
from indelible.content.assemble import OUTCOME_UNKNOWN
from indelible.errors import ModelFailed
from indelible.machine.commands import CommitStep, Interrupt
from indelible.machine.states import Status
from indelible.models.protocol import Call
from indelible.notify import Changed
from indelible.server.health import PrometheusMetrics
from indelible.store.commands.change import CONTINUE
from indelible.store.queries.open_turn import AttemptName, OpenWork
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script
from indelible.tools.tool import ToolContext, tool
from indelible.worker.resume import AskModel, FinishAnswered, FinishStopped, Idle, Plan, Summarise, plan_turn

FINISH = parts.finish("tool_calls")
ROLL = parts.tool_call("c1", "roll", "{}")
ATTEMPT = AttemptName(chat_id="chat_1", id="attempt_1", turn_id="turn_1", step=2, number=1, epoch=1)
USER = Message(role="user", blocks=[Text("Hello")])
REPLY = Message(role="assistant", blocks=[Text("Hi")])
CALL = Message(role="assistant", blocks=[ToolCall(id="c1", name="roll")])
NOTICE = Message(role="notice", blocks=[Text("Note")], visibility="people")


def say(text: str) -> Script:
    return [parts.text_delta("1", text), parts.finish()]


class Dice:
    """A tool that counts its runs and remembers their keys."""

    def __init__(self, *, idempotent: bool = False) -> None:
        self.keys: list[str] = []

        async def roll(context: ToolContext) -> str:
            self.keys.append(context.idempotency_key)
            return "4"

        self.tool = tool(roll, idempotent=idempotent)


def read_prompt(call: Call) -> list[tuple[str, str]]:
    return [(message.role, read_text(message.blocks)) for message in call.messages]


async def count_takeovers(harness: AppHarness, chat: Any) -> list[int]:
    return [turn.takeovers for turn in (await harness.load(chat)).turns]


# --- the plan ---


def work(**fields: Any) -> OpenWork:
    known = {"chat_id": "chat_1", "owner_id": "user_1", "status": Status.RUNNING, "epoch": 1, "holder": "w"}
    return OpenWork(**{**known, "titled": False, "turn_id": "turn_1", "messages": [USER], **fields})


@pytest.mark.parametrize(
    ("found", "plan"),
    [
        (work(), AskModel(1)),
        (work(turn_id=None), Idle()),
        (work(status=Status.IDLE), Idle()),
        (work(status=Status.REQUIRES_ACTION), Idle()),
        (work(status=Status.INTERRUPTING), FinishStopped()),
        (work(status=Status.INTERRUPTING, kind="compaction"), FinishStopped()),
        (work(kind="compaction"), Summarise()),
        (work(kind="compaction", next_step=2, messages=[USER, REPLY]), Summarise()),
        (work(attempt=ATTEMPT, parts=[ROLL, FINISH]), AskModel(2, [ROLL, FINISH])),
        (work(messages=[USER, REPLY], next_step=2), FinishAnswered()),
        (work(messages=[USER, REPLY, NOTICE], next_step=2), FinishAnswered()),
        (work(messages=[USER, REPLY], next_step=1), AskModel(1)),
        (work(messages=[USER, CALL], next_step=2), AskModel(2)),
        (work(messages=[USER, REPLY, USER], next_step=2), AskModel(2)),
        (work(messages=[USER, Message(role="assistant", blocks=[Text("H")], partial=True)], next_step=2), AskModel(2)),
        (work(messages=[USER, Message(role="assistant", reason="interrupted")], next_step=2), AskModel(2)),
        (work(messages=[], next_step=2), AskModel(2)),
    ],
)
def test_there_is_one_plan_for_every_state_that_a_chat_is_found_in(found: OpenWork, plan: Plan) -> None:
    assert plan_turn(found) == plan


def test_a_reply_that_only_the_provider_called_in_is_an_answer() -> None:
    searched = ToolCall(id="p1", name="search", provider_executed=True)
    reply = Message(role="assistant", blocks=[searched, Text("Found")])
    assert plan_turn(work(messages=[USER, reply], next_step=2)) == FinishAnswered()


# --- after a death ---


@pytest.mark.parametrize("said", [[], [parts.reasoning_delta("r", "Let me think")]], ids=["nothing", "thinking"])
async def test_nothing_shown_is_tried_again(harness: AppHarness, said: list[Any]) -> None:
    chat = await harness.app.create_chat("Hello")
    await die_after(harness, chat, *said)
    model = ScriptedModel([say("Hi")])
    await harness.start_worker(model)
    await harness.wait_for_end(chat)
    assert outline(await chat.messages()) == [("user", "Hello"), ("assistant", "Hi")]
    assert read_prompt(model.calls[0]) == [("user", "Hello")]
    attempts = (await harness.load(chat)).attempts
    assert [(row.step, row.number, row.outcome) for row in attempts] == [(1, 1, "reset"), (1, 2, "complete")]


async def test_a_step_that_is_tried_again_keeps_its_number(harness: AppHarness) -> None:
    """It is part of the key by which a tool knows that a call is the same."""
    chat = await harness.app.create_chat("Roll")
    dead = await die_after(harness, chat)
    dice = Dice()
    await harness.start_worker(ScriptedModel([[ROLL, FINISH], say("A four")]), tools=[dice.tool])
    await harness.wait_for_end(chat)
    assert dice.keys == [f"{dead.turn_id}/1/0"]
    assert [run.key.step for run in await load_ledger(harness.store, chat.id, dead.turn_id)] == [1]


async def test_partial_text_is_kept_and_continued_as_one_reply(harness: AppHarness) -> None:
    chat = await harness.app.create_chat()
    reading = asyncio.create_task(chat.send("Count")._read_all())
    await harness.wait_until(chat, lambda view: view.turn is not None)
    await die_after(harness, chat, parts.reasoning_delta("r", "Hm"), parts.text_delta("1", "One, "))
    model = ScriptedModel([say("two.")])
    await harness.start_worker(model)
    reply = await reading
    assert (reply.text, reply.outcome) == ("One, two.", "complete")
    first, second = [message for message in await chat.messages() if message.role == "assistant"]
    assert (first.partial, first.reason, second.continues) == (True, "crashed", first.id)
    assert read_prompt(model.calls[0]) == [("user", "Count"), ("assistant", "One, "), ("user", CONTINUE)]
    assert await count_takeovers(harness, chat) == [1]


@pytest.mark.parametrize(
    "said",
    [[parts.tool_input_start("c1", "roll"), parts.tool_input_delta("c1", '{"a')], [ROLL]],
    ids=["in the arguments", "before the finish"],
)
async def test_calls_of_a_cut_stream_are_not_run_and_the_turn_goes_on_with_their_answers(
    harness: AppHarness, said: list[Any]
) -> None:
    chat = await harness.app.create_chat("Roll")
    await die_after(harness, chat, parts.text_delta("1", "Rolling"), *said)
    model, dice = ScriptedModel([say("Sorry")]), Dice()
    await harness.start_worker(model, tools=[dice.tool])
    await harness.wait_for_end(chat)
    assert dice.keys == []
    told = outline(await chat.messages())
    assert [role for role, _ in told] == ["user", "assistant", "tool", "assistant"]
    assert told[2][1].startswith("Not run")
    assert [message.role for message in model.calls[0].messages] == ["user", "assistant", "tool"]


async def test_tools_that_never_started_are_run_and_the_model_is_not_asked_again(harness: AppHarness) -> None:
    chat = await harness.app.create_chat("Roll")
    dead = await die_after(harness, chat, parts.text_delta("1", "Rolling"), ROLL, FINISH)
    model, dice = ScriptedModel([say("A four")]), Dice()
    await harness.start_worker(model, tools=[dice.tool])
    await harness.wait_for_end(chat)
    assert dice.keys == [f"{dead.turn_id}/1/0"]
    assert outline(await chat.messages()) == [
        ("user", "Roll"),
        ("assistant", "Rolling"),
        ("tool", "4"),
        ("assistant", "A four"),
    ]
    assert not any(message.partial for message in await chat.messages())
    attempts = (await harness.load(chat)).attempts
    assert [(row.id == dead.attempt_id, row.epoch, row.outcome) for row in attempts] == [
        (True, 2, "complete"), (False, 2, "complete")
    ]  # fmt: skip


async def test_a_started_tool_is_not_run_again_and_the_model_learns_it(harness: AppHarness) -> None:
    chat = await harness.app.create_chat("Roll")
    await (await die_after(harness, chat, ROLL, FINISH)).start_tool(0, "c1", "roll")
    model, dice = ScriptedModel([say("Who knows")]), Dice()
    await harness.start_worker(model, tools=[dice.tool])
    await harness.wait_for_end(chat)
    assert dice.keys == []
    assert outline(await chat.messages())[2] == ("tool", OUTCOME_UNKNOWN)
    (result,) = model.calls[0].messages[-1].blocks
    assert isinstance(result, ToolResult)
    assert (result.output, result.is_error) == (OUTCOME_UNKNOWN, True)


async def test_a_started_idempotent_tool_is_run_again_with_the_same_key(harness: AppHarness) -> None:
    chat = await harness.app.create_chat("Roll")
    dead = await (await die_after(harness, chat, ROLL, FINISH)).start_tool(0, "c1", "roll")
    dice = Dice(idempotent=True)
    await harness.start_worker(ScriptedModel([say("A four")]), tools=[dice.tool])
    await harness.wait_for_end(chat)
    assert dice.keys == [f"{dead.turn_id}/1/0"]
    assert outline(await chat.messages())[2] == ("tool", "4")
    (run,) = await load_ledger(harness.store, chat.id, dead.turn_id)
    assert run.result is not None
    assert (run.idempotency_key, run.result.output) == (dice.keys[0], "4")


async def test_a_settled_result_is_used_and_only_what_is_missing_is_run(harness: AppHarness) -> None:
    chat = await harness.app.create_chat("Roll twice")
    again = parts.tool_call("c2", "roll", "{}")
    dead = await (await die_after(harness, chat, ROLL, again, FINISH)).start_tool(0, "c1", "roll")
    await dead.settle_tool(0, ToolResult(call_id="c1", name="roll", output="6"))
    dice = Dice()
    await harness.start_worker(ScriptedModel([say("Ten")]), tools=[dice.tool])
    await harness.wait_for_end(chat)
    assert dice.keys == [f"{dead.turn_id}/1/1"]
    assert outline(await chat.messages())[2] == ("tool", "64")


async def test_settled_results_of_a_cut_stream_are_kept(harness: AppHarness) -> None:
    """Text after the calls was cut. It cannot happen in one attempt of ours, and is legal in a journal."""
    chat = await harness.app.create_chat("Roll")
    dead = await die_after(harness, chat, ROLL)
    await dead.start_tool(0, "c1", "roll")
    await dead.settle_tool(0, ToolResult(call_id="c1", name="roll", output="6"))
    await harness.start_worker(ScriptedModel([say("Six")]), tools=[Dice().tool])
    await harness.wait_for_end(chat)
    assert outline(await chat.messages())[1:] == [("assistant", ""), ("tool", "6"), ("assistant", "Six")]


async def test_a_whole_reply_is_finished_without_asking_anybody(harness: AppHarness) -> None:
    chat = await harness.app.create_chat("Hello")
    await die_after(harness, chat, parts.text_delta("1", "Hi"), parts.finish())
    model = ScriptedModel([])
    await harness.start_worker(model)
    view = await harness.wait_for_end(chat)
    assert (outline(view.messages), model.calls) == ([("user", "Hello"), ("assistant", "Hi")], [])
    assert not find_reply(view.messages).partial


async def test_a_whole_reply_that_calls_the_client_waits_for_it(harness: AppHarness) -> None:
    chat = await harness.app.create_chat("Ask")
    await die_after(harness, chat, parts.tool_call("c1", "ask", "{}"), FINISH)

    async def ask() -> str:
        raise NotImplementedError

    await harness.start_worker(ScriptedModel([say("Thanks")]), client_tools=[ask])
    await harness.wait_until(chat, lambda view: view.status == "requires_action")
    reply = await chat.submit_tool_results([ToolResult(call_id="c1", name="ask", output="yes")])
    assert reply.text == "Thanks"


async def test_an_answered_turn_without_an_end_is_ended(harness: AppHarness) -> None:
    chat = await harness.app.create_chat("Hello")
    dead = await die_after(harness, chat, parts.text_delta("1", "Hi"), parts.finish())
    commit = CommitStep(epoch=dead.epoch, turn_id=dead.turn_id, attempt_id=dead.attempt_id)
    await harness.store.execute(chat.id, commit)
    model = ScriptedModel([])
    await harness.start_worker(model)
    view = await harness.wait_for_end(chat)
    assert (outline(view.messages), find_notices(view.messages)) == ([("user", "Hello"), ("assistant", "Hi")], [])


async def test_a_turn_between_two_steps_goes_on_with_the_next(harness: AppHarness) -> None:
    chat = await harness.app.create_chat("Roll")
    dead = await die_after(harness, chat, ROLL, FINISH)
    await (await dead.start_tool(0, "c1", "roll")).settle_tool(0, ToolResult(call_id="c1", name="roll", output="6"))
    commit = CommitStep(epoch=dead.epoch, turn_id=dead.turn_id, attempt_id=dead.attempt_id)
    await harness.store.execute(chat.id, commit)
    dice = Dice()
    model = ScriptedModel([[parts.tool_call("c1", "roll", "{}"), FINISH], say("Both")])
    await harness.start_worker(model, tools=[dice.tool])
    await harness.wait_for_end(chat)
    assert dice.keys == [f"{dead.turn_id}/2/0"]
    assert [role for role, _ in outline(await chat.messages())] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]


async def test_a_stop_that_a_dead_worker_left_is_carried_out(harness: AppHarness) -> None:
    chat = await harness.app.create_chat("Count")
    await die_after(harness, chat, parts.text_delta("1", "One"))
    (holder,) = {(await harness.load(chat)).chat.holder}
    await harness.store.beat(holder)
    assert (await harness.store.execute(chat.id, Interrupt())).status == "interrupting"
    await harness.store.retire(holder)
    await harness.start_worker(ScriptedModel([]))
    await harness.wait_for_end(chat)
    assert outline(await chat.messages()) == [("user", "Count"), ("assistant", "One"), ("notice", "Stopped by you.")]


async def test_a_compaction_whose_worker_died_is_begun_anew(harness: AppHarness) -> None:
    model = ScriptedModel([say("x" * 300), say("Two"), say("In short")])
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    await chat.send("one")
    await chat.send("two")
    await harness.stop_worker(harness.workers[0])
    compacting = asyncio.create_task(chat.compact()._read_all())
    await harness.wait_until(chat, lambda view: view.turn is not None)
    await DeadWorker.acquire(harness, chat)
    await harness.start_worker(model)
    assert (await compacting).outcome == "complete"
    assert len([message for message in await load_path(harness.store, chat.id) if message.visibility == "model"]) == 1


# --- budgets ---


async def test_three_barren_takeovers_end_in_an_error_that_keeps_the_text(harness: AppHarness) -> None:
    chat = await harness.app.create_chat("Count")
    await die_after(harness, chat, parts.text_delta("1", "One"))
    for _ in range(3):
        await DeadWorker.acquire(harness, chat)
    model = ScriptedModel([say(" two")])
    await harness.start_worker(model)
    view = await harness.wait_for_end(chat)
    assert (view.status, view.error["kind"], model.calls) == ("error", "crashed", [])
    assert outline(view.messages)[1] == ("assistant", "One")
    reply = await chat.retry()
    assert reply.text == " two"


async def test_ten_takeovers_of_one_turn_end_in_an_error_whatever_it_wrote(harness: AppHarness) -> None:
    chat = await harness.app.create_chat("Count")
    for number in range(10):
        await die_after(harness, chat, parts.text_delta("1", f"{number} "))
    model = ScriptedModel([])
    await harness.start_worker(model)
    view = await harness.wait_for_end(chat)
    assert (view.status, view.error["kind"], await count_takeovers(harness, chat)) == ("error", "crashed", [10])
    assert "".join(text for role, text in outline(view.messages) if role == "assistant") == "0 1 2 3 4 5 6 7 8 9 "


# --- killed, stopped, or only slow ---


async def test_a_killed_worker_is_found_dead_and_its_chat_goes_on(harness: AppHarness) -> None:
    dying = await harness.start_worker(ScriptedModel([[parts.text_delta("1", "One, "), parts.hang()]]))
    chat = await harness.app.create_chat("Count")
    await harness.wait_for_text(chat, "One, ")
    await harness.kill_worker(dying)
    view = await harness.store.view(chat.id)
    assert (view.status, view.live is not None) == ("running", True)
    metrics, settings = PrometheusMetrics(), make_settings(heartbeat_interval_s=0.1)
    store = harness.open_store(lease_timeout_s=1.0)
    await harness.start_worker(ScriptedModel([say("two.")]), store=store, settings=settings, metrics=metrics)
    await harness.wait_for_end(chat)
    assert metrics.registry.get_sample_value("indelible_takeover_seconds_count") == 1
    assert [text for role, text in outline(await chat.messages()) if role == "assistant"] == ["One, ", "two."]


async def test_a_worker_that_wakes_up_late_can_say_nothing_more(harness: AppHarness) -> None:
    """It hears no hints, and looks too seldom to know that its chat was taken."""
    wake_up, closed = asyncio.Event(), asyncio.Event()

    async def doze() -> AsyncIterator[Part]:
        try:
            yield TextDelta("1", "One, ")
            await wake_up.wait()
            yield TextDelta("1", "zwei.")
            yield parts.finish()
        finally:
            closed.set()

    late = await harness.start_worker(
        ScriptedModel([lambda call: doze()]),
        settings=make_settings(poll_interval_s=600, heartbeat_interval_s=4),
        notifier=(hints := DroppingNotifier()),
    )
    chat = await harness.app.create_chat("Count")
    hints.publish(Changed(frozenset({chat.id})))
    await harness.wait_for_text(chat, "One, ")
    await harness.retire_worker(late)
    await harness.start_worker(ScriptedModel([say("two.")]))
    await harness.wait_for_end(chat)
    wake_up.set()
    await closed.wait()
    await harness.stop_worker(late)
    assert [text for role, text in outline(await chat.messages()) if role == "assistant"] == ["One, ", "two."]
    assert len((await harness.load(chat)).turns) == 1


async def test_a_worker_never_takes_over_from_itself(harness: AppHarness) -> None:
    """Its heartbeat was late, because the database was away. Its replies run on all the same."""
    gate = asyncio.Event()

    async def doze() -> AsyncIterator[Part]:
        yield TextDelta("1", "One, ")
        await gate.wait()
        yield TextDelta("1", "two.")
        yield parts.finish()

    model = ScriptedModel([lambda call: doze(), say("Hi")])
    running = await harness.start_worker(model, settings=make_settings(heartbeat_interval_s=4))
    chat = await harness.app.create_chat("Count")
    await harness.wait_for_text(chat, "One, ")
    await harness.retire_worker(running)
    other = await harness.app.create_chat()
    async with deadline():
        await other.send("Hello")
    gate.set()
    await harness.wait_for_end(chat)
    assert outline(await chat.messages()) == [("user", "Count"), ("assistant", "One, two.")]


async def hand_over(harness: AppHarness, chat: Any) -> None:
    """The worker shuts down, and the chat waits for another (S21)."""
    await harness.stop_worker(harness.workers[-1])
    view = await harness.store.view(chat.id)
    assert view.status == "pending"
    assert (await harness.load(chat)).chat.holder is None


@pytest.mark.parametrize("said", [[], [parts.reasoning_delta("r", "Hm")]], ids=["nothing", "thinking"])
async def test_s21_shutdown_with_nothing_shown_is_tried_again_elsewhere(harness: AppHarness, said: list[Any]) -> None:
    await harness.start_worker(ScriptedModel([[*said, parts.hang()]]))
    chat = await harness.app.create_chat("Hello")
    await harness.wait_until(chat, lambda view: view.live is not None and len(view.live.blocks) == len(said))
    await hand_over(harness, chat)
    model = ScriptedModel([say("Hi")])
    await harness.start_worker(model)
    await harness.wait_for_end(chat)
    assert outline(await chat.messages()) == [("user", "Hello"), ("assistant", "Hi")]
    assert await count_takeovers(harness, chat) == [0]


async def test_s21_shutdown_in_text_is_continued_elsewhere(harness: AppHarness) -> None:
    await harness.start_worker(ScriptedModel([[parts.text_delta("1", "One, "), parts.hang()]]))
    chat = await harness.app.create_chat()
    reading = asyncio.create_task(chat.send("Count")._read_all())
    await harness.wait_for_text(chat, "One, ")
    await hand_over(harness, chat)
    await harness.start_worker(ScriptedModel([say("two.")]))
    reply = await reading
    assert (reply.text, reply.outcome) == ("One, two.", "complete")
    partial = next(message for message in await chat.messages() if message.partial)
    assert (partial.reason, await count_takeovers(harness, chat)) == ("handed_over", [0])
    assert find_notices(await chat.messages()) == []


async def test_s21_shutdown_in_tool_arguments_answers_the_call_elsewhere(harness: AppHarness) -> None:
    said: Script = [parts.tool_input_start("c1", "roll"), parts.tool_input_delta("c1", "{"), parts.hang()]
    await harness.start_worker(ScriptedModel([said]))
    chat = await harness.app.create_chat("Roll")
    await harness.wait_until(chat, lambda view: view.live is not None and bool(view.live.blocks))
    await hand_over(harness, chat)
    dice = Dice()
    await harness.start_worker(ScriptedModel([say("Sorry")]), tools=[dice.tool])
    await harness.wait_for_end(chat)
    assert ([role for role, _ in outline(await chat.messages())], dice.keys) == (
        ["user", "assistant", "tool", "assistant"],
        [],
    )


@pytest.mark.parametrize("idempotent", [True, False])
async def test_s21_shutdown_while_a_tool_runs_hands_it_over(harness: AppHarness, idempotent: bool) -> None:
    keys: list[str] = []
    began = asyncio.Event()

    async def roll(context: ToolContext) -> str:
        keys.append(context.idempotency_key)
        if len(keys) == 1:
            began.set()
            await asyncio.get_running_loop().create_future()
        return "4"

    dice = tool(roll, idempotent=idempotent)
    await harness.start_worker(ScriptedModel([[ROLL, FINISH]]), tools=[dice])
    chat = await harness.app.create_chat("Roll")
    await began.wait()
    await hand_over(harness, chat)
    model = ScriptedModel([say("So be it")])
    await harness.start_worker(model, tools=[dice])
    await harness.wait_for_end(chat)
    assert outline(await chat.messages())[2] == ("tool", "4" if idempotent else OUTCOME_UNKNOWN)
    assert len(keys) == (2 if idempotent else 1)
    assert len(set(keys)) == 1
    assert await count_takeovers(harness, chat) == [0]


async def test_s21_shutdown_in_a_retry_wait_is_tried_again_elsewhere(harness: AppHarness) -> None:
    clock = LongSleeps()
    busy = ModelFailed("Busy.", kind="overloaded", retry_after_s=30.0)
    await harness.start_worker(ScriptedModel([[busy]]), clock=clock)
    chat = await harness.app.create_chat("Hello")
    await clock.waiting.wait()
    await hand_over(harness, chat)
    await harness.start_worker(ScriptedModel([say("Hi")]))
    view = await harness.wait_for_end(chat)
    assert (outline(view.messages), view.retry) == ([("user", "Hello"), ("assistant", "Hi")], None)


async def test_s21_shutdown_of_a_compaction_begins_it_anew_elsewhere(harness: AppHarness) -> None:
    asked = asyncio.Event()

    async def ponder() -> AsyncIterator[Part]:
        asked.set()
        await asyncio.get_running_loop().create_future()
        yield parts.finish()

    model = ScriptedModel([say("x" * 300), say("Two"), lambda call: ponder(), say("In short")])
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    await chat.send("one")
    await chat.send("two")
    compacting = asyncio.create_task(chat.compact()._read_all())
    await asked.wait()
    await hand_over(harness, chat)
    await harness.start_worker(model)
    assert (await compacting).outcome == "complete"


async def test_s21_an_interrupt_leaves_the_chat_waiting(harness: AppHarness) -> None:
    running = await harness.start_worker(ScriptedModel([[parts.text_delta("1", "One"), parts.hang()]]))
    chat = await harness.app.create_chat("Count")
    await harness.wait_for_text(chat, "One")
    await chat.interrupt()
    assert (await harness.store.view(chat.id)).status == "idle"
    await harness.stop_worker(running)
    assert (await harness.store.view(chat.id)).status == "idle"


async def test_ten_hand_overs_are_no_reason_to_give_up(harness: AppHarness) -> None:
    chat = await harness.app.create_chat("Count")
    for number in range(11):
        await harness.start_worker(ScriptedModel([[parts.text_delta("1", f"{number} "), parts.hang()]]))
        await harness.wait_for_text(chat, f"{number} ")
        await hand_over(harness, chat)
    await harness.start_worker(ScriptedModel([say("done")]))
    view = await harness.wait_for_end(chat)
    assert view.status == "idle"
    said = "".join(text for role, text in outline(view.messages) if role == "assistant")
    assert said == "0 1 2 3 4 5 6 7 8 9 10 done"
