"""A stream that is cut at any byte is complete or truncated, never a silent success (rule 1.2).

Every byte is tried on the pure half of an adapter (decoder and reader, driven as models/http/http_model.py drives
them): the parts before the cut are a prefix of the whole, and a reply is complete only if all of its content has
arrived. The same walk feeds the rest after the cut, so it also shows that no split into two chunks changes anything. A
sample of the bytes is tried over real HTTP and through the loop, with a body that ends as if it were complete and with
a closed connection: the loop classifies it as `timeout`, retries, and runs no half-received call.

In the middle of a line one ASCII letter is like the next, so `make test` leaves most of those out; `make nightly` takes
every byte, and every byte of the sample in both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

import pytest
from msgspec.structs import replace
from tests.models.wires_under_test import (
    EVERYTHING,
    USAGE,
    WIRES,
    ReaderDriver,
    call,
    find_model_at,
    run_turn,
    text_parts,
)
from tests.support.examples import is_thorough

from indelible.content import Block, Finish, Part, ReasoningDelta, TextDelta, ToolInputDelta, ToolSpec, encode
from indelible.content.assemble import assemble
from indelible.testing import SimulatedProvider, faults, parts, write_reply
from indelible.testing.provider import WireName

TELLS_USAGE_LAST: Final = frozenset({"openai-chat"})
"""Wires that tell usage only after they have said that the reply is whole: a cut between the two loses the count."""


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


# --- every byte --------------------------------------------------------------------------


LINE_BEGINS: Final = 8
"""Letters at the beginning of a line that may be the name of a field, its colon and the blank after it."""


def choose_bytes(body: bytes) -> list[int]:
    """Where to cut: around the ends of lines, their beginnings, escapes and characters of several bytes.

    Also at every 64th byte, which is somewhere else in every event.
    """
    if is_thorough():
        return list(range(len(body) + 1))
    special = [at for at, byte in enumerate(body) if byte in b"\r\n\\" or byte >= 0x80]
    begins = [0, *(at + 1 for at, byte in enumerate(body) if byte in b"\n")]
    near = {at + offset for at in special for offset in (0, 1)}
    near |= {at + offset for at in begins for offset in range(LINE_BEGINS)}
    return sorted(at for at in near.union(range(0, len(body), 64)) if at <= len(body))


def read_whole(wire: WireName, body: bytes) -> tuple[list[Part], list[Block], Finish]:
    listener = ReaderDriver(wire)
    listener.feed(body)
    assert listener.reader.complete
    return listener.emitted, assemble(listener.emitted), listener.reader.finish()


@pytest.mark.parametrize("wire", WIRES)
def test_cut_at_every_byte_a_reply_is_whole_or_not_complete_and_the_rest_may_follow(wire: WireName) -> None:
    body = b"".join(write_reply(wire, EVERYTHING))
    emitted, blocks, finish = read_whole(wire, body)
    completed = 0
    cuts = choose_bytes(body)
    assert {0, len(body) - 1, len(body)} <= {*cuts}
    for cut_at in cuts:
        listener = ReaderDriver(wire)
        listener.feed(body[:cut_at])
        assert listener.emitted == emitted[: len(listener.emitted)], f"cut at byte {cut_at}"
        if listener.reader.complete:
            completed += 1
            assert assemble(listener.emitted) == blocks, f"complete without all of it, cut at byte {cut_at}"
            ended = listener.reader.finish()
            assert ended.reason == finish.reason
            assert ended.usage == finish.usage or (wire in TELLS_USAGE_LAST and ended.usage is None)
        else:
            assert Finish not in map(type, listener.emitted)
        listener.feed(body[cut_at:])
        assert listener.emitted == emitted, f"cut into two at byte {cut_at}"
        assert listener.reader.finish() == finish
    assert 0 < completed < len(cuts) // 4, "the end is at the end"


@pytest.mark.parametrize("wire", WIRES)
def test_byte_by_byte_every_part_is_read_as_soon_as_its_event_is_there(wire: WireName) -> None:
    events = write_reply(wire, EVERYTHING)
    emitted, _, _ = read_whole(wire, b"".join(events))
    at_once, slowly = ReaderDriver(wire), ReaderDriver(wire)
    for event in events:
        at_once.feed(event)
        for byte in event:
            slowly.feed(bytes([byte]))
        assert slowly.emitted == at_once.emitted
    assert slowly.emitted == emitted


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("left_out", ["event by event from the end", "one event in the middle"])
def test_without_the_providers_last_word_nothing_is_complete(wire: WireName, left_out: str) -> None:
    """Whatever else is missing or there, only the wire's own end makes a reply complete."""
    events = write_reply(wire, EVERYTHING)
    last_word = min(count for count in range(len(events) + 1) if is_complete(wire, events[:count])) - 1
    for at in range(len(events)):
        kept = events[:at] if left_out == "event by event from the end" else events[:at] + events[at + 1 :]
        assert is_complete(wire, kept) is (events[last_word] in kept and not lacks_stop_reason(wire, kept))


def is_complete(wire: WireName, events: list[bytes]) -> bool:
    listener = ReaderDriver(wire)
    listener.feed(b"".join(events))
    return listener.reader.complete


