"""One contract for all wire formats: the same script gives the same blocks in each of them.

A script goes from the simulated provider over real HTTP through an adapter and the loop. The saved blocks are compared
with those that the loop saves when it gets the script directly. What a format cannot express is data: `LOSSES` lists,
per format, what becomes of it, and everything else has to arrive.

Broken streams are in test_cut_everywhere.py, errors in test_error_rows.py, requests in test_requests_judged.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any, Final, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.models.wires_under_test import (
    EVERYTHING,
    KEY,
    USAGE,
    WIRES,
    Turn,
    call,
    find_model,
    find_model_at,
    open_stage,
    run_turn,
    scripts,
    text_parts,
    think,
)
from tests.server.forwarder import Forwarder
from tests.support.examples import count_examples

from indelible.clock import SystemClock
from indelible.content import (
    Block,
    File,
    Finish,
    FinishReason,
    Part,
    Reasoning,
    ReasoningDelta,
    Source,
    StreamError,
    StreamWarning,
    Text,
    TextDelta,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolProgress,
    ToolResult,
    ToolSpec,
    ToolStarted,
    Usage,
    has_visible,
)
from indelible.content.parts import merge_deltas
from indelible.errors import Interrupted
from indelible.loop import CancelScope, FinishedStep
from indelible.models.catalog import make_wire_format
from indelible.models.http.client import Http
from indelible.models.http.http_model import HttpModel
from indelible.models.profile import find_profile
from indelible.models.protocol import Call, CallOptions, PromptMessage
from indelible.testing import ScriptedModel, SimulatedProvider, faults, parts
from indelible.testing.provider import WireName
from indelible.testing.provider.faults import Fault

PATIENCE_S: Final = 100.0


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


# --- what a wire has no words for --------------------------------------------------------

Loss = Callable[[list[Block]], list[Block]]


def leave_out_images(blocks: list[Block]) -> list[Block]:
    return [block for block in blocks if not isinstance(block, File)]


def leave_out_own_calls(blocks: list[Block]) -> list[Block]:
    """The provider's own tools have no place in Chat Completions."""
    return [block for block in blocks if not getattr(block, "provider_executed", False)]


def forget_quotes(blocks: list[Block]) -> list[Block]:
    """An annotation says where in the reply it stands, and not what it quotes."""
    return [replace(block, quote=None) if isinstance(block, Source) else block for block in blocks]


def forget_signatures(blocks: list[Block]) -> list[Block]:
    unsigned = [replace(block, signature=None) if isinstance(block, Reasoning) else block for block in blocks]
    return [block for block in unsigned if not isinstance(block, Reasoning) or block.text]


def make_images_by_a_call(blocks: list[Block]) -> list[Block]:
    """OpenAI's images come out of a tool of its own."""
    drawn = ToolCall("", "image_generation", "{}", provider_executed=True, standalone=True)
    made: list[Block] = []
    for block in blocks:
        made += [drawn, replace(block, name="image.png")] if isinstance(block, File) else [block]
    return made


def join_neighbours(blocks: list[Block]) -> list[Block]:
    """Blocks have no beginning and no end there: what is said goes on until something else than a source comes."""
    joined: list[Block] = []
    open_at: int | None = None
    for block in blocks:
        match block, joined[open_at] if open_at is not None else None:
            case (Text(), Text() as last) | (Reasoning(), Reasoning() as last) if open_at is not None:
                joined[open_at] = replace(last, text=last.text + block.text)
                continue
            case Text() | Reasoning(), _:
                open_at = len(joined)
            case ToolCall(), _:
                open_at = None
        joined.append(block)
    return joined


LOSSES: Final[dict[WireName, tuple[Loss, ...]]] = {
    "anthropic": (leave_out_images,),
    "openai": (forget_quotes, make_images_by_a_call),
    "openai-chat": (leave_out_own_calls, forget_signatures, join_neighbours),
}


