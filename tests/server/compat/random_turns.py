"""Random turns as a feed tells them: steps, tools, retries, crashes, stops and failures, in rows of any size.

A turn is built as the store would: an `attempt` event, rows of parts, exactly one event that ends the attempt, and
after that what the same transaction wrote. Between them stand events of other things, wherever they may: a reader may
meet them in another order than the next reader does.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from hypothesis import strategies as st

from indelible.api.events import EventBody, EventKind, FeedEvent
from indelible.content import Part, TextDelta, encode
from indelible.testing import parts

CLIENT_TOOL = "ask"
OWN_TOOL = "weather"
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_ENDS = ["complete", "waiting", "interrupted", "failed", "edited", "length"]
_EXTRAS: list[tuple[EventKind, dict[str, Any]]] = [
    ("queue", {"ids": [], "queue": []}),
    ("chat", {"title": "Rain"}),
    ("status", {"status": "pending", "turn": "turn_1"}),
    ("status", {"status": "interrupting", "turn": "turn_1"}),
]


class RandomTurn(NamedTuple):
    """`beside` is the same turn with other events between; `text` is what it says."""

    events: list[FeedEvent]
    beside: list[FeedEvent]
    text: str
    end: str


def make_event(kind: EventKind, data: dict[str, Any]) -> FeedEvent:
    return FeedEvent(kind, None, EventBody(encode(data)))


@st.composite
def text_parts(draw: st.DrawFn, id_: str) -> list[Part]:
    texts = draw(st.lists(_TEXTS, max_size=3))
    source: list[Part] = [parts.source("s", url="https://example.org/")] if draw(st.booleans()) else []
    has_start = draw(st.booleans())
    if draw(st.booleans()):
        said: list[Part] = [parts.text_start(id_), *(parts.text_delta(id_, text) for text in texts)]
        return [*said[0 if has_start else 1 :], *source, parts.text_end(id_)]
    thought: list[Part] = [parts.reasoning_start(id_), *(parts.reasoning_delta(id_, text) for text in texts)]
    return [*thought[0 if has_start else 1 :], *source, parts.reasoning_end(id_)]


@st.composite
def call_parts(draw: st.DrawFn, call_id: str, name: str) -> list[Part]:
    pieces = draw(st.lists(st.sampled_from(["{", '"a"', ":1", "}"]), max_size=4))
    whole: list[Part] = [parts.tool_call(call_id, name, "".join(pieces))]
    if not draw(st.booleans()):
        return whole
    deltas: list[Part] = [parts.tool_input_delta(call_id, piece) for piece in pieces]
    begun: list[Part] = [parts.tool_input_start(call_id, name), *deltas]
    if not draw(st.booleans()):
        return [*begun, *whole]
    return [*begun, parts.tool_input_end(call_id), *(whole if draw(st.booleans()) else [])]


@st.composite
def stream_parts(draw: st.DrawFn, *, asks: bool) -> tuple[list[Part], list[str], list[str]]:
    """The parts of one whole attempt, the client's calls and the server's own."""
    made: list[Part] = []
    for number in range(draw(st.integers(0, 3))):
        made += draw(text_parts(f"t{number}"))
    own = draw(st.lists(st.sampled_from(["call_1", "call_2"]), unique=True, max_size=2))
    asked = ["call_3"] if asks else []
    for call_id in own:
        made += draw(call_parts(call_id, OWN_TOOL))
    for call_id in asked:
        made += draw(call_parts(call_id, CLIENT_TOOL))
    made.append(parts.finish("tool_calls" if own or asked else "stop"))
    for call_id in own:
        made.append(parts.tool_result(call_id, OWN_TOOL, draw(_TEXTS), is_error=draw(st.booleans())))
    return made, asked, own


class _Builder:
    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.events: list[FeedEvent] = []
        self.text = ""
        self.number = 0

    def add(self, kind: EventKind, /, **data: Any) -> None:
        self.events.append(make_event(kind, data))

    def open_attempt(self, stream: list[Part]) -> dict[str, Any]:
        self.number += 1
        attempt = f"attempt_{self.number:026d}"
        self.add("attempt", attempt=attempt, step=1, number=self.number, model="scripted")
        left, n = stream, 0
        while left:
            size = self.draw(st.integers(1, len(left)))
            n += 1
            self.add("part", attempt=attempt, n=n, parts=left[:size])
            left = left[size:]
        self.text += "".join(part.delta for part in stream if isinstance(part, TextDelta))
        return {"attempt": attempt, "last_n": n}

    def add_message(self, role: str, blocks: list[Any], *, reason: str | None = None, **ended: Any) -> None:
        message = {
            "id": f"message_{len(self.events)}",
            "role": role,
            "blocks": blocks,
            "partial": reason is not None,
            "reason": reason,
            "usage": self.draw(st.sampled_from([None, {"input_tokens": 1, "output_tokens": 2}])),
            "created_at": datetime(2026, 1, 1, tzinfo=UTC),
        }
        self.add("message", message=message, **{"attempt": None, "last_n": None, "queued": None, **ended})

    def add_results(self, call_ids: list[str]) -> None:
        results = [parts.tool_result(call_id, "", "Not run.", is_error=True) for call_id in call_ids]
        self.add_message("tool", results)


@st.composite
def random_turns(draw: st.DrawFn) -> RandomTurn:
    build = _Builder(draw)
    end = draw(st.sampled_from(_ENDS))
    for _ in range(draw(st.integers(0, 3))):
        _add_unfinished(build)
    _add_last(build, end)
    beside = list(build.events)
    for _ in range(draw(st.integers(0, 4))):
        kind, data = draw(st.sampled_from(_EXTRAS))
        beside.insert(draw(st.integers(0, len(beside) - 1)), make_event(kind, data))
    return RandomTurn(build.events, beside, build.text, end)


def _add_unfinished(build: _Builder) -> None:
    """An attempt that another follows: retried, crashed, or a step with results."""
    how = build.draw(st.sampled_from(["reset", "retry", "crashed", "step"]))
    stream, asked, own = build.draw(stream_parts(asks=how == "crashed"))
    if how in ("reset", "retry"):
        thought: list[Part] = [parts.reasoning_start("r"), parts.reasoning_delta("r", "Hm")]
        ended = build.open_attempt(thought[: build.draw(st.integers(0, 2))])
        build.add("reset" if how == "reset" else "retry", **ended)
        return
    cut = stream[: build.draw(st.integers(0, len(stream) - 1))] if how == "crashed" else stream
    ended = build.open_attempt(cut)
    build.add_message("assistant", [], reason="crashed" if how == "crashed" else None, **ended)
    build.add_results([*asked, *own])


def _add_last(build: _Builder, end: str) -> None:
    stream, asked, own = build.draw(stream_parts(asks=end == "waiting"))
    is_cut = end in ("interrupted", "failed", "edited")
    cut = stream[: build.draw(st.integers(0, len(stream)))] if is_cut else stream
    ended = build.open_attempt(cut)
    reason = {"interrupted": "interrupted", "failed": "failed", "edited": "edited", "length": "length"}.get(end)
    build.add_message("assistant", [], reason=reason, **ended)
    if end == "waiting":
        calls = [parts.tool_call(call_id, CLIENT_TOOL, "{}") for call_id in asked]
        build.add("action", turn="turn_1", calls=calls, deadline_at=None)
        build.add("status", status="requires_action", turn="turn_1")
        return
    build.add_results([*asked, *own])
    if end == "failed":
        build.add("error", kind="overloaded", message="The provider is overloaded.")
    outcome = "complete" if end == "length" else end
    build.add("status", status="idle", turn=None, ended={"turn": "turn_1", "outcome": outcome})
