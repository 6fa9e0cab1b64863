"""A stop and something else that ends a turn, or begins something in it, at the same moment.

Every hint is lost and the next poll is far away, so the worker does not know of the stop: it learns of it from the
answer to its own command, because the stop was committed right before that.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.app_harness import AppHarness, DroppingNotifier, WatchedStore, make_settings
from tests.support.messages import find_notices, outline

from indelible.api.shapes import ChatMessage
from indelible.app.chat import Chat
from indelible.content import ToolResult
from indelible.errors import ModelFailed
from indelible.machine.commands import (
    AnnounceRetry,
    AwaitAction,
    Command,
    CommitStep,
    Fail,
    FinishTurn,
    Interrupt,
    KeepSummary,
    StartAttempt,
)
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script

pytestmark = pytest.mark.both_databases

HI: Script = [parts.text_delta("1", "Hi"), parts.finish()]
FAR_AWAY = make_settings(poll_interval_s=600, heartbeat_interval_s=4)


async def roll() -> str:
    return "4"


async def ask() -> str:
    """Ask the user; the client does that."""
    raise NotImplementedError


class StopBefore:
    """Stops the chat in the database right before the worker carries out its first command of this kind."""

    def __init__(self, harness: AppHarness, kind: type[Command]) -> None:
        self.chat: Chat | None = None
        self.came = asyncio.Event()
        self._harness = harness
        self._kind = kind

    async def __call__(self, command: Command) -> None:
        if type(command) is self._kind and not self.came.is_set() and self.chat is not None:
            self.came.set()
            outcome = await self._harness.store.execute(self.chat.id, Interrupt())
            assert (outcome.effective, outcome.status) == (True, "interrupting")


async def stop_before(
    harness: AppHarness, kind: type[Command], script: list[Script], **hiring: Any
) -> list[ChatMessage]:
    """Let a stop come right before this command, and give the chat as it rests then."""
    stop = StopBefore(harness, kind)
    stop.chat = await harness.app.create_chat("Go")
    watched = WatchedStore(harness.store, before=stop)
    hiring = {"settings": FAR_AWAY, "tools": [roll], "client_tools": [ask], **hiring}
    await harness.start_worker(ScriptedModel(script), store=watched, notifier=DroppingNotifier(), **hiring)
    view = await harness.wait_for_end(stop.chat)
    assert stop.came.is_set()
    assert (view.status, view.error, view.turn, view.live) == ("idle", None, None, None)
    (turn,) = (await harness.load(stop.chat)).turns
    assert turn.outcome == "interrupted"
    messages = await stop.chat.messages()
    assert find_notices(messages) == ["Stopped by you."]
    assert messages[-1].role == "notice"
    return messages


async def test_stop_right_before_the_first_attempt_asks_no_model(harness: AppHarness) -> None:
    messages = await stop_before(harness, StartAttempt, [])
    assert [message.role for message in messages] == ["user", "notice"]


async def test_stop_right_before_the_end_keeps_the_whole_reply(harness: AppHarness) -> None:
    _, reply, _ = await stop_before(harness, FinishTurn, [HI])
    assert (outline([reply]), reply.partial) == ([("assistant", "Hi")], False)


async def test_stop_right_before_a_step_is_kept_keeps_results_and_asks_no_more(harness: AppHarness) -> None:
    calls = [parts.text_delta("1", "Rolling"), parts.tool_call("c1", "roll", "{}"), parts.finish("tool_calls")]
    messages = await stop_before(harness, CommitStep, [calls])
    assert outline(messages)[1:3] == [("assistant", "Rolling"), ("tool", "4")]


async def test_stop_right_before_waiting_for_the_client_answers_its_calls(harness: AppHarness) -> None:
    calls = [parts.tool_call("c1", "ask", "{}"), parts.tool_call("c2", "roll", "{}"), parts.finish("tool_calls")]
    messages = await stop_before(harness, AwaitAction, [calls])
    results = [block for message in messages for block in message.blocks if isinstance(block, ToolResult)]
    assert [(result.call_id, result.is_error) for result in results] == [("c1", True), ("c2", False)]


async def test_stop_right_before_a_failure_is_a_stop(harness: AppHarness) -> None:
    script: Script = [parts.text_delta("1", "Half"), ModelFailed("No key.", kind="auth")]
    messages = await stop_before(harness, Fail, [script])
    assert outline(messages)[1] == ("assistant", "Half")


async def test_stop_right_before_a_failed_step_is_kept_is_not_retried(harness: AppHarness) -> None:
    script: Script = [parts.text_delta("1", "Half"), ModelFailed("Busy.", kind="overloaded")]
    _, reply, _ = await stop_before(harness, CommitStep, [script])
    assert (outline([reply]), reply.partial) == ([("assistant", "Half")], True)


async def test_stop_right_before_a_retry_is_announced_is_not_retried(harness: AppHarness) -> None:
    messages = await stop_before(harness, AnnounceRetry, [[ModelFailed("Busy.", kind="overloaded")]])
    assert [message.role for message in messages] == ["user", "notice"]


async def test_stop_right_before_a_summary_is_kept_asks_for_no_reply(harness: AppHarness) -> None:
    overflow = ModelFailed("The prompt is too long.", kind="context_overflow")
    summary: Script = [parts.text_delta("1", "In short"), parts.finish()]
    said: Script = [parts.tool_call("c1", "roll", "{}"), parts.finish("tool_calls")]
    messages = await stop_before(harness, KeepSummary, [said, [overflow], summary])
    assert [message.role for message in messages] == ["user", "assistant", "tool", "notice"]


@pytest.mark.parametrize("kind", [FinishTurn, CommitStep])
async def test_stop_with_a_queue_right_before_the_end_goes_on_with_the_queue(
    harness: AppHarness, kind: type[Command]
) -> None:
    stop = StopBefore(harness, kind)
    calls: Script = [parts.tool_call("c1", "roll", "{}"), parts.finish("tool_calls")]
    stop.chat = await harness.app.create_chat("Go")
    await stop.chat.post("Next")
    watched = WatchedStore(harness.store, before=stop)
    model = ScriptedModel([HI if kind is FinishTurn else calls, HI])
    await harness.start_worker(model, store=watched, notifier=DroppingNotifier(), settings=FAR_AWAY, tools=[roll])
    await harness.wait_for_end(stop.chat)
    assert [turn.outcome for turn in (await harness.load(stop.chat)).turns] == ["interrupted", "complete"]
    assert outline(await stop.chat.messages())[-2:] == [("user", "Next"), ("assistant", "Hi")]


async def test_a_worker_whose_chat_is_taken_right_before_the_end_writes_nothing(harness: AppHarness) -> None:
    """What it had said is all in the journal, and whoever took the chat ends the turn with it."""
    taken = asyncio.Event()

    async def take_it_away(command: Command) -> None:
        if isinstance(command, FinishTurn) and not taken.is_set():
            await harness.store.retire(slow.worker.id)
            (another,) = await harness.store.acquire("another", limit=1)
            assert another.epoch == 2
            taken.set()

    chat = await harness.app.create_chat("Go")
    watched = WatchedStore(harness.store, before=take_it_away)
    slow = await harness.start_worker(
        ScriptedModel([HI]), store=watched, notifier=DroppingNotifier(), settings=FAR_AWAY
    )
    await taken.wait()
    await harness.stop_worker(slow)
    assert (await harness.store.view(chat.id)).status == "pending"
    assert (await harness.load(chat)).chat.epoch == 2
    await harness.start_worker(ScriptedModel([HI]))
    await harness.wait_for_end(chat)
    said = "".join(text for role, text in outline(await chat.messages()) if role == "assistant")
    assert said in {"Hi", "HiHi"}  # adopted if the finish was flushed, else continued
    assert [turn.outcome for turn in (await harness.load(chat)).turns] == ["complete"]
