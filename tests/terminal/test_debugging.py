"""What was recorded, as it is drawn in a terminal: all of it can be read, and nothing of it can move a cursor."""

from __future__ import annotations

import gc
import io
import json
import re
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import asdict
from rich.console import Console, Group, RenderableType
from tests.recording.recorded import load_run

from indelible.api.records import (
    AttemptRecord,
    AttemptSummary,
    Exchanged,
    RunRecord,
    RunTree,
    StepRecord,
    StepTree,
    WholeRun,
)
from indelible.app.app import App
from indelible.cli.records import (
    choose_attempt,
    draw_replay,
    draw_run,
    draw_runs,
    find_run,
    load_runs,
    show_run,
    to_ascii_json,
    write_runs,
)
from indelible.content import Block, Reasoning, Source, Text, ToolCall, ToolResult, Usage
from indelible.errors import NotFound
from indelible.ids import new_id
from indelible.recording.replay import Recording, Replayed, write_run
from indelible.testing import ScriptedModel

OpenApp = Callable[..., AbstractAsyncContextManager[App]]

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
BOUND_BYTES = 1024 * 1024
HOSTILE = "a\x1b[2Jb\x9b31mc\x07d\r[bold]e[/bold]"
HARMLESS = "a\ufffd[2Jb\ufffd31mc\ufffdd[bold]e[/bold]"


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def make_attempt(number: int, **fields: Any) -> AttemptRecord:
    known: dict[str, Any] = {"chat_id": "chat_1", "run_id": "run_1", "step": 1, "number": number}
    known |= {"status": "completed", "method": "POST"}
    known |= {"status_code": 200, "url": "https://host/v1/messages", "started_at": NOON, "head_at": at(0.25)}
    known |= {"request_headers": {"content-type": "application/json"}, "request_body": '{"model": "m"}'}
    known |= {"response_headers": {"content-type": "text/event-stream"}, "response_body": "data: {}\n\n" * 200}
    return AttemptRecord(**{**known, "ended_at": at(1.5), **fields})


def summarise(attempt: AttemptRecord) -> AttemptSummary:
    known = {name: getattr(attempt, name) for name in Exchanged.__struct_fields__}
    sizes = (len(body.encode()) for body in (attempt.request_body, attempt.response_body))
    return AttemptSummary(**known, request_bytes=next(sizes), response_bytes=next(sizes))


def make_run(*attempts: AttemptRecord, **fields: Any) -> RunTree:
    lines = [summarise(attempt) for attempt in attempts]
    place: dict[str, Any] = {"chat_id": "chat_1", "run_id": "run_1", "step": 1}
    step = StepTree(**place, status="completed", started_at=NOON, ended_at=at(2), attempts=lines)
    known: dict[str, Any] = {"id": "run_1", "chat_id": "chat_1", "turn_id": "turn_1", "kind": "turn", "worker_id": "w"}
    known |= {"status": "completed", "model": "anthropic:m", "started_at": NOON, "ended_at": at(2.5), "steps": [step]}
    return RunTree(**{**known, **fields})


async def record(app: App, *attempts: AttemptRecord, **fields: Any) -> RunTree:
    """A run with these exchanges that is really there."""
    chat = await app.create_chat(title="Rain")
    tree = make_run(*attempts, id=new_id("run"), chat_id=chat.id, **fields)
    told = {name: getattr(tree, name) for name in RunRecord.__struct_fields__}
    of_run: dict[str, Any] = {"chat_id": chat.id, "run_id": tree.id}
    step = StepRecord(**of_run, step=1, status="completed", started_at=NOON, ended_at=at(2))
    here = [AttemptRecord(**{**asdict(attempt), **of_run}) for attempt in attempts]
    assert await app.records.write([RunRecord(**told), step, *here]) == 0
    return await find_run(app, tree.id)


async def draw_whole(app: App, run: RunTree, *, full: bool) -> RenderableType:
    return Group(*[branch async for branch in draw_run(app.records, run, full=full)])


def print_out(shown: RenderableType, *, width: int = 500, colours: bool = False) -> str:
    paper = io.StringIO()
    console = Console(
        file=paper,
        width=width,
        highlight=False,
        force_terminal=colours,
        color_system="truecolor" if colours else None,
    )
    console.print(shown)
    return paper.getvalue()