def lacks_stop_reason(wire: WireName, events: list[bytes]) -> bool:
    """Anthropic's end is two events: `message_stop` without a reason before it is none."""
    return wire == "anthropic" and not any(event.startswith(b"event: message_delta") for event in events)


# --- a sample of them, over HTTP ---------------------------------------------------------


def choose_cuts(wire: WireName) -> list[int]:
    """Around the end of every event, and in its middle."""
    ends = list(accumulate(len(event) for event in write_reply(wire, EVERYTHING, model="m")))
    middles = [(start + end) // 2 for start, end in zip([0, *ends], ends, strict=False)]
    return sorted({*middles, *(end + near for end in ends for near in (-1, 0))})


class Workshop:
    """Tools that note that they ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def list_tools(self) -> list[Callable[..., str]]:
        def weather(city: str) -> str:
            """The weather."""
            self.ran.append(city)
            return "wet"

        def clock() -> str:
            """The time."""
            self.ran.append("clock")
            return "noon"

        return [weather, clock]


def spell(values: Sequence[Part | Block], provider: SimulatedProvider) -> list[bytes]:
    """Parts or blocks, but for the number of the request, which is in many ids of the answer."""
    number = f"{len(provider.requests):012d}".encode()
    return [encode(value).replace(number, b"NUMBER") for value in values]


def split(published: Sequence[Part]) -> list[Part]:
    """Each delta as one delta per character: where deltas were merged depends on how the network cut the reply."""
    pieces: list[Part] = []
    for part in published:
        if isinstance(part, TextDelta | ReasoningDelta | ToolInputDelta) and part.delta:
            pieces += [replace(part, delta=letter) for letter in part.delta]
        else:
            pieces.append(part)
    return pieces


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("clean", [True, False], ids=["ends as if it were whole", "connection closed"])
async def test_over_http_a_cut_reply_is_whole_or_a_retryable_timeout(wire: WireName, clean: bool) -> None:
    """In `make test` one cut is made in one way and the next in the other, so each way is at every kind of place."""
    cuts = choose_cuts(wire) if is_thorough() else choose_cuts(wire)[clean::2]
    outcomes: set[bool] = set()
    workshop = Workshop()
    tools = workshop.list_tools()
    async with SimulatedProvider([EVERYTHING] * (len(cuts) + 1)) as provider, find_model_at(wire, provider) as model:
        turn = await run_turn(model, tools=tools, client_tools=())
        published, blocks = spell(split(turn.published), provider), spell(turn.blocks, provider)
        assert workshop.ran == ["Tromsø", "clock"]
        for cut_at in cuts:
            workshop.ran.clear()
            provider.faults.append(faults.Cut(at_byte=cut_at, clean=clean))
            turn = await run_turn(model, tools=tools, client_tools=())
            outcomes.add(turn.failure is None)
            if turn.failure is None:
                assert spell(turn.blocks, provider) == blocks, f"a silent success, cut at byte {cut_at}"
                assert turn.steps[0].usage == USAGE or wire in TELLS_USAGE_LAST
            else:
                assert (turn.failure.kind, turn.failure.retryable) == ("timeout", True), f"cut at byte {cut_at}"
                assert workshop.ran == [], f"a half-received call was run, cut at byte {cut_at}"
                cut = split(turn.published)
                assert spell(cut, provider) == published[: len(cut)]
    assert outcomes == ({True, False} if wire in TELLS_USAGE_LAST else {False})


@pytest.mark.parametrize("wire", WIRES)
async def test_a_reply_that_was_cut_is_asked_for_again(wire: WireName) -> None:
    script = [*text_parts("t", ["It rains."]), parts.finish("stop")]
    middle = len(b"".join(write_reply(wire, script, model="m"))) // 2
    cut = [faults.Cut(middle), faults.Cut(middle, clean=False), None]
    async with SimulatedProvider([script] * 3, cut) as provider, find_model_at(wire, provider) as model:
        turn = await run_turn(model, attempts=3)
    assert [event.kind for event in turn.retries] == ["timeout", "timeout"]
    assert [block.text for block in turn.blocks] == ["It rains."]
    assert len(provider.requests) == 3


@pytest.mark.parametrize("clean", [True, False])
async def test_a_paused_reply_that_is_cut_after_it_was_taken_up_is_truncated(clean: bool) -> None:
    begun = [*text_parts("t", ["Looking."]), parts.finish("stop", metadata={"stop_reason": "pause_turn"})]
    rest = [*call("call_1", "weather", ['{"city":', '"Oslo"}']), parts.finish("tool_calls")]
    lookup = ToolSpec(name="lookup", provider_executed=True, options={"type": "lookup_1", "name": "lookup"})
    length = len(b"".join(write_reply("anthropic", rest, model="m")))
    for cut_at in (0, length // 2, length - 2):
        cuts = [None, faults.Cut(cut_at, clean=clean)]
        async with SimulatedProvider([begun, rest], cuts) as provider, find_model_at("anthropic", provider) as model:
            turn = await run_turn(model, tools=[lookup])
        assert turn.failure is not None
        assert turn.failure.kind == "timeout"
        assert len(provider.requests) == 2
