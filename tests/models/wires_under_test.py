"""The harness of the wire formats' contract suite: a model as users get it, one turn with it, and scripts of all kinds.

The suite checks the same promises for every wire format (test_contract.py, test_cut_everywhere.py, test_error_rows.py
and test_requests_judged.py). A model comes from the catalog by its name, speaks real HTTP with the simulated provider,
and is driven by the loop, so the whole path from a script to the saved blocks is under test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import msgspec
from hypothesis import strategies as st
from tests.support import loop_harness

from indelible.content import Block, File, Message, Part, Text, ToolInputDelta, ToolSpec, Usage
from indelible.errors import ModelFailed
from indelible.loop import FinishedStep, RetryPolicy, TurnAwaitingClient, TurnCompleted
from indelible.models.catalog import Catalog, make_wire_format
from indelible.models.http.http_model import HttpModel, ResponseReader
from indelible.models.http.sse import SseDecoder
from indelible.models.profile import Profile
from indelible.models.protocol import Call, Model
from indelible.models.retry import RetryEvent
from indelible.settings import load_settings
from indelible.testing import ManualClock, SimulatedProvider, parts
from indelible.testing.provider import WireName
from indelible.testing.provider.faults import Fault

WIRES: Final[tuple[WireName, ...]] = ("anthropic", "openai", "openai-chat")
KEY: Final = "canary-of-the-key"
PROMPT: Final = "canary of the prompt"
LOCAL_TOOLS: Final = ("weather", "clock")
PNG: Final = b"\x89PNG\r\n\x1a\n"

# --- running -----------------------------------------------------------------------------


@asynccontextmanager
async def find_model(wire: WireName, address: str) -> AsyncIterator[HttpModel]:
    """The model `m` at this address, as the catalog makes it, with a key of its own."""
    settings = load_settings(model=f"{wire}:m@{address}", base_urls={address: "KEY_OF_THE_TEST"})
    catalog = Catalog(settings, clock=ManualClock(), environment={"KEY_OF_THE_TEST": KEY})
    model = catalog.find(settings.model)
    assert isinstance(model, HttpModel)
    try:
        yield model
    finally:
        await catalog.aclose()


@asynccontextmanager
async def find_model_at(wire: WireName, provider: SimulatedProvider) -> AsyncIterator[HttpModel]:
    async with find_model(wire, provider.base_url(wire)) as model:
        yield model


class Turn(msgspec.Struct, kw_only=True):
    """The outcome of one turn: a result or a failure."""

    published: list[Part] = []
    steps: list[FinishedStep] = []
    retries: list[RetryEvent] = []
    slept_s: list[float] = []
    result: TurnCompleted | TurnAwaitingClient | None = None
    failure: ModelFailed | None = None

    @property
    def blocks(self) -> list[Block]:
        """All saved blocks, in order."""
        return [block for step in self.steps for block in step.blocks]


async def run_turn(model: Model, *, attempts: int = 1, **more: Any) -> Turn:
    """One step of the loop. Calls of the local tools are left to the client; no time passes in waits."""
    turn = Turn()
    clock = ManualClock(skip_sleeps=True)
    given: dict[str, Any] = {
        "messages": [Message(role="user", blocks=[Text(PROMPT)])],
        "client_tools": LOCAL_TOOLS,
        "max_steps": 1,
        "publish": turn.published.append,
        "retry": RetryPolicy(max_attempts=attempts),
        "chance": lambda: 0.0,
    }
    try:
        turn.result = await loop_harness.run_turn(
            model=model,
            persist_step=turn.steps.append,
            schedule_retry=turn.retries.append,
            clock=clock,
            **(given | more),
        )
    except ModelFailed as failure:
        turn.failure = failure
    turn.slept_s = clock.slept
    return turn


class RepeatingModel:
    """A model that streams its current script on every call."""

    provider = "scripted"
    name = "repeating"
    context_limit = None

    def __init__(self, script: Sequence[Part] = ()) -> None:
        self.script = script

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        for part in self.script:
            yield part


class Stage:
    """A provider that repeats one script, and the model that reads it: cheap to run many times."""

    def __init__(self, provider: SimulatedProvider, model: HttpModel, repeating_model: RepeatingModel) -> None:
        self.provider = provider
        self.model = model
        self.repeating_model = repeating_model

    async def play(self, fault: Fault | None = None, **more: Any) -> Turn:
        """One turn, with this fault in it."""
        self.provider.faults.append(fault)
        return await run_turn(self.model, **more)


@asynccontextmanager
async def open_stage(wire: WireName, script: Sequence[Part] = ()) -> AsyncIterator[Stage]:
    repeating_model = RepeatingModel(script)
    async with SimulatedProvider(repeating_model) as provider, find_model_at(wire, provider) as model:
        yield Stage(provider, model, repeating_model)


class ReaderDriver:
    """The pure half of an adapter, driven as http_model.py drives it: chunk by chunk, and beyond the reply's end."""

    def __init__(self, wire: WireName, profile: Profile | None = None) -> None:
        call = Call(messages=[], tools=[ToolSpec(name=name) for name in LOCAL_TOOLS])
        self.reader: ResponseReader = make_wire_format(wire, official=False).open_reader(call, profile or Profile())
        self.emitted: list[Part] = []
        self._decoder = SseDecoder()

    def feed(self, chunk: bytes) -> None:
        if self.reader.complete:
            for event in self._decoder.feed(chunk):
                self.reader.read(event)
            return
        for event in self._decoder.feed(chunk):
            self.emitted += self.reader.read(event)