def strip_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


# --- the tree ---


def test_the_tree_tells_status_times_method_address_answer_error_and_sizes() -> None:
    refused = make_attempt(1, status_code=429, response_body="{}", ended_at=at(0.5))
    unanswered = make_attempt(
        2, status="failed", status_code=None, error="no route", head_at=None, response_headers=None, response_body=""
    )
    run = make_run(refused, unanswered, make_attempt(3))
    told = print_out(draw_runs("chat_1 Rain", [run])).splitlines()
    when = f"{NOON.astimezone():%Y-%m-%d %H:%M:%S}"
    where, answered = "POST https://host/v1/messages", "(first byte after 0.25 s)"
    kept = "kept: 14 B sent, 2.0 kB received"
    assert told == [
        "chat_1 Rain",
        f"└── run_1 turn · completed · anthropic:m · {when} · 2.50 s",
        "    └── step 1 · completed · 2.00 s",
        f"        ├── attempt 1.1 · completed · HTTP 429 · {where} · 0.50 s {answered} · kept: 14 B sent, 2 B received",
        f"        ├── attempt 1.2 · failed · no response · {where} · 1.50 s · kept: 14 B sent, 0 B received · no route",
        f"        └── attempt 1.3 · completed · HTTP 200 · {where} · 1.50 s {answered} · {kept}",
    ]


def test_what_still_runs_has_no_length_yet() -> None:
    run = make_run(status="in_progress", ended_at=None, model=None, steps=[])
    (_, line) = print_out(draw_runs("chat_1", [run])).splitlines()
    assert line == f"└── run_1 turn · in progress · {NOON.astimezone():%Y-%m-%d %H:%M:%S}"


def test_on_a_narrow_terminal_lines_are_folded_and_nothing_is_lost() -> None:
    run = make_run(make_attempt(1), error="It was given up. " * 10, status="interrupted")
    wide, narrow = (print_out(draw_runs("chat_1", [run]), width=width) for width in (1000, 60))
    assert all(len(line) <= 60 for line in narrow.splitlines())
    assert re.findall(r"\w+", wide) == re.findall(r"\w+", narrow)


# --- one run ---


async def test_one_run_shows_headers_and_bodies_shortened_unless_all_is_wanted(open_chats: OpenApp) -> None:
    async with open_chats(ScriptedModel(), worker=False) as app:
        run = await record(app, make_attempt(1), make_attempt(2))
        short, full = [print_out(await draw_whole(app, run, full=full)) for full in (False, True)]
    for told in (short, full):
        assert "content-type: application/json" in told
        assert "content-type: text/event-stream" in told
        assert '"model": "m"' in told
    assert "[… 800 more characters: --full shows them …]" in short
    assert (short.count("data: {}"), full.count("data: {}")) == (240, 400)
    assert "--full" not in full


async def test_branches_that_are_printed_one_by_one_are_a_tree(open_chats: OpenApp) -> None:
    async with open_chats(ScriptedModel(), worker=False) as app:
        body = {"request_headers": {}, "request_body": "a\nb", "response_headers": {"c": "d"}, "response_body": "e"}
        run = await record(app, make_attempt(1, **body), make_attempt(2, **body))
        again = StepRecord(chat_id=run.chat_id, run_id=run.id, step=2, status="in_progress", started_at=NOON)
        await app.records.write([again])
        told = print_out(await draw_whole(app, await find_run(app, run.id), full=True)).splitlines()
    assert told[0].startswith(run.id)
    assert told[1].startswith("├── step 1")
    assert told[2].startswith("│   ├── attempt 1.1")
    assert told[3:9] == [
        "│   │   sent",
        "│   │     a",
        "│   │     b",
        "│   │   received",
        "│   │     c: d",
        "│   │     e",
    ]
    assert told[9].startswith("│   └── attempt 1.2")
    assert told[10:12] == ["│       sent", "│         a"]
    assert told[-1].startswith("└── step 2")


