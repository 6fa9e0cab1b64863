"""What is recorded of a run, through the whole stack: chat, worker, loop, adapter, HTTP, and both databases.

What goes wrong in recording itself is test_recorder_in_trouble.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.models.wires_under_test import WIRES
from tests.recording.answers import JSON, Answer, read_all
from tests.recording.recording_harness import (
    KEPT_S,
    RecordingHarness,
    assert_closed,
    call_tool,
    has_exchange,
    outline_run,
    say,
)
from tests.support.app_harness import make_settings
from tests.support.messages import outline, read_text

import indelible
from indelible import tool
from indelible.api.shapes import DebugMode
from indelible.app.chat import Chat
from indelible.content import Part, TextDelta
from indelible.errors import ModelFailed
from indelible.models.http.hooks import HttpRequest, recording
from indelible.models.protocol import Call, ModelTraits
from indelible.recording.run import RecordedRun
from indelible.recording.storage import GONE, REPLACED
from indelible.testing import ManualClock, SimulatedProvider, parts
from indelible.testing.model import Script, Step
from indelible.testing.provider import WireName
from indelible.testing.provider.faults import Cut, Hang, Stall, Status

HALF: list[Step] = [parts.text_delta("1", "Half of "), parts.hang()]
WELL = [(1, "completed", [(1, "completed", 200)])]


@tool
async def weather() -> str:
    return "It rains."


# --- runs, steps, attempts ---


@pytest.mark.parametrize("wire", WIRES)
async def test_a_turn_is_a_run_a_model_call_a_step_and_an_exchange_an_attempt(
    engine: AsyncEngine, wire: WireName
) -> None:
    async with RecordingHarness(engine, [call_tool("weather"), say("Rain.")], wire=wire).opened() as harness:
        running = await harness.start_recording_worker(tools=[weather])
        chat = await harness.create_chat()
        view = await harness.wait_for_end(chat)
        (run,) = await harness.wait_for_ended_runs(chat)
        requests = harness.provider.requests
    assert outline_run(run) == ("turn", "completed", [*WELL, (2, "completed", [(1, "completed", 200)])])
    assert (run.worker_id, run.model, run.error) == (running.worker.id, harness.model_name, None)
    assert run.turn_id == (await harness.load(chat)).turns[0].id
    assert view.messages[-1].role == "assistant"
    for step, request in zip(run.steps, requests, strict=True):
        (attempt,) = step.attempts
        assert (attempt.method, attempt.url) == ("POST", harness.provider.url + request.path)
        assert json.loads(attempt.request_body) == request.body
        assert attempt.response_headers is not None
        assert attempt.response_headers["Content-Type"].startswith("text/event-stream")
        times = [run.started_at, step.started_at, attempt.started_at, attempt.head_at, attempt.ended_at]
        times += [step.ended_at, run.ended_at]
        known = [time for time in times if time is not None]
        assert len(known) == 7
        assert known == sorted(known)
    assert "Rain." in run.steps[1].attempts[0].response_body


async def test_every_try_at_a_step_is_an_attempt_of_it(engine: AsyncEngine) -> None:
    faults = [Status(529), Cut(at_byte=0), Cut(at_byte=10, clean=False), None]
    async with RecordingHarness(engine, [say(""), say(""), say("At last.")], faults).opened() as harness:
        await harness.start_recording_worker()
        chat = await harness.create_chat()
        (run,) = await harness.wait_for_ended_runs(chat)
    attempts = [(1, "completed", 529), (2, "completed", 200), (3, "failed", 200), (4, "completed", 200)]
    assert outline_run(run) == ("turn", "completed", [(1, "completed", attempts)])
    assert [attempt.error is None for attempt in run.steps[0].attempts] == [True, True, False, True]


async def test_a_reply_that_is_continued_after_it_was_cut_is_a_step_that_failed_and_the_next(
    engine: AsyncEngine,
) -> None:
    cut: list[Step] = [parts.text_delta("1", "Half of "), ModelFailed("It broke.", kind="server_error")]
    async with RecordingHarness(engine, [cut, say("it.")]).opened() as harness:
        await harness.start_recording_worker()
        chat = await harness.create_chat()
        (run,) = await harness.wait_for_ended_runs(chat)
    assert outline_run(run) == ("turn", "completed", [(1, "error", [(1, "failed", 200)]), (2, *WELL[0][1:])])


async def test_a_provider_that_does_not_answer_is_an_attempt_without_a_status(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, []).opened() as harness:
        await harness.provider.aclose()
        await harness.start_recording_worker(settings=make_settings(retry_max_attempts=1))
        chat = await harness.create_chat()
        (run,) = await harness.wait_for_ended_runs(chat)
    assert outline_run(run) == ("turn", "error", [(1, "error", [(1, "failed", None)])])
    (attempt,) = run.steps[0].attempts
    assert "127.0.0.1" in (attempt.error or "")
    assert (attempt.head_at, attempt.response_headers, attempt.response_body) == (None, None, "")


async def test_turns_that_follow_each_other_at_once_all_keep_their_own_end(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, [say(f"{number}") for number in range(4)]).opened() as harness:
        chat = await harness.create_chat("1")
        for text in ("2", "3", "4"):
            await chat.post(text)
        await harness.start_recording_worker()
        runs = await harness.wait_for_ended_runs(chat, 4)
    assert [outline_run(run) for run in runs] == [("turn", "completed", WELL)] * 4


async def test_an_end_that_is_written_together_with_the_next_beginning_stands(engine: AsyncEngine) -> None:
    """The next run ends what earlier ones left open: not one whose own end is in the same batch."""
    async with RecordingHarness(engine, []).opened() as harness:
        await harness.start_recording_worker()
        chat = await harness.create_chat(None)
        (recorder,) = harness.recorders.values()
        with record(harness, chat) as first:
            await recorder.drain()
            assert [run.status for run in await harness.load_runs(chat)] == ["in_progress"]
            first.end("completed")
        with record(harness, chat) as second:
            second.end("completed")
        runs = await harness.wait_for_ended_runs(chat, 2)
    assert sorted(run.status for run in runs) == ["completed", "completed"]


# --- while it runs ---


async def test_attempts_can_be_seen_while_their_step_still_runs(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, [HALF], [Status(529)]).opened() as harness:
        await harness.start_recording_worker()
        chat = await harness.create_chat()
        await harness.wait_for_text(chat, "Half of ")
        await harness.wait_for_runs(chat, has_exchange)
        (run,) = await harness.load_runs(chat)
        assert outline_run(run) == ("turn", "in_progress", [(1, "in_progress", [(1, "completed", 529)])])
        await chat.interrupt()


async def test_a_reply_can_be_seen_while_its_tools_still_run(engine: AsyncEngine) -> None:
    go_on = asyncio.Event()

    @tool
    async def slow() -> str:
        await go_on.wait()
        return "done"

    async with RecordingHarness(engine, [call_tool("slow"), say("Done.")]).opened() as harness:
        await harness.start_recording_worker(tools=[slow])
        chat = await harness.create_chat()
        (run,) = await harness.wait_for_runs(chat, has_exchange)
        assert outline_run(run) == ("turn", "in_progress", [(1, "in_progress", [(1, "completed", 200)])])
        go_on.set()
        (run,) = await harness.wait_for_ended_runs(chat)
    assert run.status == "completed"


# --- how it ends ---


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stop_makes_the_run_and_its_step_interrupted_and_keeps_what_came(
    engine: AsyncEngine, wire: WireName
) -> None:
    async with RecordingHarness(engine, [HALF], wire=wire).opened() as harness:
        await harness.start_recording_worker()
        chat = await harness.create_chat()
        await harness.wait_for_text(chat, "Half of ")
        await chat.interrupt()
        (run,) = await harness.wait_for_ended_runs(chat)
    assert outline_run(run) == ("turn", "interrupted", [(1, "interrupted", [(1, "failed", 200)])])
    (attempt,) = run.steps[0].attempts
    assert attempt.error == "cancelled while reading the response"
    assert "Half of" in attempt.response_body


async def test_a_stop_before_there_is_an_answer_is_recorded_too(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, [], [Hang()]).opened() as harness:
        await harness.start_recording_worker()
        chat = await harness.create_chat()
        await harness.provider.wait_for_requests(1)
        await chat.interrupt()
        (run,) = await harness.wait_for_ended_runs(chat)
    assert outline_run(run) == ("turn", "interrupted", [(1, "interrupted", [(1, "failed", None)])])


async def test_a_step_that_was_completed_is_not_downgraded_by_a_stop(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, [call_tool("weather"), HALF]).opened() as harness:
        await harness.start_recording_worker(tools=[weather])
        chat = await harness.create_chat()
        await harness.wait_for_text(chat, "Half of ")
        await chat.interrupt()
        (run,) = await harness.wait_for_ended_runs(chat)
    assert outline_run(run) == ("turn", "interrupted", [*WELL, (2, "interrupted", [(1, "failed", 200)])])


async def test_a_failure_is_shown_at_the_run_and_at_its_step(engine: AsyncEngine) -> None:
    said: list[Step] = [parts.text_delta("1", "Well, "), ModelFailed("It broke.", kind="server_error")]
    async with RecordingHarness(engine, [said], [None, Status(401)]).opened() as harness:
        await harness.start_recording_worker()
        chat = await harness.create_chat()
        await harness.wait_for_end(chat)
        (run,) = await harness.wait_for_ended_runs(chat)
    steps = [(1, "error", [(1, "failed", 200)]), (2, "error", [(1, "completed", 401)])]
    assert outline_run(run) == ("turn", "error", steps)
    assert run.error is not None
    assert "key" in run.error
    assert run.steps[1].error == run.error


async def test_a_run_that_is_handed_over_is_interrupted_and_the_next_worker_has_its_own(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, [HALF, say("it.")]).opened() as harness:
        first = await harness.start_recording_worker()
        chat = await harness.create_chat()
        await harness.wait_for_text(chat, "Half of ")
        await harness.stop_worker(first)
        (left,) = await harness.load_runs(chat)
        second = await harness.start_recording_worker()
        await harness.wait_for_end(chat)
        runs = await harness.wait_for_ended_runs(chat, 2)
    assert runs[0] == left
    assert outline_run(left) == ("turn", "interrupted", [(1, "interrupted", [(1, "failed", 200)])])
    assert left.error == "The worker was shut down; another worker continues."
    assert (runs[1].status, runs[1].turn_id, runs[1].worker_id) == ("completed", left.turn_id, second.worker.id)


async def test_what_a_killed_worker_left_open_is_ended_by_whoever_takes_over(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, [call_tool("weather"), HALF, say("it.")]).opened() as harness:
        first = await harness.start_recording_worker(tools=[weather])
        chat = await harness.create_chat()
        await harness.wait_for_text(chat, "Half of ")
        await harness.wait_for_runs(chat, lambda runs: bool(runs) and len(runs[0].steps) == 2)
        await harness.kill_worker(first)
        (left,) = await harness.load_runs(chat)
        assert outline_run(left) == ("turn", "in_progress", [*WELL, (2, "in_progress", [])])
        await harness.retire_worker(first)
        await harness.start_recording_worker(tools=[weather])
        await harness.wait_for_end(chat)
        left, taken = await harness.wait_for_ended_runs(chat, 2)
    assert outline_run(left) == ("turn", "error", [*WELL, (2, "error", [])])
    assert left.error in {GONE, REPLACED}
    assert (taken.status, taken.turn_id) == ("completed", left.turn_id)
    assert_closed([left, taken])


async def test_what_a_killed_worker_left_open_is_ended_even_if_nobody_takes_over(engine: AsyncEngine) -> None:
    """As with the mode `errors`, when all goes well for the next one."""
    async with RecordingHarness(engine, [HALF]).opened() as harness:
        first = await harness.start_recording_worker()
        chat = await harness.create_chat()
        await harness.wait_for_text(chat, "Half of ")
        await harness.wait_for_runs(chat, lambda runs: bool(runs) and len(runs[0].steps) == 1)
        await harness.kill_worker(first)
        recorder = harness.recorders[first.worker.id]
        await recorder.clean_up()
        (run,) = await harness.load_runs(chat)
        assert run.status == "in_progress"
        await harness.retire_worker(first)
        await recorder.clean_up()
        (run,) = await harness.load_runs(chat)
        assert outline_run(run) == ("turn", "error", [(1, "error", [])])
        assert run.error == GONE
        await chat.interrupt()


async def test_a_run_whose_chat_is_deleted_meanwhile_leaves_nothing_behind(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, [say("Hi."), HALF]).opened() as harness:
        await harness.start_recording_worker()
        kept, chat = await harness.create_chat(), await harness.create_chat(None)
        await harness.wait_for_ended_runs(kept)
        await chat.post("Hello")
        await harness.wait_for_text(chat, "Half of ")
        await harness.wait_for_runs(chat, bool)
        await chat.delete()
        await harness.provider.wait_for_drops(1)
        assert await harness.drain_runs(chat) == []
        assert len(await harness.load_runs(kept)) == 1


# --- other work with models ---


class Titling:
    """Answers, and makes a title or fails to."""

    provider = name = "titling"
    context_limit = None

    def __init__(self, title: ModelFailed | None) -> None:
        self._title = title

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        if self._title is not None and "two to six words" in read_text(call.messages[0].blocks):
            raise self._title
        yield TextDelta("1", "Rain in Oslo")
        yield parts.finish()


@pytest.mark.parametrize("mode", ["errors", "all"])
async def test_a_title_is_a_run_of_its_own(engine: AsyncEngine, mode: DebugMode) -> None:
    failure = ModelFailed("No titles today.", kind="config")
    for title, expected in ((None, "completed"), (failure, "error")):
        async with RecordingHarness(engine, Titling(title)).opened() as harness:
            running = await harness.start_recording_worker(mode, settings=make_settings(auto_titles=True))
            chat = await harness.create_chat("Is it raining?")
            named = "Rain in Oslo" if title is None else "Is it raining?"
            told = {"turn", "title"} if mode == "all" else set() if title is None else {"title"}
            await harness.wait_until(chat, lambda view: view.title == named and view.status == "idle")  # noqa: B023
            await harness.wait_for_runs(chat, lambda runs: len([run for run in runs if run.ended_at]) == len(told))  # noqa: B023
            await harness.stop_worker(running)
            runs = {run.kind: run for run in await harness.drain_runs(chat)}
        assert set(runs) == told
        if "title" in runs:
            code = 200 if title is None else 400
            assert outline_run(runs["title"]) == ("title", expected, [(1, expected, [(1, "completed", code)])])
            assert (runs["title"].turn_id, runs["title"].model) == (None, harness.model_name)


async def test_a_compaction_is_a_run_and_its_tries_are_attempts_of_one_step(engine: AsyncEngine) -> None:
    story = say("a long story " * 40)
    async with RecordingHarness(engine, [story, say("Short"), say("They told stories.")]).opened() as harness:
        await harness.start_recording_worker("errors")
        chat = await harness.create_chat(None)
        await chat.send("Tell me a story")
        await chat.send("And another")
        harness.provider.faults.append(Status(529))
        assert (await chat.compact()).outcome == "complete"
        (run,) = await harness.wait_for_ended_runs(chat)
    attempts = [(1, "completed", 529), (2, "completed", 200)]
    assert outline_run(run) == ("compaction", "completed", [(1, "completed", attempts)])


async def test_a_compaction_that_fails_is_a_run_that_failed(engine: AsyncEngine) -> None:
    story = say("a long story " * 40)
    async with RecordingHarness(engine, [story, say("Short")]).opened() as harness:
        await harness.start_recording_worker("errors")
        chat = await harness.create_chat(None)
        await chat.send("Tell me a story")
        await chat.send("And another")
        harness.provider.faults.append(Status(401))
        with pytest.raises(ModelFailed):
            await chat.compact()
        (run,) = await harness.wait_for_ended_runs(chat)
    assert outline_run(run) == ("compaction", "error", [(1, "error", [(1, "completed", 401)])])


async def test_the_summary_that_an_overflow_asks_for_is_an_attempt_of_the_step_that_overflowed(
    engine: AsyncEngine,
) -> None:
    too_long = ModelFailed("Too long.", kind="context_overflow")
    scripts: list[Script] = [say("a long story " * 40), say("Short"), [too_long], say("In short."), say("Fine.")]
    async with RecordingHarness(engine, scripts).opened() as harness:
        await harness.start_recording_worker("errors")
        chat = await harness.create_chat(None)
        await chat.send("Tell me a story")
        await chat.send("And another")
        assert (await chat.send("And now?")).text == "Fine."
        (run,) = await harness.wait_for_ended_runs(chat)
        requests = [request.raw.decode() for request in harness.provider.requests]
    attempts = [(1, "completed", 400), (2, "completed", 200), (3, "completed", 200)]
    assert outline_run(run) == ("turn", "completed", [(1, "completed", attempts)])
    assert "first part of a conversation" in requests[3]
    assert "first part of a conversation" in run.steps[0].attempts[1].request_body


# --- which exchanges are recorded ---


@pytest.mark.parametrize(
    ("mode", "chats_own", "recorded"),
    [
        ("off", None, []),
        ("errors", None, ["bad", "retried"]),
        ("all", None, ["good", "bad", "retried"]),
        ("off", "errors", ["bad", "retried"]),
        ("off", "all", ["good", "bad", "retried"]),
        ("all", "off", []),
        ("all", "errors", ["bad", "retried"]),
        ("errors", "all", ["good", "bad", "retried"]),
    ],
)
async def test_the_mode_says_what_is_recorded_and_a_chat_may_have_its_own(
    engine: AsyncEngine, mode: DebugMode, chats_own: DebugMode | None, recorded: list[str]
) -> None:
    async with RecordingHarness(engine, [say("Hi."), say("Hi.")]).opened() as harness:
        await harness.start_recording_worker(mode)
        chats = {name: await harness.create_chat(None, debug=chats_own) for name in ("good", "bad", "retried")}
        await chats["good"].send("Hello")
        harness.provider.faults.append(Status(401))
        with pytest.raises(ModelFailed):
            await chats["bad"].send("Hello")
        harness.provider.faults.append(Status(529))
        await chats["retried"].send("Hello")
        found = {name: [outline_run(run) for run in await harness.drain_runs(chat)] for name, chat in chats.items()}
    expected = {
        "good": ("turn", "completed", WELL),
        "bad": ("turn", "error", [(1, "error", [(1, "completed", 401)])]),
        "retried": ("turn", "completed", [(1, "completed", [(1, "completed", 529), (2, "completed", 200)])]),
    }
    assert found == {name: [expected[name]] if name in recorded else [] for name in chats}


async def test_a_chats_own_mode_holds_from_the_next_turn_on(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, [say("One."), say("Two."), say("Three.")]).opened() as harness:
        await harness.start_recording_worker("off")
        chat = await harness.create_chat(None)
        await chat.send("1")
        await chat.update(debug="all")
        await chat.send("2")
        await chat.update(debug=None)
        await chat.send("3")
        (run,) = await harness.drain_runs(chat)
    assert "Two." in run.steps[0].attempts[0].response_body


async def test_with_errors_only_the_steps_that_went_wrong_are_recorded(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, [call_tool("weather"), call_tool("weather"), say("Rain.")]).opened() as harness:
        harness.provider.faults.extend([None, Status(529)])
        await harness.start_recording_worker("errors", tools=[weather])
        chat = await harness.create_chat()
        (run,) = await harness.wait_for_ended_runs(chat)
    assert outline_run(run) == ("turn", "completed", [(2, "completed", [(1, "completed", 529), (2, "completed", 200)])])


async def test_with_errors_a_stop_is_nothing_to_record(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, [HALF]).opened() as harness:
        await harness.start_recording_worker("errors")
        chat = await harness.create_chat()
        await harness.wait_for_text(chat, "Half of ")
        await chat.interrupt()
        assert await harness.drain_runs(chat) == []


class Curious:
    """Says whether it is being recorded."""

    provider = name = "curious"
    context_limit = None
    traits = ModelTraits(makes_titles=False)

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        yield TextDelta("1", "not recorded" if recording.get() is None else "recorded")
        yield parts.finish()


@pytest.mark.parametrize(("mode", "expected"), [("off", "not recorded"), ("errors", "recorded"), ("all", "recorded")])
async def test_when_it_is_off_nobody_listens_at_all(engine: AsyncEngine, mode: DebugMode, expected: str) -> None:
    async with RecordingHarness(engine, []).opened() as harness:
        harness.model = Curious()
        await harness.start_recording_worker(mode)
        chat = await harness.create_chat(None)
        assert (await chat.send("Hello")).text == expected
    assert recording.get() is None


@pytest.mark.parametrize("wire", WIRES)
async def test_a_conversation_is_the_same_whether_it_is_recorded_or_not(engine: AsyncEngine, wire: WireName) -> None:
    told: list[object] = []
    for mode in ("off", "errors", "all"):
        scripts: list[Script] = [call_tool("weather"), say("Rain."), say("Bye.")]
        faults = [Status(529), Cut(at_byte=30), None, None, Stall(at_byte=10)]
        async with RecordingHarness(engine, [say("lost"), *scripts], faults, wire=wire).opened() as harness:
            running = await harness.start_recording_worker(mode, tools=[weather])
            chat = await harness.create_chat()
            await harness.wait_for_end(chat)
            await chat.post("And?")
            await harness.provider.wait_for_requests(5)
            await chat.interrupt()
            await harness.stop_worker(running)
            sent = [request.raw for request in harness.provider.requests]
        told.append((outline(await chat.messages()), sent))
    assert told[0] == told[1] == told[2]


# --- steps that nobody begins ---


def make_request() -> HttpRequest:
    return HttpRequest(url="https://provider.test/v1/messages", headers={"content-type": JSON}, body=b'{"a": 1}')


def record(harness: RecordingHarness, chat: Chat) -> RecordedRun:
    """A run that is told of by hand."""
    ((worker_id, recorder),) = harness.recorders.items()
    return recorder.record(chat_id=chat.id, turn_id=None, kind="turn", model=None, worker_id=worker_id)


async def exchange(answer: Answer) -> None:
    """What http.py does, with an answer of ours."""
    recorder = recording.get()
    assert recorder is not None
    seen = recorder.begin(make_request())
    assert seen is not None
    response = seen.wrap(answer)
    await read_all(response)
    await response.aclose()


@pytest.mark.parametrize(("status", "is_told"), [(200, False), (500, True)])
async def test_a_summary_before_a_step_belongs_to_it_and_is_no_try_at_it(
    engine: AsyncEngine, status: int, is_told: bool
) -> None:
    """Where the window is nearly full a summary is made before the next step. A good one is nothing to tell."""
    async with RecordingHarness(engine, []).opened() as harness:
        await harness.start_recording_worker("errors")
        chat = await harness.create_chat(None)
        with record(harness, chat) as run:
            run.begin_step(1)
            await exchange(Answer(b"{}", content_type=JSON))
            run.end_step("completed")
            await exchange(Answer(b"{}", content_type=JSON, status=status))
            run.begin_step(2)
            await exchange(Answer(b"{}", content_type=JSON))
            run.end("completed")
        told = [outline_run(run) for run in await harness.drain_runs(chat)]
    attempts = [(1, "completed", status), (2, "completed", 200)]
    assert told == ([("turn", "completed", [(2, "completed", attempts)])] if is_told else [])


async def test_a_summary_before_the_first_step_has_the_number_of_that_step(engine: AsyncEngine) -> None:
    """Whoever takes a turn over may begin with its fifth step."""
    async with RecordingHarness(engine, []).opened() as harness:
        await harness.start_recording_worker()
        chat = await harness.create_chat(None)
        with record(harness, chat) as run:
            await exchange(Answer(b"{}", content_type=JSON))
            run.begin_step(5)
            await exchange(Answer(b"{}", content_type=JSON))
            run.end_step("completed")
            await exchange(Answer(b"{}", content_type=JSON))
            run.end("interrupted")
        (found,) = await harness.wait_for_ended_runs(chat)
    both = [(1, "completed", 200), (2, "completed", 200)]
    assert outline_run(found) == ("turn", "interrupted", [(5, "completed", both), (6, "interrupted", both[:1])])


async def test_a_run_that_is_left_with_an_error_has_failed(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, []).opened() as harness:
        await harness.start_recording_worker()
        chat = await harness.create_chat(None)
        with suppress(ZeroDivisionError), record(harness, chat) as run:
            run.begin_step(1)
            raise ZeroDivisionError("sk-canarycanary")
        (found,) = await harness.wait_for_ended_runs(chat)
    assert outline_run(found) == ("turn", "error", [(1, "error", [])])
    assert found.error == "Abandoned: ZeroDivisionError."


@pytest.mark.parametrize("wire", WIRES)
async def test_a_reply_whose_provider_lingers_is_completed(engine: AsyncEngine, wire: WireName) -> None:
    async with RecordingHarness(engine, [say("Whole."), say("Whole.")], wire=wire).opened() as harness:
        await harness.start_recording_worker()
        ordinary = await harness.create_chat()
        (run,) = await harness.wait_for_ended_runs(ordinary)
        body = run.steps[0].attempts[0].response_body
        harness.provider.faults.append(Stall(at_byte=len(body.encode())))
        lingering = await harness.create_chat()
        (run,) = await harness.wait_for_ended_runs(lingering)
    (attempt,) = run.steps[0].attempts
    assert (run.status, attempt.status, attempt.error) == ("completed", "completed", None)
    assert "Whole." in attempt.response_body


async def test_an_exchange_that_is_open_when_its_step_ends_is_ended_with_it(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, []).opened() as harness:
        await harness.start_recording_worker()
        chat = await harness.create_chat(None)
        with record(harness, chat) as run:
            run.begin_step(1)
            seen = run.begin(make_request())
            assert seen is not None
            response = seen.wrap(Answer(b"data: 1\n\n", b"data: 2\n\n"))
            assert await response.read() == b"data: 1\n\n"
        (left,) = await harness.wait_for_ended_runs(chat)
        assert outline_run(left) == ("turn", "interrupted", [(1, "interrupted", [(1, "failed", 200)])])
        assert left.error == "Abandoned."
        assert left.steps[0].attempts[0].error == "the step ended before the exchange did"
        assert await read_all(response) == b"data: 2\n\n"
        await response.aclose()
        assert await harness.drain_runs(chat) == [left]


async def test_the_first_end_of_a_run_counts(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, []).opened() as harness:
        await harness.start_recording_worker()
        chat = await harness.create_chat(None)
        with record(harness, chat) as run:
            run.end("completed")
            run.end("error", "too late")
            run.end_step("error")
        (found,) = await harness.wait_for_ended_runs(chat)
        assert (found.status, found.error, found.steps) == ("completed", None, [])


# --- how long it is kept ---


async def test_records_are_forgotten_when_they_are_too_old(engine: AsyncEngine) -> None:
    clock = ManualClock()
    async with RecordingHarness(engine, [say("Old."), say("New.")]).opened() as harness:
        running = await harness.start_recording_worker(clock=clock)
        recorder = harness.recorders[running.worker.id]
        chat = await harness.create_chat(None)
        await chat.send("1")
        await recorder.drain()
        clock.advance(KEPT_S - 1)
        await chat.send("2")
        await recorder.drain()
        await recorder.clean_up()
        assert len(await harness.load_runs(chat)) == 2
        clock.advance(2)
        await recorder.clean_up()
        (left,) = await harness.load_runs(chat)
    assert "New." in left.steps[0].attempts[0].response_body
    assert outline(await chat.messages())[1] == ("assistant", "Old.")


# --- a program with everything in it ---


async def test_what_was_recorded_is_written_when_the_program_ends(database: str) -> None:
    async with SimulatedProvider([say("Hello.")]) as provider:
        model = f"openai-chat:m@{provider.base_url('openai-chat')}"
        settings = make_settings(model=model, debug="all", database=database)
        async with indelible.open(settings=settings) as app:
            chat = await app.create_chat()
            await chat.send("Hi")
    async with indelible.open(database, worker=False) as app:
        (summary,) = await app.records.list_runs(chat.id)
        assert (summary.status, summary.step_count, summary.attempt_count) == ("completed", 1, 1)
        assert summary.model == model
