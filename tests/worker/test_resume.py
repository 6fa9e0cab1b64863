"""Taking over: what becomes of a turn whose worker died, or left, at each moment of it (DESIGN §7).

The first part is the pure plan; then dead workers (ghosts.py), and workers that really are killed or dismissed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.worker.ghosts import Ghost, haunt
from tests.worker.workshop import (
    PATIENCE_S,
    DeafNotifier,
    LongSleeps,
    Workshop,
    find_notices,
    find_reply,
    quick,
    read_text,
    tell,
)

from indelible.content import Message, Part, Text, TextDelta, ToolCall, ToolResult
from indelible.content.assemble import OUTCOME_UNKNOWN
from indelible.errors import ModelFailed
from indelible.machine.commands import CommitStep, Interrupt
from indelible.machine.states import Status
from indelible.models.protocol import Call
from indelible.notify import Changed
from indelible.server.prometheus import PrometheusMetrics
from indelible.store.commands.apply.texts import CONTINUE
from indelible.store.queries.chat_view import AttemptName
from indelible.store.queries.open_turn import OpenWork
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


async def count_takeovers(workshop: Workshop, chat: Any) -> list[int]:
    return [turn.takeovers for turn in (await workshop.load(chat)).turns]


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
async def test_nothing_shown_is_tried_again(workshop: Workshop, said: list[Any]) -> None:
    chat = await workshop.app.create_chat("Hello")
    await haunt(workshop, chat, *said)
    model = ScriptedModel([say("Hi")])
    await workshop.hire(model)
    await workshop.until_rest(chat)
    assert tell(await chat.messages()) == [("user", "Hello"), ("assistant", "Hi")]
    assert read_prompt(model.calls[0]) == [("user", "Hello")]
    attempts = (await workshop.load(chat)).attempts
    assert [(row.step, row.number, row.outcome) for row in attempts] == [(1, 1, "reset"), (1, 2, "complete")]


async def test_a_step_that_is_tried_again_keeps_its_number(workshop: Workshop) -> None:
    """It is part of the key by which a tool knows that a call is the same."""
    chat = await workshop.app.create_chat("Roll")
    ghost = await haunt(workshop, chat)
    dice = Dice()
    await workshop.hire(ScriptedModel([[ROLL, FINISH], say("A four")]), tools=[dice.tool])
    await workshop.until_rest(chat)
    assert dice.keys == [f"{ghost.turn_id}/1/0"]
    assert [run.key.step for run in await workshop.store.runs(ghost.turn_id)] == [1]


async def test_partial_text_is_kept_and_continued_as_one_reply(workshop: Workshop) -> None:
    chat = await workshop.app.create_chat()
    reading = asyncio.create_task(chat.send("Count")._read_all())
    await workshop.until(chat, lambda view: view.turn is not None)
    await haunt(workshop, chat, parts.reasoning_delta("r", "Hm"), parts.text_delta("1", "One, "))
    model = ScriptedModel([say("two.")])
    await workshop.hire(model)
    reply = await reading
    assert (reply.text, reply.outcome) == ("One, two.", "complete")
    first, second = [message for message in await chat.messages() if message.role == "assistant"]
    assert (first.partial, first.reason, second.continues) == (True, "crashed", first.id)
    assert read_prompt(model.calls[0]) == [("user", "Count"), ("assistant", "One, "), ("user", CONTINUE)]
    assert await count_takeovers(workshop, chat) == [1]


@pytest.mark.parametrize(
    "said",
    [[parts.tool_input_start("c1", "roll"), parts.tool_input_delta("c1", '{"a')], [ROLL]],
    ids=["in the arguments", "before the finish"],
)
async def test_calls_of_a_cut_stream_are_not_run_and_the_turn_goes_on_with_their_answers(
    workshop: Workshop, said: list[Any]
) -> None:
    chat = await workshop.app.create_chat("Roll")
    await haunt(workshop, chat, parts.text_delta("1", "Rolling"), *said)
    model, dice = ScriptedModel([say("Sorry")]), Dice()
    await workshop.hire(model, tools=[dice.tool])
    await workshop.until_rest(chat)
    assert dice.keys == []
    told = tell(await chat.messages())
    assert [role for role, _ in told] == ["user", "assistant", "tool", "assistant"]
    assert told[2][1].startswith("Not run")
    assert [message.role for message in model.calls[0].messages] == ["user", "assistant", "tool"]


async def test_tools_that_never_started_are_run_and_the_model_is_not_asked_again(workshop: Workshop) -> None:
    chat = await workshop.app.create_chat("Roll")
    ghost = await haunt(workshop, chat, parts.text_delta("1", "Rolling"), ROLL, FINISH)
    model, dice = ScriptedModel([say("A four")]), Dice()
    await workshop.hire(model, tools=[dice.tool])
    await workshop.until_rest(chat)
    assert dice.keys == [f"{ghost.turn_id}/1/0"]
    assert tell(await chat.messages()) == [
        ("user", "Roll"),
        ("assistant", "Rolling"),
        ("tool", "4"),
        ("assistant", "A four"),
    ]
    assert not any(message.partial for message in await chat.messages())
    attempts = (await workshop.load(chat)).attempts
    assert [(row.id == ghost.attempt_id, row.epoch, row.outcome) for row in attempts] == [
        (True, 2, "complete"), (False, 2, "complete")
    ]  # fmt: skip


async def test_a_started_tool_is_not_run_again_and_the_model_is_told_so(workshop: Workshop) -> None:
    chat = await workshop.app.create_chat("Roll")
    await (await haunt(workshop, chat, ROLL, FINISH)).start(0, "c1", "roll")
    model, dice = ScriptedModel([say("Who knows")]), Dice()
    await workshop.hire(model, tools=[dice.tool])
    await workshop.until_rest(chat)
    assert dice.keys == []
    assert tell(await chat.messages())[2] == ("tool", OUTCOME_UNKNOWN)
    (result,) = model.calls[0].messages[-1].blocks
    assert isinstance(result, ToolResult)
    assert (result.output, result.is_error) == (OUTCOME_UNKNOWN, True)


async def test_a_started_idempotent_tool_is_run_again_with_the_same_key(workshop: Workshop) -> None:
    chat = await workshop.app.create_chat("Roll")
    ghost = await (await haunt(workshop, chat, ROLL, FINISH)).start(0, "c1", "roll")
    dice = Dice(idempotent=True)
    await workshop.hire(ScriptedModel([say("A four")]), tools=[dice.tool])
    await workshop.until_rest(chat)
    assert dice.keys == [f"{ghost.turn_id}/1/0"]
    assert tell(await chat.messages())[2] == ("tool", "4")
    (run,) = await workshop.store.runs(ghost.turn_id)
    assert run.result is not None
    assert (run.idempotency_key, run.result.output) == (dice.keys[0], "4")


async def test_a_settled_result_is_used_and_only_what_is_missing_is_run(workshop: Workshop) -> None:
    chat = await workshop.app.create_chat("Roll twice")
    again = parts.tool_call("c2", "roll", "{}")
    ghost = await (await haunt(workshop, chat, ROLL, again, FINISH)).start(0, "c1", "roll")
    await ghost.settle(0, ToolResult(call_id="c1", name="roll", output="6"))
    dice = Dice()
    await workshop.hire(ScriptedModel([say("Ten")]), tools=[dice.tool])
    await workshop.until_rest(chat)
    assert dice.keys == [f"{ghost.turn_id}/1/1"]
    assert tell(await chat.messages())[2] == ("tool", "64")


async def test_settled_results_of_a_cut_stream_are_kept(workshop: Workshop) -> None:
    """Text after the calls was cut. It cannot happen in one attempt of ours, and is legal in a journal."""
    chat = await workshop.app.create_chat("Roll")
    ghost = await haunt(workshop, chat, ROLL)
    await ghost.start(0, "c1", "roll")
    await ghost.settle(0, ToolResult(call_id="c1", name="roll", output="6"))
    await workshop.hire(ScriptedModel([say("Six")]), tools=[Dice().tool])
    await workshop.until_rest(chat)
    assert tell(await chat.messages())[1:] == [("assistant", ""), ("tool", "6"), ("assistant", "Six")]


async def test_a_whole_reply_is_finished_without_asking_anybody(workshop: Workshop) -> None:
    chat = await workshop.app.create_chat("Hello")
    await haunt(workshop, chat, parts.text_delta("1", "Hi"), parts.finish())
    model = ScriptedModel([])
    await workshop.hire(model)
    view = await workshop.until_rest(chat)
    assert (tell(view.messages), model.calls) == ([("user", "Hello"), ("assistant", "Hi")], [])
    assert not find_reply(view.messages).partial


async def test_a_whole_reply_that_calls_the_client_waits_for_it(workshop: Workshop) -> None:
    chat = await workshop.app.create_chat("Ask")
    await haunt(workshop, chat, parts.tool_call("c1", "ask", "{}"), FINISH)

    async def ask() -> str:
        raise NotImplementedError

    await workshop.hire(ScriptedModel([say("Thanks")]), client_tools=[ask])
    await workshop.until(chat, lambda view: view.status == "requires_action")
    reply = await chat.submit_tool_results([ToolResult(call_id="c1", name="ask", output="yes")])
    assert reply.text == "Thanks"


async def test_an_answered_turn_without_an_end_is_ended(workshop: Workshop) -> None:
    chat = await workshop.app.create_chat("Hello")
    ghost = await haunt(workshop, chat, parts.text_delta("1", "Hi"), parts.finish())
    commit = CommitStep(epoch=ghost.epoch, turn_id=ghost.turn_id, attempt_id=ghost.attempt_id)
    await workshop.store.execute(chat.id, commit)
    model = ScriptedModel([])
    await workshop.hire(model)
    view = await workshop.until_rest(chat)
    assert (tell(view.messages), find_notices(view.messages)) == ([("user", "Hello"), ("assistant", "Hi")], [])


async def test_a_turn_between_two_steps_goes_on_with_the_next(workshop: Workshop) -> None:
    chat = await workshop.app.create_chat("Roll")
    ghost = await haunt(workshop, chat, ROLL, FINISH)
    await (await ghost.start(0, "c1", "roll")).settle(0, ToolResult(call_id="c1", name="roll", output="6"))
    commit = CommitStep(epoch=ghost.epoch, turn_id=ghost.turn_id, attempt_id=ghost.attempt_id)
    await workshop.store.execute(chat.id, commit)
    dice = Dice()
    model = ScriptedModel([[parts.tool_call("c1", "roll", "{}"), FINISH], say("Both")])
    await workshop.hire(model, tools=[dice.tool])
    await workshop.until_rest(chat)
    assert dice.keys == [f"{ghost.turn_id}/2/0"]
    assert [role for role, _ in tell(await chat.messages())] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]


async def test_a_stop_that_a_dead_worker_left_is_carried_out(workshop: Workshop) -> None:
    chat = await workshop.app.create_chat("Count")
    await haunt(workshop, chat, parts.text_delta("1", "One"))
    (holder,) = {(await workshop.load(chat)).chat.holder}
    await workshop.store.beat(holder)
    assert (await workshop.store.execute(chat.id, Interrupt())).status == "interrupting"
    await workshop.store.retire(holder)
    await workshop.hire(ScriptedModel([]))
    await workshop.until_rest(chat)
    assert tell(await chat.messages()) == [("user", "Count"), ("assistant", "One"), ("notice", "Stopped by you.")]


async def test_a_compaction_whose_worker_died_is_begun_anew(workshop: Workshop) -> None:
    model = ScriptedModel([say("x" * 300), say("Two"), say("In short")])
    await workshop.hire(model)
    chat = await workshop.app.create_chat()
    await chat.send("one")
    await chat.send("two")
    await workshop.dismiss(workshop.hired[0])
    compacting = asyncio.create_task(chat.compact()._read_all())
    await workshop.until(chat, lambda view: view.turn is not None)
    await Ghost.take(workshop, chat)
    await workshop.hire(model)
    assert (await compacting).outcome == "complete"
    assert len([message for message in await workshop.store.path(chat.id) if message.visibility == "model"]) == 1


# --- budgets ---


async def test_three_barren_takeovers_end_in_an_error_that_keeps_the_text(workshop: Workshop) -> None:
    chat = await workshop.app.create_chat("Count")
    await haunt(workshop, chat, parts.text_delta("1", "One"))
    for _ in range(3):
        await Ghost.take(workshop, chat)
    model = ScriptedModel([say(" two")])
    await workshop.hire(model)
    view = await workshop.until_rest(chat)
    assert (view.status, view.error["kind"], model.calls) == ("error", "crashed", [])
    assert tell(view.messages)[1] == ("assistant", "One")
    reply = await chat.retry()
    assert reply.text == " two"


async def test_ten_takeovers_of_one_turn_end_in_an_error_whatever_it_said(workshop: Workshop) -> None:
    chat = await workshop.app.create_chat("Count")
    for number in range(10):
        await haunt(workshop, chat, parts.text_delta("1", f"{number} "))
    model = ScriptedModel([])
    await workshop.hire(model)
    view = await workshop.until_rest(chat)
    assert (view.status, view.error["kind"], await count_takeovers(workshop, chat)) == ("error", "crashed", [10])
    assert "".join(text for role, text in tell(view.messages) if role == "assistant") == "0 1 2 3 4 5 6 7 8 9 "


# --- killed, dismissed, or only slow ---


async def test_a_killed_worker_is_found_dead_and_its_chat_goes_on(workshop: Workshop) -> None:
    dying = await workshop.hire(ScriptedModel([[parts.text_delta("1", "One, "), parts.hang()]]))
    chat = await workshop.app.create_chat("Count")
    await workshop.until_said(chat, "One, ")
    await workshop.kill(dying)
    view = await workshop.store.view(chat.id)
    assert (view.status, view.live is not None) == ("running", True)
    metrics, settings = PrometheusMetrics(), quick(heartbeat_interval_s=0.1)
    store = workshop.open_store(lease_timeout_s=1.0)
    await workshop.hire(ScriptedModel([say("two.")]), store=store, settings=settings, metrics=metrics)
    await workshop.until_rest(chat)
    assert metrics.registry.get_sample_value("indelible_takeover_seconds_count") == 1
    assert [text for role, text in tell(await chat.messages()) if role == "assistant"] == ["One, ", "two."]


async def test_a_worker_that_wakes_up_late_can_say_nothing_more(workshop: Workshop) -> None:
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

    late = await workshop.hire(
        ScriptedModel([lambda call: doze()]),
        settings=quick(poll_interval_s=600, heartbeat_interval_s=4),
        notifier=(hints := DeafNotifier()),
    )
    chat = await workshop.app.create_chat("Count")
    hints.publish(Changed(frozenset({chat.id})))
    await workshop.until_said(chat, "One, ")
    await workshop.bury(late)
    await workshop.hire(ScriptedModel([say("two.")]))
    await workshop.until_rest(chat)
    wake_up.set()
    await closed.wait()
    await workshop.dismiss(late)
    assert [text for role, text in tell(await chat.messages()) if role == "assistant"] == ["One, ", "two."]
    assert len((await workshop.load(chat)).turns) == 1


async def test_a_worker_never_takes_over_from_itself(workshop: Workshop) -> None:
    """Its heartbeat was late, because the database was away. Its replies run on all the same."""
    gate = asyncio.Event()

    async def doze() -> AsyncIterator[Part]:
        yield TextDelta("1", "One, ")
        await gate.wait()
        yield TextDelta("1", "two.")
        yield parts.finish()

    model = ScriptedModel([lambda call: doze(), say("Hi")])
    hired = await workshop.hire(model, settings=quick(heartbeat_interval_s=4))
    chat = await workshop.app.create_chat("Count")
    await workshop.until_said(chat, "One, ")
    await workshop.bury(hired)
    other = await workshop.app.create_chat()
    async with asyncio.timeout(PATIENCE_S):
        await other.send("Hello")
    gate.set()
    await workshop.until_rest(chat)
    assert tell(await chat.messages()) == [("user", "Count"), ("assistant", "One, two.")]


async def hand_over(workshop: Workshop, chat: Any) -> None:
    """The worker shuts down, and the chat waits for another (S21)."""
    await workshop.dismiss(workshop.hired[-1])
    view = await workshop.store.view(chat.id)
    assert view.status == "pending"
    assert (await workshop.load(chat)).chat.holder is None


@pytest.mark.parametrize("said", [[], [parts.reasoning_delta("r", "Hm")]], ids=["nothing", "thinking"])
async def test_s21_shutdown_with_nothing_shown_is_tried_again_elsewhere(workshop: Workshop, said: list[Any]) -> None:
    await workshop.hire(ScriptedModel([[*said, parts.hang()]]))
    chat = await workshop.app.create_chat("Hello")
    await workshop.until(chat, lambda view: view.live is not None and len(view.live.blocks) == len(said))
    await hand_over(workshop, chat)
    model = ScriptedModel([say("Hi")])
    await workshop.hire(model)
    await workshop.until_rest(chat)
    assert tell(await chat.messages()) == [("user", "Hello"), ("assistant", "Hi")]
    assert await count_takeovers(workshop, chat) == [0]


async def test_s21_shutdown_in_text_is_continued_elsewhere(workshop: Workshop) -> None:
    await workshop.hire(ScriptedModel([[parts.text_delta("1", "One, "), parts.hang()]]))
    chat = await workshop.app.create_chat()
    reading = asyncio.create_task(chat.send("Count")._read_all())
    await workshop.until_said(chat, "One, ")
    await hand_over(workshop, chat)
    await workshop.hire(ScriptedModel([say("two.")]))
    reply = await reading
    assert (reply.text, reply.outcome) == ("One, two.", "complete")
    partial = next(message for message in await chat.messages() if message.partial)
    assert (partial.reason, await count_takeovers(workshop, chat)) == ("handed_over", [0])
    assert find_notices(await chat.messages()) == []


async def test_s21_shutdown_in_tool_arguments_answers_the_call_elsewhere(workshop: Workshop) -> None:
    said: Script = [parts.tool_input_start("c1", "roll"), parts.tool_input_delta("c1", "{"), parts.hang()]
    await workshop.hire(ScriptedModel([said]))
    chat = await workshop.app.create_chat("Roll")
    await workshop.until(chat, lambda view: view.live is not None and bool(view.live.blocks))
    await hand_over(workshop, chat)
    dice = Dice()
    await workshop.hire(ScriptedModel([say("Sorry")]), tools=[dice.tool])
    await workshop.until_rest(chat)
    assert ([role for role, _ in tell(await chat.messages())], dice.keys) == (
        ["user", "assistant", "tool", "assistant"],
        [],
    )


@pytest.mark.parametrize("idempotent", [True, False])
async def test_s21_shutdown_while_a_tool_runs_hands_it_over(workshop: Workshop, idempotent: bool) -> None:
    keys: list[str] = []
    began = asyncio.Event()

    async def roll(context: ToolContext) -> str:
        keys.append(context.idempotency_key)
        if len(keys) == 1:
            began.set()
            await asyncio.get_running_loop().create_future()
        return "4"

    dice = tool(roll, idempotent=idempotent)
    await workshop.hire(ScriptedModel([[ROLL, FINISH]]), tools=[dice])
    chat = await workshop.app.create_chat("Roll")
    await began.wait()
    await hand_over(workshop, chat)
    model = ScriptedModel([say("So be it")])
    await workshop.hire(model, tools=[dice])
    await workshop.until_rest(chat)
    assert tell(await chat.messages())[2] == ("tool", "4" if idempotent else OUTCOME_UNKNOWN)
    assert len(keys) == (2 if idempotent else 1)
    assert len(set(keys)) == 1
    assert await count_takeovers(workshop, chat) == [0]


async def test_s21_shutdown_in_a_retry_wait_is_tried_again_elsewhere(workshop: Workshop) -> None:
    clock = LongSleeps()
    busy = ModelFailed("Busy.", kind="overloaded", retry_after_s=30.0)
    await workshop.hire(ScriptedModel([[busy]]), clock=clock)
    chat = await workshop.app.create_chat("Hello")
    await clock.waiting.wait()
    await hand_over(workshop, chat)
    await workshop.hire(ScriptedModel([say("Hi")]))
    view = await workshop.until_rest(chat)
    assert (tell(view.messages), view.retry) == ([("user", "Hello"), ("assistant", "Hi")], None)


async def test_s21_shutdown_of_a_compaction_begins_it_anew_elsewhere(workshop: Workshop) -> None:
    asked = asyncio.Event()

    async def ponder() -> AsyncIterator[Part]:
        asked.set()
        await asyncio.get_running_loop().create_future()
        yield parts.finish()

    model = ScriptedModel([say("x" * 300), say("Two"), lambda call: ponder(), say("In short")])
    await workshop.hire(model)
    chat = await workshop.app.create_chat()
    await chat.send("one")
    await chat.send("two")
    compacting = asyncio.create_task(chat.compact()._read_all())
    await asked.wait()
    await hand_over(workshop, chat)
    await workshop.hire(model)
    assert (await compacting).outcome == "complete"


async def test_s21_an_interrupt_leaves_the_chat_waiting(workshop: Workshop) -> None:
    hired = await workshop.hire(ScriptedModel([[parts.text_delta("1", "One"), parts.hang()]]))
    chat = await workshop.app.create_chat("Count")
    await workshop.until_said(chat, "One")
    await chat.interrupt()
    assert (await workshop.store.view(chat.id)).status == "idle"
    await workshop.dismiss(hired)
    assert (await workshop.store.view(chat.id)).status == "idle"


async def test_ten_hand_overs_are_no_reason_to_give_up(workshop: Workshop) -> None:
    chat = await workshop.app.create_chat("Count")
    for number in range(11):
        await workshop.hire(ScriptedModel([[parts.text_delta("1", f"{number} "), parts.hang()]]))
        await workshop.until_said(chat, f"{number} ")
        await hand_over(workshop, chat)
    await workshop.hire(ScriptedModel([say("done")]))
    view = await workshop.until_rest(chat)
    assert view.status == "idle"
    said = "".join(text for role, text in tell(view.messages) if role == "assistant")
    assert said == "0 1 2 3 4 5 6 7 8 9 10 done"