def strip_private(blocks: list[Block]) -> Iterator[Block]:
    """Blocks without what only their provider understands: metadata, the ids of sources and of drawn images."""
    for block in blocks:
        match block:
            case Text():
                if block.text:
                    yield replace(block, metadata=None)
            case Reasoning():
                finalized = (block.metadata or {}).get("encrypted_content")
                yield replace(block, signature=block.signature or finalized, metadata=None)
            case Source():
                yield replace(block, id="", metadata=None)
            case ToolCall(name="image_generation"):
                yield replace(block, id="", metadata=None)
            case _:
                yield replace(block, metadata=None)


async def run_directly(script: list[Part], model: HttpModel) -> Turn:
    """The turn as it is without a wire."""
    return await run_turn(ScriptedModel([script], provider=model.provider))


async def assert_same(script: list[Part], model: HttpModel, wire: WireName) -> Turn:
    """The script has to give over the wire what it gives without one, but for what the wire can not express."""
    expected, emitted = await run_directly(script, model), await run_turn(model)
    blocks = expected.blocks
    for lose in LOSSES[wire]:
        blocks = lose(blocks)
    assert list(strip_private(emitted.blocks)) == list(strip_private(blocks))
    if (bool(blocks), has_visible(blocks)) == (bool(expected.blocks), has_visible(expected.blocks)):
        assert list(map(describe_end, emitted.steps)) == list(map(describe_end, expected.steps))
        assert getattr(emitted.failure, "kind", None) == getattr(expected.failure, "kind", None)
    return emitted


def describe_end(step: FinishedStep) -> tuple[Any, ...]:
    return step.finish_reason, step.usage or Usage(), step.partial, step.reason, step.awaiting and len(step.awaiting)


# --- same script, same blocks ------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
async def test_every_kind_of_part_arrives_however_it_is_cut_into_chunks(wire: WireName) -> None:
    async with open_stage(wire, EVERYTHING) as stage:
        for fault in (None, faults.Chunked([1]), faults.Chunked([7, 1, 4096]), faults.Crlf(), faults.Comments()):
            stage.provider.faults.append(fault)
            turn = await assert_same(EVERYTHING, stage.model, wire)
            assert [type(block) for block in turn.blocks[:3]] == [Reasoning, Text, Source], fault
            assert turn.result is not None
            assert turn.result.reason == "client_tools"


_faults = st.one_of(
    st.none(),
    st.builds(faults.Chunked, st.lists(st.integers(1, 300), min_size=1, max_size=3)),
    st.builds(faults.Crlf),
    st.builds(faults.Comments),
)


@pytest.mark.parametrize("wire", WIRES)
def test_any_script_gives_the_same_blocks_over_every_wire(wire: WireName) -> None:
    """One provider and one model serve all examples, and so do their connections."""
    with asyncio.Runner() as runner:
        opening = open_stage(wire)
        stage = runner.run(opening.__aenter__())

        @settings(max_examples=count_examples(12))
        @given(scripts(), _faults)
        @example([parts.finish("stop")], None)
        def try_script(script: list[Part], fault: Fault | None) -> None:
            stage.repeating_model.script = script
            stage.provider.faults.append(fault)
            runner.run(assert_same(script, stage.model, wire))

        try:
            try_script()
        finally:
            runner.run(opening.__aexit__(None, None, None))


HALVES: Final[dict[str, list[Part]]] = {
    "text": text_parts("t", ["a\ud83d", "\ude00b"]),
    "reasoning": think("r", ["a\ud83d", "\ude00b"], None),
    "arguments": call("call_1", "weather", ['{"a":"\ud83d', '\ude00"}']),
    "a half that stays alone": text_parts("t", ["a\ud83d", "b"]),
}


@pytest.mark.parametrize("wire", WIRES)
async def test_halves_of_a_character_that_come_apart_are_joined(wire: WireName) -> None:
    async with open_stage(wire) as stage:
        for place, said in HALVES.items():
            stage.repeating_model.script = script = [
                *said,
                parts.finish("tool_calls" if place == "arguments" else "stop"),
            ]
            turn = await assert_same(script, stage.model, wire)
            assert turn.failure is None, place