async def test_a_pipe_gets_every_line_as_long_as_it_is(open_chats: OpenApp, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["x" * 120_000, *(f"data: {number}" for number in range(200))]
    async with open_chats(ScriptedModel(), worker=False) as app:
        run = await record(app, make_attempt(1, response_body="\n".join(lines)))
        await show_run(app.records, run, full=True, as_json=False)
    told = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in told[-len(lines) :]] == lines
    assert all(line == line.rstrip() for line in told)


async def test_json_is_laid_out_and_what_is_none_is_shown_as_it_is(open_chats: OpenApp) -> None:
    async with open_chats(ScriptedModel(), worker=False) as app:
        run = await record(app, make_attempt(1, request_body='{"a": {"é": 1}}', response_body="not JSON {"))
        told = print_out(await draw_whole(app, run, full=False))
    lines = [line.strip(" │└─├") for line in told.splitlines()]
    assert lines[lines.index('"a": {') :][:3] == ['"a": {', '"é": 1', "}"]
    assert "not JSON {" in lines


async def test_an_exchange_without_an_answer_shows_what_was_sent_only(open_chats: OpenApp) -> None:
    async with open_chats(ScriptedModel(), worker=False) as app:
        run = await record(app, make_attempt(1, status_code=None, response_headers=None, response_body=""))
        told = print_out(await draw_whole(app, run, full=False))
    lines = [line.strip(" │└─├") for line in told.splitlines()]
    assert "sent" in lines
    assert "received" not in lines


@pytest.mark.parametrize(("full", "as_json"), [(False, False), (True, False), (False, True)])
async def test_a_long_run_is_printed_in_little_memory(
    open_chats: OpenApp, capfd: pytest.CaptureFixture[str], full: bool, as_json: bool
) -> None:
    body, count = f"data: {'x' * 2000}\n\n" * 25, 42
    async with open_chats(ScriptedModel(), worker=False) as app:
        run = await record(app, *(make_attempt(number, response_body=body) for number in range(1, count + 1)))
        gc.collect()
        tracemalloc.start()
        try:
            await show_run(app.records, run, full=full, as_json=as_json)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    told = capfd.readouterr().out
    assert told.count("data: ") == count * (25 if full or as_json else 1)
    assert count * len(body) > 2 * BOUND_BYTES
    assert peak_bytes < BOUND_BYTES


# --- JSON ---


async def test_json_for_other_programs_is_plain_ascii_and_letter_by_letter_what_was_recorded(
    open_chats: OpenApp,
) -> None:
    odd = HOSTILE + "\x7f é € 😀 \u2028"
    async with open_chats(ScriptedModel(), worker=False) as app:
        records = app.records
        runs = [await record(app, make_attempt(1, response_body=odd), error=odd, status="error") for _ in range(2)]
        for chosen in ([], runs[:1], runs):
            written = b"".join([widget async for widget in write_runs(records, chosen)]).decode()
            told = to_ascii_json(written)
            assert re.fullmatch(r"[\x20-\x7e\n]*", told)
            assert json.loads(told) == json.loads(written)
            assert [run["error"] for run in json.loads(told)] == [odd] * len(chosen)
        whole = to_ascii_json(b"".join([widget async for widget in write_run(records, runs[0])]).decode())
        assert msgspec.json.decode(whole, type=WholeRun) == await load_run(records, runs[0].chat_id, runs[0].id)


# --- foreign text ---


@pytest.mark.parametrize("full", [False, True])
async def test_nothing_in_a_record_is_a_command_to_the_terminal_or_markup(open_chats: OpenApp, full: bool) -> None:
    attempt = make_attempt(
        1,
        status="failed",
        error=HOSTILE,
        method=HOSTILE,
        url=HOSTILE,
        request_headers={HOSTILE: HOSTILE},
        request_body=HOSTILE,
        response_headers={HOSTILE: HOSTILE},
        response_body=HOSTILE,
    )
    async with open_chats(ScriptedModel(), worker=False) as app:
        run = await record(app, attempt, error=HOSTILE, model=HOSTILE, status="error")
        drawn = [draw_runs(HOSTILE, [run]), await draw_whole(app, run, full=full)]
    for shown in drawn:
        told = strip_colours(print_out(shown, colours=True))
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", told)
        assert told.count(HARMLESS) >= 5