# --- scripts -----------------------------------------------------------------------------

USAGE: Final = Usage(
    input_tokens=1000, output_tokens=500, reasoning_tokens=200, cache_read_tokens=600, cache_write_tokens=100
)


def text_parts(id: str, deltas: Sequence[str], *sources: Part) -> list[Part]:
    return [parts.text_start(id), *(parts.text_delta(id, each) for each in deltas), parts.text_end(id), *sources]


def think(id: str, deltas: Sequence[str], signature: str | None) -> list[Part]:
    emitted = [parts.reasoning_delta(id, each) for each in deltas]
    return [parts.reasoning_start(id), *emitted, parts.reasoning_end(id, signature=signature)]


def call(id: str, name: str, pieces: Sequence[str], *, executed: bool = False, result: Any = "") -> list[Part]:
    """A call in pieces and whole; one that the provider executes brings its result."""
    emitted: list[Part] = [ToolInputDelta(id, piece) for piece in pieces]
    whole = parts.tool_call(id, name, "".join(pieces), executed)
    called = [parts.tool_input_start(id, name, executed), *emitted, parts.tool_input_end(id), whole]
    return [*called, parts.tool_result(id, name, result, provider_executed=True)] if executed else called


EVERYTHING: Final[list[Part]] = [
    *think("r", ["Let me ", "", "think: 𝄞."], "finalized"),
    parts.keep_alive(),
    *text_parts(
        "t", ["It ", "", "räins;\n\n", "😀 "], parts.source("s", url="https://rain.test/", title="Rain", quote="räins")
    ),
    *call("own_1", "lookup", ['{"q":', ' "wëather"}'], executed=True, result="wet"),
    File(media_type="image/png", data=PNG),
    *call("call_1", "weather", ['{"city"', ': "Tromsø', '"}']),
    *call("call_2", "clock", ["{}"]),
    parts.finish("tool_calls", usage=USAGE),
]
"""Something of every kind that a model can say."""

_words = st.text(
    st.sampled_from([*"ab <>&\"'\\/{}[]:\n\r\t", "\x00", "\x7f", "é", "\u2028", "\ufeff", "𝄞", "\U0001f600"]),
    max_size=6,
)
_deltas = st.lists(_words, max_size=4)
_sources = st.builds(
    lambda number, quote: parts.source(f"s{number}", url=f"https://x.test/{number}", title="Title", quote=quote),
    st.integers(0, 9),
    st.sampled_from(["a", "é"]),
)
_arguments = st.sampled_from(
    [["{}"], ['{"a"', ": 1}"], ['{"é": "\\u00e9', "𝄞", '"}'], ["", '{"n":{"m":[1,', "2]}}", ""], ['{"cut": ', '"sho']]
)


class OwnTool(NamedTuple):
    """A tool that the provider runs itself."""

    name: str
    arguments: Sequence[str]
    results: st.SearchStrategy[Any]


LOOKUP: Final = OwnTool("lookup", ['{"q":', "1}"], _words.map(lambda found: found or "nothing"))
"""A tool that no provider has: what becomes of it depends on nobody's habits."""


@st.composite
def segments(draw: st.DrawFn, number: int, own_tool: OwnTool) -> list[Part]:
    """One thing that a model says, under ids of its own."""
    match draw(st.sampled_from(["text", "text", "reasoning", "call", "own call", "image", "nothing"])):
        case "text":
            return text_parts(f"t{number}", draw(_deltas), *draw(st.lists(_sources, max_size=2)))
        case "reasoning":
            return think(f"r{number}", draw(_deltas), draw(st.sampled_from([None, f"finalized {number}"])))
        case "call":
            return call(f"call_{number}", draw(st.sampled_from(LOCAL_TOOLS)), draw(_arguments))
        case "own call":
            name, arguments, results = own_tool
            return call(f"own_{number}", name, arguments, executed=True, result=draw(results))
        case "image":
            return [File(media_type="image/png", data=PNG + bytes([number]))]
        case _:
            return [parts.keep_alive()]


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    read, written, fresh = (draw(st.integers(0, 10**6)) for _ in range(3))
    thought, said = draw(st.integers(0, 10**6)), draw(st.integers(0, 10**6))
    return Usage(
        input_tokens=read + written + fresh,
        output_tokens=thought + said,
        reasoning_tokens=thought,
        cache_read_tokens=read,
        cache_write_tokens=written,
    )


@st.composite
def scripts(draw: st.DrawFn, own_tool: OwnTool = LOOKUP) -> list[Part]:
    """A whole reply: anything in any order, and an end that fits it."""
    chosen = [draw(segments(number, own_tool)) for number in range(draw(st.integers(0, 7)))]
    said = [part for segment in chosen for part in segment]
    calls = any(isinstance(part, ToolInputDelta) and part.id.startswith("call_") for part in said)
    reasons = ["tool_calls", "length"] if calls else ["stop", "stop", "length", "content_filter"]
    return [*said, parts.finish(draw(st.sampled_from(reasons)), usage=draw(st.none() | usages()))]