@pytest.mark.parametrize("wire", WIRES)
async def test_calls_whose_pieces_are_mixed_stay_distinct(wire: WireName) -> None:
    script: list[Part] = [
        parts.tool_input_start("call_1", "weather"),
        parts.tool_input_delta("call_1", '{"city":'),
        parts.tool_input_start("call_2", "clock"),
        parts.tool_input_delta("call_2", '{"zone":'),
        parts.tool_input_delta("call_1", '"Oslo"}'),
        parts.tool_input_delta("call_2", '"CET"}'),
        parts.tool_call("call_1", "weather", '{"city":"Oslo"}'),
        parts.tool_call("call_2", "clock", '{"zone":"CET"}'),
        parts.finish("tool_calls", usage=USAGE),
    ]
    async with SimulatedProvider([script]) as provider, find_model_at(wire, provider) as model:
        await assert_same(script, model, wire)


# --- every kind of part ------------------------------------------------------------------

NOT_FROM_A_MODEL: Final = frozenset({ToolStarted, ToolProgress, StreamError})
"""Parts that the loop makes, or that an adapter raises instead."""

NOT_ON_THE_WIRE: Final[dict[WireName, frozenset[type]]] = {
    "anthropic": frozenset(),
    "openai": frozenset(),
    "openai-chat": frozenset({ToolResult}),
}
UPLOADED: Final = File(media_type="application/octet-stream", file_id="file_1")
"""What a file is on the Anthropic wire: a name in the provider's container."""


async def listen(model: HttpModel, asked: Call) -> list[Part]:
    """What the adapter yields, before the loop sees it."""
    async with aclosing(model.stream(asked)) as stream:  # type: ignore[type-var]
        return [part async for part in stream]


def ask(**parameters: Any) -> Call:
    messages = [PromptMessage(role="user", blocks=[Text("Hello")])]
    return Call(messages=messages, options=CallOptions(parameters=parameters))


@pytest.mark.parametrize("wire", WIRES)
async def test_every_kind_of_part_is_sent(wire: WireName) -> None:
    script = [parts.usage(USAGE), UPLOADED, *EVERYTHING]
    async with SimulatedProvider([script]) as provider, find_model_at(wire, provider) as model:
        emitted = await listen(model, ask(nonsense=1))
    kinds = set(get_args(Part)) - NOT_FROM_A_MODEL - NOT_ON_THE_WIRE[wire]
    assert {type(part) for part in emitted} == kinds
    assert isinstance(emitted[0], StreamWarning)
    assert isinstance(emitted[-1], Finish)


@pytest.mark.parametrize("wire", WIRES)
async def test_arguments_arrive_as_deltas_and_whole(wire: WireName) -> None:
    script = [*call("call_1", "weather", ['{"city"', ': "Oslo"}']), *call("call_2", "clock", []), parts.finish()]
    async with SimulatedProvider([script]) as provider, find_model_at(wire, provider) as model:
        emitted = await listen(model, ask())
    for id_, name, arguments, deltas in (
        ("call_1", "weather", '{"city": "Oslo"}', ['{"city"', ': "Oslo"}']),
        ("call_2", "clock", "{}", None),
    ):
        about = [part for part in emitted if getattr(part, "id", None) == id_]
        assert about[0] == ToolInputStart(id_, name)
        assert about[-2] == ToolInputEnd(id_)
        assert replace(about[-1], metadata=None) == ToolCall(id_, name, arguments)
        if deltas is not None:
            assert merge_deltas(about[1:-2]) == [ToolInputDelta(id_, "".join(deltas))]