def test_nothing_in_a_replay_is_a_command_to_the_terminal_or_markup() -> None:
    blocks: list[Block] = [
        Text(HOSTILE),
        Reasoning(text=HOSTILE),
        ToolCall(HOSTILE, HOSTILE, HOSTILE),
        ToolResult(HOSTILE, HOSTILE, HOSTILE, provider_executed=True),
        Source(id=HOSTILE, url=HOSTILE),
    ]
    replayed = Replayed(blocks=blocks, failure=HOSTILE)
    recording = Recording(wire="openai", provider="openai", model="m", status=200, headers={}, body="")
    told = strip_colours(print_out(draw_replay(HOSTILE, recording, replayed), colours=True))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", told)
    assert told.count(HARMLESS) >= 6


# --- a replay ---


def test_a_replay_shows_blocks_reason_tokens_and_failure() -> None:
    blocks: list[Block] = [
        Reasoning(text="Hm."),
        Text("It rains.\nA lot."),
        ToolCall("c1", "weather", '{"city": "Oslo"}'),
    ]
    recording = Recording(wire="openai", provider="openai", model="m", status=200, headers={}, body="")
    usage = Usage(input_tokens=1200, output_tokens=3)
    well = Replayed(blocks=blocks, reason="tool_calls", usage=usage)
    assert print_out(draw_replay("run_1, attempt 1.2", recording, well)).splitlines() == [
        "replay · completed · run_1, attempt 1.2 · openai",
        "thinking  Hm.",
        "text  It rains.",
        "A lot.",
        'call  weather {"city": "Oslo"}',
        "finish  tool_calls · 1,200 tokens in, 3 out",
    ]
    badly = Replayed(blocks=[], failure="It broke.")
    assert print_out(draw_replay("file.json", recording, badly)).splitlines() == [
        "replay · failed · file.json · openai",
        "failed  It broke.",
    ]


# --- finding ---


@pytest.mark.parametrize(("place", "number"), [(None, 3), ("1.1", 1), ("1.2", 2)])
def test_an_attempt_is_chosen_by_its_place_or_is_the_last(place: str | None, number: int) -> None:
    assert choose_attempt(make_run(*map(make_attempt, (1, 2, 3))), place).number == number


@pytest.mark.parametrize("place", ["2.1", "1.9", "1", "x", "1.1.1", ""])
def test_an_attempt_that_does_not_exist_is_refused_with_those_that_do(place: str) -> None:
    with pytest.raises(NotFound, match=r"Available: 1\.1, 1\.2\."):
        choose_attempt(make_run(*map(make_attempt, (1, 2))), place)


def test_a_run_without_an_exchange_has_nothing_to_replay() -> None:
    with pytest.raises(NotFound, match="run_1 has no attempts"):
        choose_attempt(make_run(), None)


async def test_runs_of_a_chat_are_found_by_its_number_and_one_by_its_own_id(open_chats: OpenApp) -> None:
    async with open_chats(ScriptedModel(), worker=False) as app:
        chat, other = await app.create_chat(title="Rain"), await app.create_chat()
        known: dict[str, Any] = {"chat_id": chat.id, "turn_id": None, "kind": "turn", "worker_id": "w"}
        known |= {"status": "completed", "started_at": NOON, "ended_at": at(1)}
        runs = [RunRecord(id=f"run_{number}", **known) for number in range(3)]
        place: dict[str, Any] = {"chat_id": chat.id, "run_id": runs[0].id, "step": 1}
        step = StepRecord(**place, status="completed", started_at=NOON, ended_at=NOON)
        await app.records.write([*runs, step])
        title, found = await load_runs(app, chat.id, limit=10)
        assert title == f"{chat.id} Rain"
        assert [run.id for run in found] == [run.id for run in runs]
        assert [run.id for run in (await load_runs(app, chat.id, limit=2))[1]] == [run.id for run in runs[1:]]
        assert await load_runs(app, other.id, limit=10) == (other.id, [])
        assert (await find_run(app, runs[0].id)).steps[0].step == 1
        with pytest.raises(NotFound, match="Run 'run_nope' not found"):
            await find_run(app, "run_nope")
