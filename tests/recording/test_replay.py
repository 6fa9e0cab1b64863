"""What comes out of a replay is what came out when it was recorded, on every wire.

Each exchange is recorded as it happens, between the real adapter and the simulated provider, and then heard again from
the record alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import asdict
from tests.models.wires_under_test import EVERYTHING, WIRES, RepeatingModel, Turn, find_model_at, run_turn, scripts

import indelible
from indelible.api.records import AttemptRecord
from indelible.content import Block, Part, Text, ToolResult, ToolSpec
from indelible.errors import Invalid
from indelible.models.http.hooks import recording as recording_now
from indelible.recording import ExchangeLog, ExchangeRecord
from indelible.recording.replay import Recording, Replayed, ReplayedModel, make_recording, replay
from indelible.redaction.secrets import redact_keys
from indelible.testing import ManualClock, RecordedModel, SimulatedProvider, parts
from indelible.testing.model import Script
from indelible.testing.provider import WireName
from indelible.testing.provider.faults import (
    Chunked,
    Comments,
    ContentType,
    Crlf,
    Cut,
    ErrorEvent,
    Fault,
    HalfCharacter,
    Malformed,
    Status,
)

KEY = "sk-canarycanary"


def to_record(attempt: ExchangeRecord) -> AttemptRecord:
    """The exchange as it is read from a database: what looks like a key is hidden then."""
    known = {name: getattr(attempt, name) for name in AttemptRecord.__struct_fields__ if hasattr(attempt, name)}
    bodies = {"response_body": redact_keys(attempt.response_body)}
    place: dict[str, Any] = {"chat_id": "chat_1", "run_id": "run_1", "step": 1}
    return AttemptRecord(**{**known, **bodies}, **place, head_at=attempt.answered_at)


async def record(wire: WireName, provider: SimulatedProvider, **more: Any) -> tuple[Any, ...]:
    """One turn, and what was recorded of each of its exchanges."""
    log = ExchangeLog()
    async with find_model_at(wire, provider) as model:
        before = recording_now.set(log)
        try:
            turn = await run_turn(model, **more)
        finally:
            recording_now.reset(before)
    name = f"{wire}:m@{provider.base_url(wire)}"
    made = [make_recording(to_record(attempt), model=name) for attempt in log.attempts]
    assert all(each is not None and (each.wire, each.model) == (wire, "m") for each in made)
    return turn, *made


def list_said(blocks: Sequence[Block]) -> list[Any]:
    """What the provider said; when a thought began and ended is the clock's."""
    said = [block for block in blocks if not isinstance(block, ToolResult) or block.provider_executed]
    return [{**asdict(block), "started_at": None, "ended_at": None} for block in said]


def assert_same(replayed: Replayed, turn: Turn) -> None:
    assert list_said(replayed.blocks) == list_said(turn.blocks)
    assert (replayed.failure is None) == (turn.failure is None)
    if turn.failure is None and turn.steps:
        assert (replayed.reason, replayed.usage) == (turn.steps[-1].finish_reason, turn.steps[-1].usage)


@pytest.mark.parametrize("wire", WIRES)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=scripts())
async def test_any_complete_reply_is_the_same_again(wire: WireName, script: list[Part]) -> None:
    async with SimulatedProvider(RepeatingModel(script)) as provider:
        turn, made = await record(wire, provider)
    assert_same(await replay(made), turn)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "fault",
    [
        None,
        Crlf(),
        Comments(),
        Chunked([1, 7, 3]),
        *(Cut(at_byte=at) for at in (0, 1, 300, 700, 1100, 1500)),
        *(Cut(at_byte=at, clean=False) for at in (300, 900)),
        Malformed(after_events=3),
        HalfCharacter(after_events=3),
        ErrorEvent(after_events=4),
        ContentType("application/json"),
        ContentType("text/html"),
        Status(401),
        Status(529),
        Status(500, b"upstream connect error"),
        Status(502, b"<html>Bad gateway</html>", {"content-type": "text/html"}),
    ],
    ids=repr,
)
async def test_a_reply_that_went_wrong_goes_wrong_again_at_the_same_place(wire: WireName, fault: Fault | None) -> None:
    async with SimulatedProvider(RepeatingModel(EVERYTHING), [fault]) as provider:
        turn, made = await record(wire, provider)
    replayed = await replay(made)
    assert_same(replayed, turn)
    is_read_error = isinstance(fault, Cut) and not fault.clean
    is_unreadable = made.body.startswith("[not a JSON document")
    if turn.failure is not None and not is_read_error and not is_unreadable:
        assert (replayed.failure or "").startswith(turn.failure.message)
        assert (turn.failure.detail or "") in (replayed.failure or "")


