"""What is recorded of a run, through the whole stack: chat, worker, loop, adapter, HTTP, and both databases.

What goes wrong in recording itself is test_recorder_in_trouble.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from tests.models.wires_under_test import WIRES
from tests.recording.answers import JSON, Answer, read_all
from tests.recording.studio import KEPT_S, Studio, assert_closed, call_tool, open_studio, say, tell
from tests.worker.workshop import Workshop, quick, read_text
from tests.worker.workshop import tell as tell_messages

import indelible
from indelible import tool
from indelible.app.chat import Chat
from indelible.content import Part, TextDelta
from indelible.errors import ModelFailed
from indelible.models.http.recording_hook import HttpRequest, recording
from indelible.models.protocol import Call, ModelTraits
from indelible.recording.run import RecordedRun
from indelible.recording.storage.sql_records import GONE, REPLACED
from indelible.store.database.tables import DebugMode
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
    workshop: Workshop, wire: WireName
) -> None:
    async with open_studio(workshop, [call_tool("weather"), say("Rain.")], wire=wire) as studio:
        hired = await studio.hire(tools=[weather])
        chat = await studio.create()
        view = await workshop.until_rest(chat)
        (run,) = await studio.until_ended(chat)
        requests = studio.provider.requests
    assert tell(run) == ("turn", "completed", [*WELL, (2, "completed", [(1, "completed", 200)])])
    assert (run.worker_id, run.model, run.error) == (hired.worker.id, studio.name, None)
    assert run.turn_id == (await workshop.load(chat)).turns[0].id
    assert view.messages[-1].role == "assistant"
    for step, request in zip(run.steps, requests, strict=True):
        (attempt,) = step.attempts
        assert (attempt.method, attempt.url) == ("POST", studio.provider.url + request.path)
        assert json.loads(attempt.request_body) == request.body
        assert attempt.response_headers is not None
        assert attempt.response_headers["Content-Type"].startswith("text/event-stream")
        times = [run.started_at, step.started_at, attempt.started_at, attempt.head_at, attempt.ended_at]
        times += [step.ended_at, run.ended_at]
        known = [time for time in times if time is not None]
        assert len(known) == 7
        assert known == sorted(known)
    assert "Rain." in run.steps[1].attempts[0].response_body


async def test_every_try_at_a_step_is_an_attempt_of_it(workshop: Workshop) -> None:
    faults = [Status(529), Cut(at_byte=0), Cut(at_byte=10, clean=False), None]
    async with open_studio(workshop, [say(""), say(""), say("At last.")], faults) as studio:
        await studio.hire()
        chat = await studio.create()
        (run,) = await studio.until_ended(chat)
    attempts = [(1, "completed", 529), (2, "completed", 200), (3, "failed", 200), (4, "completed", 200)]
    assert tell(run) == ("turn", "completed", [(1, "completed", attempts)])
    assert [attempt.error is None for attempt in run.steps[0].attempts] == [True, True, False, True]


async def test_a_reply_that_is_continued_after_it_was_cut_is_a_step_that_failed_and_the_next(
    workshop: Workshop,
) -> None:
    cut: list[Step] = [parts.text_delta("1", "Half of "), ModelFailed("It broke.", kind="server_error")]
    async with open_studio(workshop, [cut, say("it.")]) as studio:
        await studio.hire()
        chat = await studio.create()
        (run,) = await studio.until_ended(chat)
    assert tell(run) == ("turn", "completed", [(1, "error", [(1, "failed", 200)]), (2, *WELL[0][1:])])


async def test_a_provider_that_does_not_answer_is_an_attempt_without_a_status(workshop: Workshop) -> None:
    async with open_studio(workshop, []) as studio:
        await studio.provider.aclose()
        await studio.hire(settings=quick(retry_max_attempts=1))
        chat = await studio.create()
        (run,) = await studio.until_ended(chat)
    assert tell(run) == ("turn", "error", [(1, "error", [(1, "failed", None)])])
    (attempt,) = run.steps[0].attempts
    assert "127.0.0.1" in (attempt.error or "")
    assert (attempt.head_at, attempt.response_headers, attempt.response_body) == (None, None, "")


async def test_turns_that_follow_each_other_at_once_all_keep_their_own_end(workshop: Workshop) -> None:
    async with open_studio(workshop, [say(f"{number}") for number in range(4)]) as studio:
        chat = await studio.create("1")
        for text in ("2", "3", "4"):
            await chat.post(text)
        await studio.hire()
        runs = await studio.until_ended(chat, 4)
    assert [tell(run) for run in runs] == [("turn", "completed", WELL)] * 4


async def test_an_end_that_is_written_together_with_the_next_beginning_stands(workshop: Workshop) -> None:
    """The next run ends what earlier ones left open: not one whose own end is in the same batch."""
    async with open_studio(workshop, []) as studio:
        await studio.hire()
        chat = await studio.create(None)
        (recorder,) = studio.recorders.values()
        with record(studio, chat) as first:
            await recorder.drain()
            assert [run.status for run in await studio.load(chat)] == ["in_progress"]
            first.end("completed")
        with record(studio, chat) as second:
            second.end("completed")
        runs = await studio.until_ended(chat, 2)
    assert sorted(run.status for run in runs) == ["completed", "completed"]


# --- while it runs ---


async def test_attempts_can_be_seen_while_their_step_still_runs(workshop: Workshop) -> None:
    async with open_studio(workshop, [HALF], [Status(529)]) as studio:
        await studio.hire()
        chat = await studio.create()
        await workshop.until_said(chat, "Half of ")
        await studio.until(chat, lambda runs: bool(runs and runs[0].steps and runs[0].steps[0].attempts))
        (run,) = await studio.load(chat)
        assert tell(run) == ("turn", "in_progress", [(1, "in_progress", [(1, "completed", 529)])])
        await chat.interrupt()


async def test_a_reply_can_be_seen_while_its_tools_still_run(workshop: Workshop) -> None:
    go_on = asyncio.Event()

    @tool
    async def slow() -> str:
        await go_on.wait()
        return "done"

    async with open_studio(workshop, [call_tool("slow"), say("Done.")]) as studio:
        await studio.hire(tools=[slow])
        chat = await studio.create()
        (run,) = await studio.until(chat, lambda runs: bool(runs and runs[0].steps and runs[0].steps[0].attempts))
        assert tell(run) == ("turn", "in_progress", [(1, "in_progress", [(1, "completed", 200)])])
        go_on.set()
        (run,) = await studio.until_ended(chat)
    assert run.status == "completed"


# --- how it ends ---


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stop_makes_the_run_and_its_step_interrupted_and_keeps_what_came(
    workshop: Workshop, wire: WireName
) -> None:
    async with open_studio(workshop, [HALF], wire=wire) as studio:
        await studio.hire()
        chat = await studio.create()
        await workshop.until_said(chat, "Half of ")
        await chat.interrupt()
        (run,) = await studio.until_ended(chat)
    assert tell(run) == ("turn", "interrupted", [(1, "interrupted", [(1, "failed", 200)])])
    (attempt,) = run.steps[0].attempts
    assert attempt.error == "cancelled while reading the response"
    assert "Half of" in attempt.response_body


async def test_a_stop_before_there_is_an_answer_is_recorded_too(workshop: Workshop) -> None:
    async with open_studio(workshop, [], [Hang()]) as studio:
        await studio.hire()
        chat = await studio.create()
        await studio.provider.wait_for_requests(1)
        await chat.interrupt()
        (run,) = await studio.until_ended(chat)
    assert tell(run) == ("turn", "interrupted", [(1, "interrupted", [(1, "failed", None)])])


async def test_a_step_that_was_completed_is_not_downgraded_by_a_stop(workshop: Workshop) -> None:
    async with open_studio(workshop, [call_tool("weather"), HALF]) as studio:
        await studio.hire(tools=[weather])
        chat = await studio.create()
        await workshop.until_said(chat, "Half of ")
        await chat.interrupt()
        (run,) = await studio.until_ended(chat)
    assert tell(run) == ("turn", "interrupted", [*WELL, (2, "interrupted", [(1, "failed", 200)])])


async def test_a_failure_is_told_at_the_run_and_at_its_step(workshop: Workshop) -> None:
    said: list[Step] = [parts.text_delta("1", "Well, "), ModelFailed("It broke.", kind="server_error")]
    async with open_studio(workshop, [said], [None, Status(401)]) as studio:
        await studio.hire()
        chat = await studio.create()
        await workshop.until_rest(chat)
        (run,) = await studio.until_ended(chat)
    steps = [(1, "error", [(1, "failed", 200)]), (2, "error", [(1, "completed", 401)])]
    assert tell(run) == ("turn", "error", steps)
    assert run.error is not None
    assert "key" in run.error
    assert run.steps[1].error == run.error


async def test_a_run_that_is_handed_over_is_interrupted_and_the_next_worker_has_its_own(workshop: Workshop) -> None:
    async with open_studio(workshop, [HALF, say("it.")]) as studio:
        first = await studio.hire()
        chat = await studio.create()
        await workshop.until_said(chat, "Half of ")
        await workshop.dismiss(first)
        (left,) = await studio.load(chat)
        second = await studio.hire()
        await workshop.until_rest(chat)
        runs = await studio.until_ended(chat, 2)
    assert runs[0] == left
    assert tell(left) == ("turn", "interrupted", [(1, "interrupted", [(1, "failed", 200)])])
    assert left.error == "The worker was shut down; another worker continues."
    assert (runs[1].status, runs[1].turn_id, runs[1].worker_id) == ("completed", left.turn_id, second.worker.id)


async def test_what_a_killed_worker_left_open_is_ended_by_whoever_takes_over(workshop: Workshop) -> None:
    async with open_studio(workshop, [call_tool("weather"), HALF, say("it.")]) as studio:
        first = await studio.hire(tools=[weather])
        chat = await studio.create()
        await workshop.until_said(chat, "Half of ")
        await studio.until(chat, lambda runs: bool(runs) and len(runs[0].steps) == 2)
        await studio.kill(first)
        (left,) = await studio.load(chat)
        assert tell(left) == ("turn", "in_progress", [*WELL, (2, "in_progress", [])])
        await workshop.bury(first)
        await studio.hire(tools=[weather])
        await workshop.until_rest(chat)
        left, taken = await studio.until_ended(chat, 2)
    assert tell(left) == ("turn", "error", [*WELL, (2, "error", [])])
    assert left.error in {GONE, REPLACED}
    assert (taken.status, taken.turn_id) == ("completed", left.turn_id)
    assert_closed([left, taken])


async def test_what_a_killed_worker_left_open_is_ended_even_if_nobody_takes_over(workshop: Workshop) -> None:
    """As with the mode `errors`, when all goes well for the next one."""
    async with open_studio(workshop, [HALF]) as studio:
        first = await studio.hire()
        chat = await studio.create()
        await workshop.until_said(chat, "Half of ")
        await studio.until(chat, lambda runs: bool(runs) and len(runs[0].steps) == 1)
        await studio.kill(first)
        recorder = studio.recorders[first.worker.id]
        await recorder.clean_up()
        (run,) = await studio.load(chat)
        assert run.status == "in_progress"
        await workshop.bury(first)
        await recorder.clean_up()
        (run,) = await studio.load(chat)
        assert tell(run) == ("turn", "error", [(1, "error", [])])
        assert run.error == GONE
        await chat.interrupt()


async def test_a_run_whose_chat_is_deleted_meanwhile_leaves_nothing_behind(workshop: Workshop) -> None:
    async with open_studio(workshop, [say("Hi."), HALF]) as studio:
        await studio.hire()
        kept, chat = await studio.create(), await studio.create(None)
        await studio.until_ended(kept)
        await chat.post("Hello")
        await workshop.until_said(chat, "Half of ")
        await studio.until(chat, bool)
        await chat.delete()
        await studio.provider.wait_for_drops(1)
        assert await studio.load_drained(chat) == []
        assert len(await studio.load(kept)) == 1


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
async def test_a_title_is_a_run_of_its_own(workshop: Workshop, mode: DebugMode) -> None:
    failure = ModelFailed("No titles today.", kind="config")
    for title, expected in ((None, "completed"), (failure, "error")):
        async with open_studio(workshop, Titling(title)) as studio:
            hired = await studio.hire(mode, settings=quick(auto_titles=True))
            chat = await studio.create("Is it raining?")
            view = await workshop.until(chat, lambda view: view.title is not None)
            assert view.title == ("Rain in Oslo" if title is None else "Is it raining?")
            runs = {run.kind: run for run in await studio.load_drained(chat)}
            await workshop.dismiss(hired)
        told = {"turn", "title"} if mode == "all" else set() if title is None else {"title"}
        assert set(runs) == told
        if "title" in runs:
            code = 200 if title is None else 400
            assert tell(runs["title"]) == ("title", expected, [(1, expected, [(1, "completed", code)])])
            assert (runs["title"].turn_id, runs["title"].model) == (None, studio.name)


async def test_a_compaction_is_a_run_and_its_tries_are_attempts_of_one_step(workshop: Workshop) -> None:
    story = say("a long story " * 40)
    async with open_studio(workshop, [story, say("Short"), say("They told stories.")]) as studio:
        await studio.hire("errors")
        chat = await studio.create(None)
        await chat.send("Tell me a story")
        await chat.send("And another")
        studio.provider.faults.append(Status(529))
        assert (await chat.compact()).outcome == "complete"
        (run,) = await studio.until_ended(chat)
    attempts = [(1, "completed", 529), (2, "completed", 200)]
    assert tell(run) == ("compaction", "completed", [(1, "completed", attempts)])


async def test_a_compaction_that_fails_is_a_run_that_failed(workshop: Workshop) -> None:
    story = say("a long story " * 40)
    async with open_studio(workshop, [story, say("Short")]) as studio:
        await studio.hire("errors")
        chat = await studio.create(None)
        await chat.send("Tell me a story")
        await chat.send("And another")
        studio.provider.faults.append(Status(401))
        with pytest.raises(ModelFailed):
            await chat.compact()
        (run,) = await studio.until_ended(chat)
    assert tell(run) == ("compaction", "error", [(1, "error", [(1, "completed", 401)])])


async def test_the_summary_that_an_overflow_asks_for_is_an_attempt_of_the_step_that_overflowed(
    workshop: Workshop,
) -> None:
    too_long = ModelFailed("Too long.", kind="context_overflow")
    scripts: list[Script] = [say("a long story " * 40), say("Short"), [too_long], say("In short."), say("Fine.")]
    async with open_studio(workshop, scripts) as studio:
        await studio.hire("errors")
        chat = await studio.create(None)
        await chat.send("Tell me a story")
        await chat.send("And another")
        assert (await chat.send("And now?")).text == "Fine."
        (run,) = await studio.until_ended(chat)
        requests = [request.raw.decode() for request in studio.provider.requests]
    attempts = [(1, "completed", 400), (2, "completed", 200), (3, "completed", 200)]
    assert tell(run) == ("turn", "completed", [(1, "completed", attempts)])
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
    workshop: Workshop, mode: DebugMode, chats_own: DebugMode | None, recorded: list[str]
) -> None:
    async with open_studio(workshop, [say("Hi."), say("Hi.")]) as studio:
        await studio.hire(mode)
        chats = {name: await studio.create(None, debug=chats_own) for name in ("good", "bad", "retried")}
        await chats["good"].send("Hello")
        studio.provider.faults.append(Status(401))
        with pytest.raises(ModelFailed):
            await chats["bad"].send("Hello")
        studio.provider.faults.append(Status(529))
        await chats["retried"].send("Hello")
        found = {name: [tell(run) for run in await studio.load_drained(chat)] for name, chat in chats.items()}
    expected = {
        "good": ("turn", "completed", WELL),
        "bad": ("turn", "error", [(1, "error", [(1, "completed", 401)])]),
        "retried": ("turn", "completed", [(1, "completed", [(1, "completed", 529), (2, "completed", 200)])]),
    }
    assert found == {name: [expected[name]] if name in recorded else [] for name in chats}


async def test_a_chats_own_mode_holds_from_the_next_turn_on(workshop: Workshop) -> None:
    async with open_studio(workshop, [say("One."), say("Two."), say("Three.")]) as studio:
        await studio.hire("off")
        chat = await studio.create(None)
        await chat.send("1")
        await chat.update(debug="all")
        await chat.send("2")
        await chat.update(debug=None)
        await chat.send("3")
        (run,) = await studio.load_drained(chat)
    assert "Two." in run.steps[0].attempts[0].response_body


async def test_with_errors_only_the_steps_that_went_wrong_are_recorded(workshop: Workshop) -> None:
    async with open_studio(workshop, [call_tool("weather"), call_tool("weather"), say("Rain.")]) as studio:
        studio.provider.faults.extend([None, Status(529)])
        await studio.hire("errors", tools=[weather])
        chat = await studio.create()
        (run,) = await studio.until_ended(chat)
    assert tell(run) == ("turn", "completed", [(2, "completed", [(1, "completed", 529), (2, "completed", 200)])])


async def test_with_errors_a_stop_is_nothing_to_record(workshop: Workshop) -> None:
    async with open_studio(workshop, [HALF]) as studio:
        await studio.hire("errors")
        chat = await studio.create()
        await workshop.until_said(chat, "Half of ")
        await chat.interrupt()
        assert await studio.load_drained(chat) == []


class Curious:
    """Says whether it is being recorded."""

    provider = name = "curious"
    context_limit = None
    traits = ModelTraits(makes_titles=False)

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        yield TextDelta("1", "not recorded" if recording.get() is None else "recorded")
        yield parts.finish()


@pytest.mark.parametrize(("mode", "said"), [("off", "not recorded"), ("errors", "recorded"), ("all", "recorded")])
async def test_when_it_is_off_nobody_listens_at_all(workshop: Workshop, mode: DebugMode, said: str) -> None:
    async with open_studio(workshop, []) as studio:
        studio.model = Curious()  # type: ignore[assignment]
        await studio.hire(mode)
        chat = await studio.create(None)
        assert (await chat.send("Hello")).text == said
    assert recording.get() is None


@pytest.mark.parametrize("wire", WIRES)
async def test_a_conversation_is_the_same_whether_it_is_recorded_or_not(workshop: Workshop, wire: WireName) -> None:
    told: list[object] = []
    for mode in ("off", "errors", "all"):
        scripts: list[Script] = [call_tool("weather"), say("Rain."), say("Bye.")]
        faults = [Status(529), Cut(at_byte=30), None, None, Stall(at_byte=10)]
        async with open_studio(workshop, [say("lost"), *scripts], faults, wire=wire) as studio:
            hired = await studio.hire(mode, tools=[weather])
            chat = await studio.create()
            await workshop.until_rest(chat)
            await chat.post("And?")
            await studio.provider.wait_for_requests(5)
            await chat.interrupt()
            await workshop.dismiss(hired)
            sent = [request.raw for request in studio.provider.requests]
        told.append((tell_messages(await chat.messages()), sent))
    assert told[0] == told[1] == told[2]


# --- steps that nobody begins ---


def make_request() -> HttpRequest:
    return HttpRequest(url="https://provider.test/v1/messages", headers={"content-type": JSON}, body=b'{"a": 1}')


def record(studio: Studio, chat: Chat) -> RecordedRun:
    """A run that is told of by hand."""
    ((worker_id, recorder),) = studio.recorders.items()
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
    workshop: Workshop, status: int, is_told: bool
) -> None:
    """Where the window is nearly full a summary is made before the next step. A good one is nothing to tell."""
    async with open_studio(workshop, []) as studio:
        await studio.hire("errors")
        chat = await studio.create(None)
        with record(studio, chat) as run:
            run.begin_step(1)
            await exchange(Answer(b"{}", content_type=JSON))
            run.end_step("completed")
            await exchange(Answer(b"{}", content_type=JSON, status=status))
            run.begin_step(2)
            await exchange(Answer(b"{}", content_type=JSON))
            run.end("completed")
        told = [tell(run) for run in await studio.load_drained(chat)]
    attempts = [(1, "completed", status), (2, "completed", 200)]
    assert told == ([("turn", "completed", [(2, "completed", attempts)])] if is_told else [])


async def test_a_summary_before_the_first_step_is_told_under_the_number_of_that_step(workshop: Workshop) -> None:
    """Whoever takes a turn over may begin with its fifth step."""
    async with open_studio(workshop, []) as studio:
        await studio.hire()
        chat = await studio.create(None)
        with record(studio, chat) as run:
            await exchange(Answer(b"{}", content_type=JSON))
            run.begin_step(5)
            await exchange(Answer(b"{}", content_type=JSON))
            run.end_step("completed")
            await exchange(Answer(b"{}", content_type=JSON))
            run.end("interrupted")
        (found,) = await studio.until_ended(chat)
    both = [(1, "completed", 200), (2, "completed", 200)]
    assert tell(found) == ("turn", "interrupted", [(5, "completed", both), (6, "interrupted", both[:1])])


async def test_a_run_that_is_left_with_an_error_has_failed(workshop: Workshop) -> None:
    async with open_studio(workshop, []) as studio:
        await studio.hire()
        chat = await studio.create(None)
        with suppress(ZeroDivisionError), record(studio, chat) as run:
            run.begin_step(1)
            raise ZeroDivisionError("sk-canarycanary")
        (found,) = await studio.until_ended(chat)
    assert tell(found) == ("turn", "error", [(1, "error", [])])
    assert found.error == "It was given up: ZeroDivisionError."


@pytest.mark.parametrize("wire", WIRES)
async def test_a_reply_whose_provider_lingers_is_completed(workshop: Workshop, wire: WireName) -> None:
    async with open_studio(workshop, [say("Whole."), say("Whole.")], wire=wire) as studio:
        await studio.hire()
        ordinary = await studio.create()
        (run,) = await studio.until_ended(ordinary)
        body = run.steps[0].attempts[0].response_body
        studio.provider.faults.append(Stall(at_byte=len(body.encode())))
        lingering = await studio.create()
        (run,) = await studio.until_ended(lingering)
    (attempt,) = run.steps[0].attempts
    assert (run.status, attempt.status, attempt.error) == ("completed", "completed", None)
    assert "Whole." in attempt.response_body


async def test_an_exchange_that_is_open_when_its_step_ends_is_ended_with_it(workshop: Workshop) -> None:
    async with open_studio(workshop, []) as studio:
        await studio.hire()
        chat = await studio.create(None)
        with record(studio, chat) as run:
            run.begin_step(1)
            seen = run.begin(make_request())
            assert seen is not None
            response = seen.wrap(Answer(b"data: 1\n\n", b"data: 2\n\n"))
            assert await response.read() == b"data: 1\n\n"
        (left,) = await studio.until_ended(chat)
        assert tell(left) == ("turn", "interrupted", [(1, "interrupted", [(1, "failed", 200)])])
        assert left.error == "It was given up."
        assert left.steps[0].attempts[0].error == "the step ended before the exchange did"
        assert await read_all(response) == b"data: 2\n\n"
        await response.aclose()
        assert await studio.load_drained(chat) == [left]


async def test_the_first_end_of_a_run_counts(workshop: Workshop) -> None:
    async with open_studio(workshop, []) as studio:
        await studio.hire()
        chat = await studio.create(None)
        with record(studio, chat) as run:
            run.end("completed")
            run.end("error", "too late")
            run.end_step("error")
        (found,) = await studio.until_ended(chat)
        assert (found.status, found.error, found.steps) == ("completed", None, [])


# --- how long it is kept ---


async def test_records_are_forgotten_when_they_are_too_old(workshop: Workshop) -> None:
    clock = ManualClock()
    async with open_studio(workshop, [say("Old."), say("New.")]) as studio:
        hired = await studio.hire(clock=clock)
        recorder = studio.recorders[hired.worker.id]
        chat = await studio.create(None)
        await chat.send("1")
        await recorder.drain()
        clock.advance(KEPT_S - 1)
        await chat.send("2")
        await recorder.drain()
        await recorder.clean_up()
        assert len(await studio.load(chat)) == 2
        clock.advance(2)
        await recorder.clean_up()
        (left,) = await studio.load(chat)
    assert "New." in left.steps[0].attempts[0].response_body
    assert tell_messages(await chat.messages())[1] == ("assistant", "Old.")


# --- a program with everything in it ---


async def test_what_was_told_is_written_when_the_program_leaves(database: str) -> None:
    async with SimulatedProvider([say("Hello.")]) as provider:
        model = f"openai-chat:m@{provider.base_url('openai-chat')}"
        settings = quick(model=model, debug="all", database=database)
        async with indelible.open(settings=settings) as app:
            chat = await app.create_chat()
            await chat.send("Hi")
    async with indelible.open(database, worker=False) as app:
        (summary,) = await app.records.list_runs(chat.id)
        assert (summary.status, summary.step_count, summary.attempt_count) == ("completed", 1, 1)
        assert summary.model == model