@pytest.mark.parametrize("wire", WIRES)
async def test_every_piece_is_sent_when_it_comes_and_nothing_waits_for_the_end(wire: WireName) -> None:
    """The stream stands still after its first words, and they are there."""
    script = [*think("r", ["hm"], None), *text_parts("t", ["one"])[:2], parts.hang()]
    async with SimulatedProvider([script]) as provider, find_model_at(wire, provider) as model:
        stream = model.stream(ask())
        seen: list[Part] = []
        async with asyncio.timeout(PATIENCE_S):
            async for part in stream:
                seen.append(part)
                if isinstance(part, TextDelta):
                    break
        await stream.aclose()  # type: ignore[attr-defined]
        await asyncio.wait_for(provider.wait_for_drops(1), PATIENCE_S)
    assert [part.delta for part in seen if isinstance(part, TextDelta | ReasoningDelta)] == ["hm", "one"]


# --- usage, cost, and the end ------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
async def test_finish_reasons_arrive(wire: WireName) -> None:
    reasons: list[FinishReason] = ["stop", "length", "content_filter"]
    async with open_stage(wire) as stage:
        for reason in reasons:
            stage.repeating_model.script = script = [*text_parts("t", ["Hello."]), parts.finish(reason, usage=USAGE)]
            turn = await assert_same(script, stage.model, wire)
            assert turn.result is not None
            assert (turn.result.reason, turn.result.usage) == (reason, USAGE)


PRICED: Final[dict[WireName, tuple[str, str, int]]] = {
    # What USAGE costs in billionths of a dollar: fresh input, read from the cache, written to it, output.
    "anthropic": ("anthropic", "claude-sonnet-4-5", 300 * 3000 + 600 * 300 + 100 * 3750 + 500 * 15_000),
    "openai": ("openai", "gpt-5", 400 * 1250 + 600 * 125 + 500 * 10_000),
    "openai-chat": ("openai", "gpt-4o", 400 * 2500 + 600 * 1250 + 500 * 10_000),
}


@pytest.mark.parametrize("wire", WIRES)
async def test_usage_and_cost_are_right_for_cached_and_reasoning_tokens(wire: WireName) -> None:
    provider_id, name, cost = PRICED[wire]
    usage = USAGE if wire == "anthropic" else replace(USAGE, cache_write_tokens=0)
    script = [*text_parts("t", ["Hello."]), parts.finish("stop", usage=usage)]
    async with SimulatedProvider([script]) as provider, Http() as http:
        model = HttpModel(
            make_wire_format(wire, official=True),
            provider=wire,
            name=name,
            base_url=provider.base_url(wire),
            headers={},
            profile=find_profile(wire, name, provider_id=provider_id),
            http=http,
            clock=SystemClock(),
        )
        turn = await run_turn(model)
    [step] = turn.steps
    assert step.usage == usage
    assert model.traits.price is not None
    assert model.traits.price(step.usage) == cost


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stored_reply_tells_its_id_where_there_is_one(wire: WireName) -> None:
    script = [*text_parts("t", ["Hello."]), parts.finish("stop", response_id="resp_1")]
    async with SimulatedProvider([script]) as provider, find_model_at(wire, provider) as model:
        turn = await run_turn(model, call=CallOptions(store=True))
    assert turn.steps[0].provider_response_id == ("resp_1" if wire == "openai" else None)


@pytest.mark.parametrize("wire", WIRES)
async def test_thinking_inside_the_text_is_looked_for_only_where_models_do_that(wire: WireName) -> None:
    script = [*text_parts("t", ["<thi", "nk>hm</think>", "\nYes."]), parts.finish("stop")]
    async with SimulatedProvider([script]) as provider, find_model_at(wire, provider) as model:
        turn = await run_turn(model)
    said = [block.text for block in turn.blocks if isinstance(block, Text)]
    thought = [block.text for block in turn.blocks if isinstance(block, Reasoning)]
    assert (thought, said) == ((["hm"], ["Yes."]) if wire == "openai-chat" else ([], ["<think>hm</think>\nYes."]))


