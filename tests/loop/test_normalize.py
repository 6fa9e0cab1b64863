"""What a model yields, made fit to be seen: nothing is lost, and it does not matter where deltas were cut.

Streams are drawn as whole texts and then cut up: at random, and into single characters. Halves of a surrogate
pair are characters to Python, so pairs and tags come apart at every place where they can.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.thinking import split_thinking

from indelible.content import (
    Block,
    File,
    Finish,
    Part,
    Reasoning,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Source,
    StreamError,
    StreamWarning,
    Text,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    decode_part,
    encode,
)
from indelible.content.assemble import assemble
from indelible.content.unicode import clean_text
from indelible.errors import ModelFailed
from indelible.loop.normalize import Normalizer
from indelible.testing import ManualClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)

PIECES = [
    *("a", "Hello ", "42", " ", "\n", "`", "```\n", "<", "</", "é", "\x00", "\u2028"),
    *("<think>", "</think>", "<thinking>", "</thinking>", "<THINK>", "<|channel|>analysis<|message|>", "<|end|>"),
    *("\U0001f600", "\ud83d\ude00", "\ud83d", "\ude00"),
]
texts = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
deltas: st.SearchStrategy[Part] = st.one_of(
    st.builds(TextDelta, st.sampled_from(["1", "2"]), texts),
    st.builds(ReasoningDelta, id=st.sampled_from(["1", "2"]), delta=texts),
    st.builds(ToolInputDelta, st.sampled_from(["a", "b"]), texts),
)
ends: st.SearchStrategy[Part] = st.one_of(
    st.builds(TextStart, st.sampled_from(["1", "2"])),
    st.builds(TextEnd, st.sampled_from(["1", "2"])),
    st.builds(ReasoningStart, id=st.sampled_from(["1", "2"])),
    st.builds(ReasoningEnd, id=st.sampled_from(["1", "2"])),
    st.builds(ToolInputEnd, st.sampled_from(["a", "b"])),
    st.just(Finish()),
)
streams = st.lists(st.one_of(deltas, deltas, ends), max_size=6)


def make_ingest(provider: str = "anthropic", **options: Any) -> Normalizer:
    return Normalizer(provider=provider, clock=ManualClock(NOW), **options)


def take_in(parts: Iterable[Part], **options: Any) -> list[Part]:
    """Everything that is published for these parts."""
    normalizer = make_ingest(**options)
    return [*(out for part in parts for out in normalizer.feed(part)), *normalizer.release()]


def cut(parts: Sequence[Part], sizes: Iterable[int]) -> list[Part]:
    """The same deltas in pieces of these sizes."""
    cycle = iter(sizes)
    pieces: list[Part] = []
    for part in parts:
        if not isinstance(part, TextDelta | ReasoningDelta | ToolInputDelta):
            pieces.append(part)
            continue
        rest = part.delta
        while rest:
            size = next(cycle, 1)
            pieces.append(type(part)(id=part.id, delta=rest[:size]))
            rest = rest[size:]
    return pieces


def said(blocks: Sequence[Block], kind: type[Text | Reasoning]) -> str:
    return "".join(block.text for block in blocks if isinstance(block, kind))


# --- no character is lost ----------------------------------------------------------------


@given(st.lists(texts, max_size=4))
def test_text_and_thinking_are_what_the_splitter_makes_of_the_whole(pieces: list[str]) -> None:
    blocks = assemble(take_in(TextDelta("1", piece) for piece in pieces))

    answer, thinking = split_thinking(clean_text("".join(pieces)))
    assert said(blocks, Text) == answer
    assert said(blocks, Reasoning) == thinking


@given(st.lists(texts, max_size=4))
def test_text_without_marks_comes_out_as_it_went_in(pieces: list[str]) -> None:
    plain = [piece.replace("<", "(") for piece in pieces]

    assert said(assemble(take_in(TextDelta("1", piece) for piece in plain)), Text) == clean_text("".join(plain))


@given(st.lists(texts, max_size=4))
def test_a_model_that_does_not_think_in_its_text_keeps_its_tags(pieces: list[str]) -> None:
    blocks = assemble(take_in((TextDelta("1", piece) for piece in pieces), inline_thinking=False))

    assert said(blocks, Text) == clean_text("".join(pieces))
    assert not said(blocks, Reasoning)


@given(st.lists(texts, max_size=4))
def test_reasoning_and_arguments_come_out_as_they_went_in(pieces: list[str]) -> None:
    blocks = assemble(
        take_in(part for piece in pieces for part in (ReasoningDelta(id="1", delta=piece), ToolInputDelta("a", piece)))
    )

    whole = clean_text("".join(pieces))
    assert said(blocks, Reasoning) == whole
    assert "".join(block.arguments for block in blocks if isinstance(block, ToolCall)) == whole


@given(streams, texts)
def test_everything_that_is_published_can_be_stored(parts: list[Part], text: str) -> None:
    """In every field but an id, which is plain ASCII at every provider."""
    call = ToolCall(id="c", name=text, arguments=text, metadata={text: [text]})
    result = ToolResult(call_id="p", name=text, output={"hits": [text, 1, None]}, provider_executed=True)
    source = Source(id="s", url=text, title=text, quote=text)
    wholes: list[Part] = [
        call,
        result,
        source,
        File(media_type=text, name=text, data=b"\xff"),
        StreamWarning(text),
        StreamError(text),
    ]

    for part in take_in([*parts, *wholes, TextEnd("1", metadata={"m": text}), Finish(metadata={"m": text})]):
        assert decode_part(encode(part)) == part


@given(texts)
def test_joining_pairs_and_replacing_halves_leaves_nothing_that_can_not_be_encoded(text: str) -> None:
    cleaned = clean_text(text)

    assert cleaned.encode() == text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
    assert clean_text(cleaned) == cleaned


# --- where deltas were cut ---------------------------------------------------------------


@given(streams, st.lists(st.integers(1, 5), max_size=20))
def test_the_outcome_does_not_depend_on_where_deltas_were_cut(parts: list[Part], sizes: list[int]) -> None:
    whole = assemble(take_in(part for part in parts if not is_empty(part)))

    assert assemble(take_in(cut(parts, sizes))) == whole
    assert assemble(take_in(cut(parts, []))) == whole


def is_empty(part: Part) -> bool:
    """An empty delta opens its block; cut into pieces it is no delta at all."""
    return isinstance(part, TextDelta | ReasoningDelta | ToolInputDelta) and not part.delta


@given(streams)
def test_what_was_fed_is_out_at_the_latest_with_the_end_of_its_block(parts: list[Part]) -> None:
    normalizer = make_ingest()
    for part in parts:
        normalizer.feed(part)
    for id_ in "12":
        normalizer.feed(TextEnd(id_))
        normalizer.feed(ReasoningEnd(id=id_))
    for id_ in "ab":
        normalizer.feed(ToolInputEnd(id_))

    assert normalizer.release() == []


@given(streams)
def test_nothing_is_held_back_behind_a_finish(parts: list[Part]) -> None:
    *published, last = take_in([*parts, Finish(reason="length")])

    assert last == Finish(reason="length")
    assert assemble(published) == assemble(take_in(parts))


def test_a_pair_that_was_cut_apart_is_joined_though_other_blocks_come_between() -> None:
    parts: list[Part] = [
        TextDelta("1", "a\ud83d"),
        TextDelta("2", "b\ud83d"),
        ReasoningDelta(id="1", delta="c\ud83d"),
        ToolInputDelta("a", "d\ud83d"),
        TextDelta("1", "\ude00"),
        TextDelta("2", "x"),
        ReasoningDelta(id="1", delta="\ude00"),
        ToolInputDelta("a", "\ude00"),
    ]

    assert assemble(take_in(parts)) == [
        Text("a\U0001f600"),
        Text("b\ufffdx"),
        Reasoning("c\U0001f600"),
        ToolCall(id="a", name="", arguments="d\U0001f600"),
    ]


def test_thinking_inside_the_text_becomes_reasoning_with_its_times() -> None:
    blocks = assemble(take_in(TextDelta("1", character) for character in "<think>hm</think>\nThe answer"))

    assert blocks == [Text(""), Reasoning("hm", started_at=NOW, ended_at=NOW), Text("The answer")]


# --- ids ---------------------------------------------------------------------------------

call_ids = st.sampled_from(["a", "b", "a~2"])
calls: st.SearchStrategy[Part] = st.one_of(
    st.builds(ToolInputStart, id=call_ids, name=st.just("weather")),
    st.builds(ToolInputDelta, call_ids, st.sampled_from(["{", "}"])),
    st.builds(ToolInputEnd, call_ids),
    st.builds(ToolCall, id=call_ids, name=st.just("weather"), arguments=st.sampled_from(["{}", '{"a":1}'])),
)


@given(st.lists(calls, max_size=10))
def test_every_complete_call_is_there_under_an_id_of_its_own(parts: list[Part]) -> None:
    published = take_in(parts)

    complete = [part for part in published if isinstance(part, ToolCall)]
    assert [(call.name, call.arguments) for call in complete] == [
        (part.name, part.arguments) for part in parts if isinstance(part, ToolCall)
    ]
    assert len({call.id for call in complete}) == len(complete)
    assembled = [block for block in assemble(published) if isinstance(block, ToolCall)]
    assert len({call.id for call in assembled}) == len(assembled)
    assert [call for call in assembled if call in complete] == sorted(complete, key=assembled.index)


def test_a_second_call_under_a_used_id_gets_its_own_with_all_its_pieces() -> None:
    parts: list[Part] = [
        ToolCall(id="a", name="weather", arguments="{}"),
        ToolInputStart(id="a", name="clock"),
        ToolInputDelta("a", "{"),
        ToolInputDelta("a", "}"),
        ToolInputEnd("a"),
        ToolCall(id="a", name="clock", arguments="{}"),
        ToolCall(id="a", name="clock", arguments="{}"),
    ]

    of_calls = (
        part for part in take_in(parts) if isinstance(part, ToolCall | ToolInputStart | ToolInputDelta | ToolInputEnd)
    )
    assert [part.id for part in of_calls] == ["a", *5 * ["a~2"], "a~3"]


@pytest.mark.parametrize("late", [ToolInputEnd("a"), ToolInputDelta("a", "}")])
def test_a_late_piece_of_a_complete_call_does_not_become_another_call(late: Part) -> None:
    """`tool_call` wins over its deltas (rule 1.1), whichever comes first. Only a start or a call begins another."""
    call = ToolCall(id="a", name="weather", arguments="{}")

    assert assemble(take_in([ToolInputStart(id="a", name="weather"), call, late])) == [call]


# --- everything else ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "part",
    [
        TextStart("1"),
        TextEnd("9"),
        ReasoningStart(id="1", at=NOW),
        ReasoningDelta(id="1", delta="hm"),
        ReasoningDelta(id="1", delta="\U0001f600"),
        ToolInputStart(id="a", name="weather"),
        ToolInputDelta("a", "{"),
        ToolInputEnd("a"),
        ToolCall(id="a", name="weather", arguments="{}", provider_executed=True),
        ToolResult(call_id="a", name="weather", output="rain"),
        Source(id="s"),
        File(media_type="image/png"),
        StreamWarning("old"),
        Finish(),
    ],
    ids=lambda part: type(part).__name__,
)
def test_an_ordinary_part_passes_through_as_the_same_object(part: Part) -> None:
    (published,) = make_ingest().feed(part)

    assert published is part


def test_ordinary_text_passes_through_as_the_same_object() -> None:
    normalizer = make_ingest()

    for delta in ("Hello", " world", ", it is 7 \u00b0C", " \U0001f600"):
        part = TextDelta("1", delta)
        (published,) = normalizer.feed(part)
        assert published is part


def test_reasoning_is_stamped_when_it_begins_and_ends() -> None:
    earlier = datetime(2025, 1, 1, tzinfo=UTC)
    parts: list[Part] = [
        ReasoningStart(id="1"),
        ReasoningEnd(id="1"),
        ReasoningStart(id="2", at=earlier),
        ReasoningEnd(id="2"),
    ]

    assert take_in(parts) == [
        ReasoningStart(id="1", at=NOW),
        ReasoningEnd(id="1", at=NOW),
        ReasoningStart(id="2", at=earlier),
        ReasoningEnd(id="2", at=NOW),
    ]


@pytest.mark.parametrize(("provider", "standalone"), [("openai", True), ("anthropic", False)])
def test_a_providers_own_call_is_marked_where_it_may_stand_unanswered(provider: str, *, standalone: bool) -> None:
    given_parts: list[Part] = [
        ToolInputStart(id="p", name="search", provider_executed=True),
        ToolCall(id="p", name="search", provider_executed=True),
        ToolCall(id="a", name="weather"),
    ]

    published = take_in(given_parts, provider=provider)

    marks = [part.standalone for part in published if isinstance(part, ToolInputStart | ToolCall)]
    assert marks == [standalone, standalone, False]


def test_what_is_no_part_is_a_failure_that_names_it() -> None:
    with pytest.raises(ModelFailed, match="dict"):
        make_ingest().feed({"type": "text_delta"})  # type: ignore[arg-type]


def test_a_continuing_attempt_starts_in_the_state_in_which_the_last_one_ended() -> None:
    first = make_ingest()
    first.feed(TextDelta("1", "<think>let me"))
    first.release()

    second = take_in([TextDelta("1", " see</think>42")], thinking_state=first.thinking_state)

    blocks = assemble(second)
    assert (said(blocks, Reasoning), said(blocks, Text)) == (" see", "42")


def test_a_providers_result_follows_its_call_to_a_new_id() -> None:
    call = ToolCall(id="p", name="search", arguments="{}", provider_executed=True)
    result = ToolResult(call_id="p", name="search", output="found", provider_executed=True)
    published = take_in([call, result, call, result])
    assert [part.id for part in published if isinstance(part, ToolCall)] == ["p", "p~2"]
    assert [part.call_id for part in published if isinstance(part, ToolResult)] == ["p", "p~2"]


def test_a_model_that_thinks_first_but_whose_provider_tells_thinking_apart_is_not_misheard() -> None:
    normalizer = Normalizer(provider="openai-chat", clock=ManualClock(), thinks_first=True)
    said: list[Part] = [
        ReasoningStart(id="r"),
        ReasoningDelta(id="r", delta="Let me see."),
        ReasoningEnd(id="r"),
        TextStart("t"),
        TextDelta("t", "The answer is 4."),
        TextEnd("t"),
    ]
    heard = [each for part in said for each in normalizer.feed(part)]
    assert TextDelta("t", "The answer is 4.") in heard
