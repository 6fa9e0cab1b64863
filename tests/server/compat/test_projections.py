"""For random turns, each compatible API obeys its rules at every moment, and a replay is what was seen live."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from openai import omit
from openai.lib.streaming.chat._completions import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from tests.server.compat.random_turns import CLIENT_TOOL, RandomTurn, make_event, random_turns
from tests.support.examples import count_examples

from indelible.api.events import FeedEvent
from indelible.server.compat.ai_sdk_messages import UiMessageProjection
from indelible.server.compat.chat_completions import CompletionProjection
from indelible.server.compat.projection import TurnProjection
from indelible.server.compat.responses_projection import ResponseProjection, read_call_id

TOOLS = frozenset({CLIENT_TOOL})
EVENTS: dict[str, Any] = {
    get_args(event.model_fields["type"].annotation)[0]: event for event in get_args(get_args(ResponseStreamEvent)[0])
}
"""Every event that the SDK knows, by its type."""


def make_response() -> ResponseProjection:
    request = {"metadata": {"a": "b"}, "tools": []}
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return ResponseProjection("resp_1", request=request, model="scripted", created_at=at, client_tools=TOOLS)


def make_completion() -> CompletionProjection:
    return CompletionProjection("chatcmpl-1", model="scripted", created_at=1, with_usage=True)


def make_ui_message() -> UiMessageProjection:
    return UiMessageProjection("reply-1", client_tools=TOOLS)


def run(projection: TurnProjection, events: Iterable[FeedEvent]) -> list[bytes]:
    frames = projection.begin()
    for event in events:
        frames += projection.project(event)
    return frames


def read_data(frames: Iterable[bytes]) -> list[Any]:
    """The data of each frame, which is exactly one event."""
    found = []
    for frame in frames:
        assert frame.endswith(b"\n\n")
        *_, data = frame[:-2].split(b"\n")
        assert data.startswith(b"data: ")
        found.append(data[6:].decode() if data == b"data: [DONE]" else json.loads(data[6:]))
    return found


@settings(max_examples=count_examples(25))
@given(turn=random_turns())
def test_every_wire_obeys_its_rules_at_every_moment_and_a_replay_is_what_was_seen_live(turn: RandomTurn) -> None:
    for make, check in WIRES:
        projection = make()
        live = run(projection, turn.events)
        check(turn, projection, live)
        assert run(make(), turn.beside) == live
        half = turn.events[: len(turn.events) // 2]
        seen = run(make(), half)
        assert seen == live[: len(seen)]
        assert projection.is_over
        assert projection.project(turn.events[-1]) == []


@pytest.mark.parametrize(("answered", "is_over"), [(0, "first"), (1, "second"), (2, None)])
def test_waits_that_are_over_do_not_end_a_turn_that_is_read_again_and_the_next_one_does(
    answered: int, is_over: str | None
) -> None:
    events: list[FeedEvent] = []
    for number, call_id in enumerate(("first", "second")):
        events += [
            make_event("attempt", {"attempt": f"attempt_{number}", "model": "scripted"}),
            make_event("action", {"turn": "turn_1", "calls": [{"id": call_id}], "deadline_at": None}),
            make_event("status", {"status": "requires_action", "turn": "turn_1"}),
            make_event("status", {"status": "running", "turn": "turn_1"}),
        ]
    events.append(make_event("status", {"status": "idle", "ended": {"turn": "turn_1", "outcome": "complete"}}))
    projection = UiMessageProjection("reply-1", client_tools=TOOLS, answered=answered)
    run(projection, events)
    assert projection.is_over
    assert projection.outcome == ("complete" if is_over is None else "waiting")
    assert [call["id"] for call in projection.awaited] == ([] if is_over is None else [is_over])


# --- Responses ---


def check_response(turn: RandomTurn, projection: Any, frames: list[bytes]) -> None:
    """The SDK's own accumulator accepts every event."""
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    indexes: list[int] = []
    begun: list[str] = []
    open_items: set[int] = set()
    event: Any = None
    for number, (frame, data) in enumerate(zip(frames, read_data(frames), strict=True)):
        event = EVENTS[data["type"]].model_validate(data)
        assert frame.startswith(f"event: {data['type']}\n".encode())
        assert event.sequence_number == number
        assert (event.type == "response.created") == (number == 0)
        if event.type == "response.output_item.added":
            indexes.append(event.output_index)
            begun.append(event.item.id)
            open_items.add(event.output_index)
        elif hasattr(event, "output_index"):
            assert event.output_index in open_items
        if event.type == "response.output_item.done":
            open_items.remove(event.output_index)
        state.handle_event(event)
    assert indexes == list(range(len(indexes)))
    assert not open_items
    check_end_of_response(turn, event, projection)
    if event.type != "response.completed":  # whatever was begun is in it
        assert [item.id for item in event.response.output] == begun