@pytest.mark.parametrize("wire", WIRES)
async def test_a_reply_with_a_secret_in_it_is_the_same_but_for_that(wire: WireName) -> None:
    said: Script = [
        parts.text_delta("t", f"The key is {KEY}, keep it. "),
        parts.text_delta("t", "Nothing else is hidden."),
        parts.tool_call("call_1", "weather", json.dumps({"city": "Oslo", "api_key": "canary"})),
        parts.finish("tool_calls"),
    ]
    async with SimulatedProvider([said]) as provider:
        turn, made = await record(wire, provider)
    replayed = await replay(made)
    assert "canary" not in made.body
    assert KEY in repr(turn.blocks)
    assert "canary" not in repr(replayed)
    first, second = replayed.blocks[:2]
    assert isinstance(first, Text)
    assert first.text == "The key is [redacted], keep it. Nothing else is hidden."
    assert getattr(second, "name", None) == "weather"
    assert (replayed.reason, replayed.failure) == ("tool_calls", None)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_reply_whose_middle_is_missing_ends_there(wire: WireName) -> None:
    words = [f"word{number} " for number in range(6000)]
    said: list[Part] = [parts.text_delta("t", word) for word in words]
    async with SimulatedProvider(RepeatingModel([*said, parts.finish()])) as provider:
        turn, made = await record(wire, provider)
    assert turn.failure is None
    replayed = await replay(made)
    (block,) = replayed.blocks
    assert isinstance(block, Text)
    assert 100 < len(block.text.split()) < 6000
    assert "".join(words).startswith(block.text)
    assert replayed.failure is not None


async def test_of_a_reply_that_paused_each_exchange_is_replayed_alone() -> None:
    search = ToolSpec(name="search", provider_executed=True, options={"type": "web_search_1", "name": "search"})
    paused: Script = [parts.text_delta("t", "Wait"), parts.finish("stop", metadata={"stop_reason": "pause_turn"})]
    whole: Script = [parts.text_delta("t", " for it."), parts.finish()]
    async with SimulatedProvider([paused, whole]) as provider:
        turn, *made = await record("anthropic", provider, tools=[search])
    assert turn.failure is None
    replayed = [await replay(each) for each in made]
    assert [each.blocks for each in replayed] == [[Text("Wait")], [Text(" for it.")]]
    assert [each.failure for each in replayed] == [None, None]


# --- what can be replayed ---


def make_record(**fields: Any) -> AttemptRecord:
    now = ManualClock().now()
    known: dict[str, Any] = {"chat_id": "chat_1", "run_id": "run_1", "step": 1, "number": 1}
    known |= {"status": "completed", "method": "POST", "url": "https://host/v1/messages", "status_code": 200}
    return AttemptRecord(**{**known, "started_at": now, "ended_at": now, **fields})


@pytest.mark.parametrize(
    ("url", "wire"),
    [
        ("https://host/v1/messages", "anthropic"),
        ("https://host/openai/v1/responses", "openai"),
        ("http://localhost:11434/v1/chat/completions", "openai-chat"),
        ("https://[redacted]@host/v1/messages?key=[redacted]", "anthropic"),
        ("https://[redacted]:[redacted]@[redacted]:80/v1/responses#[redacted]", "openai"),
        ("https://host/v1/models", None),
        ("https://host/v1/models?of=/messages", None),
        ("", None),
    ],
)
def test_the_wire_is_known_by_its_address(url: str, wire: str | None) -> None:
    made = make_recording(make_record(url=url), model="groq:llama@http://host")
    assert (made and made.wire) == wire
    assert made is None or made.model == "llama"


def test_a_compatible_provider_is_known_by_its_host_and_never_by_its_user() -> None:
    where = "http://[redacted]@localhost:11434/v1"
    made = make_recording(make_record(url=f"{where}/chat/completions"), model=f"openai-chat:llama@{where}")
    assert made is not None
    assert (made.provider, made.model) == ("localhost:11434", "llama")


def test_an_exchange_without_an_answer_can_not_be_replayed() -> None:
    assert make_recording(make_record(status_code=None), model=None) is None


# --- as a file ---


async def test_a_saved_recording_is_a_model_for_tests(tmp_path: Path) -> None:
    path = tmp_path / "strange.json"
    said: Script = [parts.text_delta("t", "Strange."), parts.finish()]
    async with SimulatedProvider([said]) as provider:
        _, made = await record("openai", provider)
    made.save(path)
    assert Recording.load(path) == made
    assert path.read_text().endswith("}\n")
    async with indelible.open(tmp_path / "chats.db", model=RecordedModel(path)) as app:
        chat = await app.create_chat()
        for _ in range(2):
            assert (await chat.send("Well?")).text == "Strange."


async def test_two_that_listen_at_once_both_hear_all_of_it() -> None:
    async with SimulatedProvider([[parts.text_delta("t", "All of it."), parts.finish()]]) as provider:
        _, made = await record("anthropic", provider)
    model = ReplayedModel(made)
    turns = await asyncio.gather(*(run_turn(model) for _ in range(2)))
    assert [turn.blocks for turn in turns] == [[Text("All of it.")]] * 2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read"),
        ("{}", "is not a recording"),
        ("not JSON", "is not a recording"),
        ("[1]", "is not a recording"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_with_the_reason(
    tmp_path: Path, content: str | None, expected: str
) -> None:
    path = tmp_path / "strange.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(Invalid, match=expected):
        RecordedModel(path)


def test_a_recording_that_cannot_be_saved_is_reported(tmp_path: Path) -> None:
    made = make_recording(make_record(), model=None)
    assert made is not None
    with pytest.raises(Invalid, match="cannot be written"):
        made.save(tmp_path / "nowhere" / "strange.json")