async def test_a_paused_reply_is_taken_up_and_is_one_reply() -> None:
    """Anthropic's `pause_turn`: asked again with what was said, and usage adds up."""
    begun = [
        *text_parts("t", ["Looking. "]),
        *call("own_1", "lookup", ["{}"], executed=True, result="wet"),
        parts.finish("stop", usage=USAGE, metadata={"stop_reason": "pause_turn"}),
    ]
    rest = [*text_parts("t", ["It is wet."]), parts.finish("stop", usage=USAGE)]
    lookup = ToolSpec(name="lookup", provider_executed=True, options={"type": "lookup_1", "name": "lookup"})
    async with SimulatedProvider([begun, rest]) as provider, find_model_at("anthropic", provider) as model:
        turn = await run_turn(model, tools=[lookup])
    assert [type(block) for block in turn.blocks] == [Text, ToolCall, ToolResult, Text]
    assert turn.result is not None
    assert (turn.result.reason, turn.result.usage) == ("stop", USAGE + USAGE)
    assert len(provider.requests) == 2
    body = provider.requests[1].body
    assert body is not None
    assert [message["role"] for message in body["messages"]] == ["user", "assistant"]


# --- stopping, and going on --------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("where", ["in the text", "in the middle of an event", "before the head"])
async def test_a_stop_reaches_the_provider(wire: WireName, where: str) -> None:
    script = [*text_parts("t", ["Hello "])[:2], parts.hang()]
    stops: dict[str, Fault] = {"in the middle of an event": faults.Stall(at_byte=30), "before the head": faults.Hang()}
    scope = CancelScope()
    begun = asyncio.Event()

    def feed(part: Part) -> None:
        if isinstance(part, TextDelta):
            begun.set()

    async with SimulatedProvider([script], [stops.get(where)]) as provider, find_model_at(wire, provider) as model:
        turn = asyncio.create_task(run_turn(model, scope=scope, publish=feed))
        if where == "in the text":
            await asyncio.wait_for(begun.wait(), PATIENCE_S)
        else:
            await asyncio.wait_for(provider.wait_for_requests(1), PATIENCE_S)
        assert provider.drops == 0
        scope.interrupt()
        with pytest.raises(Interrupted):
            await asyncio.wait_for(turn, PATIENCE_S)
        await asyncio.wait_for(provider.wait_for_drops(1), PATIENCE_S)
        assert provider.open_streams == 0


@pytest.mark.parametrize("wire", WIRES)
async def test_a_connection_is_used_again_for_the_next_step(wire: WireName) -> None:
    steps = [
        [*call("call_1", "double", ['{"number": 21}']), parts.finish("tool_calls", usage=USAGE)],
        [*call("call_2", "double", ['{"number": 42}']), parts.finish("tool_calls", usage=USAGE)],
        [*text_parts("t", ["It is 84."]), parts.finish("stop", usage=USAGE)],
    ]

    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    in_crumbs = [faults.Chunked([1])] * 3  # so that the end of a body is not there yet when the reply is complete
    async with SimulatedProvider(steps, in_crumbs) as provider, Forwarder([provider.url]).listening() as forwarder:
        address = provider.base_url(wire).replace(provider.url, forwarder.url)
        async with find_model(wire, address) as model:
            turn = await run_turn(model, tools=[double], client_tools=(), max_steps=5)
    assert [block.output for block in turn.blocks if isinstance(block, ToolResult)] == ["42", "84"]
    assert (len(provider.requests), forwarder.connections) == (3, 1)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_key_goes_where_it_belongs_and_the_request_names_the_model(wire: WireName) -> None:
    script = [*text_parts("t", ["Hello."]), parts.finish("stop")]
    async with (
        SimulatedProvider([script], require_key=KEY) as provider,
        find_model_at(wire, provider) as model,
    ):
        turn = await run_turn(model)
    assert turn.failure is None
    [request] = provider.requests
    assert request.wire == wire
    assert request.body is not None
    assert (request.body["model"], request.body["stream"]) == ("m", True)