def check_end_of_response(turn: RandomTurn, last: Any, projection: ResponseProjection) -> None:
    expected = {
        "complete": ("response.completed", "completed"),
        "waiting": ("response.completed", "completed"),
        "interrupted": ("response.incomplete", "cancelled"),
        "edited": ("response.incomplete", "cancelled"),
        "length": ("response.incomplete", "incomplete"),
        "failed": ("response.failed", "failed"),
    }
    assert (last.type, last.response.status) == expected[turn.end]
    assert last.response.output_text == turn.text
    assert Response.model_validate(projection.show()) == last.response
    calls = [read_call_id(item.call_id) for item in last.response.output if item.type == "function_call"]
    if last.type == "response.completed":
        assert calls == (["call_3"] if turn.end == "waiting" else [])


# --- Chat Completions ---


def check_completion(turn: RandomTurn, projection: Any, frames: list[bytes]) -> None:
    """The SDK's own accumulator accepts every chunk."""
    *chunks, last = read_data(frames)
    if turn.end == "failed":
        assert last["error"]["message"] == "The provider is overloaded."
    else:
        assert last == "[DONE]"
    state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
    finished: list[str] = []
    for number, chunk in enumerate(map(ChatCompletionChunk.model_validate, chunks)):
        assert (number == 0) == bool(chunk.choices and chunk.choices[0].delta.role)
        assert not finished or (not chunk.choices and number == len(chunks) - 1)
        finished += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
        state.handle_chunk(chunk)
    message = state.current_completion_snapshot.choices[0].message
    assert (message.content or "") == turn.text
    assert [call.id for call in message.tool_calls or ()] == (["call_3"] if turn.end == "waiting" else [])
    if turn.end != "failed":
        assert finished == [{"waiting": "tool_calls", "length": "length"}.get(turn.end, "stop")]
        assert (projection.show()["choices"][0]["message"]["content"] or "") == turn.text


# --- the AI SDK ---


def check_ui_message(turn: RandomTurn, _projection: Any, frames: list[bytes]) -> None:
    first, *chunks, last, done = read_data(frames)
    assert first == {"type": "start", "messageId": "reply-1"}
    assert done == "[DONE]"
    ends = {"failed": "error", "interrupted": "abort", "edited": "abort"}
    assert last["type"] == ends.get(turn.end, "finish")
    open_parts: set[str] = set()
    used: set[str] = set()
    calls: dict[str, str] = {}
    text = ""
    for chunk in chunks:
        kind, _, what = chunk["type"].rpartition("-")
        if kind in ("text", "reasoning"):
            check_part(what, chunk["id"], open_parts, used)
            text += chunk["delta"] if chunk["type"] == "text-delta" else ""
        elif kind.startswith("tool"):
            check_call(chunk, calls)
    assert text == turn.text
    assert not open_parts
    left = {call_id for call_id, state in calls.items() if state != "settled"}
    assert left == ({"call_3"} if turn.end == "waiting" else set())


def check_part(what: str, id_: str, open_parts: set[str], used: set[str]) -> None:
    if what == "start":
        assert id_ not in used
        open_parts.add(id_)
        used.add(id_)
    else:
        assert id_ in open_parts
    if what == "end":
        open_parts.remove(id_)


def check_call(chunk: dict[str, Any], calls: dict[str, str]) -> None:
    state = calls.get(chunk["toolCallId"], "settled")
    match chunk["type"]:
        case "tool-input-start":
            assert state == "settled"
            calls[chunk["toolCallId"]] = "started"
        case "tool-input-delta":
            assert state == "started"
        case "tool-input-available":
            assert state == "started"
            calls[chunk["toolCallId"]] = "whole"
        case "tool-input-error":
            assert state == "started"
            calls[chunk["toolCallId"]] = "settled"
        case "tool-output-available" | "tool-output-error":
            assert state == "whole"
            calls[chunk["toolCallId"]] = "settled"
        case other:
            raise AssertionError(other)


WIRES: list[tuple[Callable[[], TurnProjection], Callable[[RandomTurn, Any, list[bytes]], None]]] = [
    (make_response, check_response),
    (make_completion, check_completion),
    (make_ui_message, check_ui_message),
]
