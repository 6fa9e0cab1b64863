"""From parts to blocks: what `assemble` and `finalize` promise for arbitrary streams, and each rule by an example.

The streams drawn here are worse than any provider's: nothing has to be opened before it is continued, closed
after it was opened, or finished at all. One thing is kept apart, because no provider mixes it and the rules
would mean nothing: an id is either a local call's or one of the provider's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from indelible.content import (
    Block,
    File,
    Finish,
    KeepAlive,
    Part,
    PartialReason,
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
    ToolStarted,
    Usage,
    decode_parts,
    encode,
)
from indelible.content.assemble import OUTCOME_UNKNOWN, UNANSWERED, PartAssembler, assemble, finalize, to_messages

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
EARLIER = datetime(2026, 1, 1, 11, tzinfo=UTC)

# --- arbitrary streams -------------------------------------------------------------------

ids = st.sampled_from(["1", "2"])
local_ids = st.sampled_from(["a", "b"])
provider_ids = st.sampled_from(["p", "q"])
deltas = st.text(st.sampled_from('ab {}"\n\U0001f600\x00'), max_size=4)
signatures = st.sampled_from([None, "", "s1", "s2"])
metadata = st.sampled_from([None, {}, {"item": 1}, {"item": 2}])
times = st.sampled_from([None, EARLIER])
flags = st.booleans()

reasoning_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(ReasoningStart, id=ids, signature=signatures, at=times, metadata=metadata),
    st.builds(ReasoningDelta, id=ids, delta=deltas, signature=signatures, metadata=metadata),
    st.builds(ReasoningEnd, id=ids, signature=signatures, at=times, metadata=metadata),
)
text_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(TextStart, ids), st.builds(TextDelta, ids, deltas), st.builds(TextEnd, ids, metadata)
)
call_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(ToolInputStart, id=local_ids, name=st.just("weather")),
    st.builds(
        ToolInputStart, id=provider_ids, name=st.just("search"), provider_executed=st.just(value=True), standalone=flags
    ),
    # A piece of the provider's own call without its start would look like a local one.
    st.builds(ToolInputDelta, local_ids, deltas),
    st.builds(ToolInputEnd, local_ids),
    st.builds(ToolCall, id=local_ids, name=st.just("weather"), arguments=deltas),
    st.builds(
        ToolCall,
        id=provider_ids,
        name=st.just("search"),
        arguments=deltas,
        provider_executed=st.just(value=True),
        standalone=flags,
    ),
)
result_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(ToolResult, call_id=local_ids, name=st.just("weather"), output=deltas, is_error=flags),
    st.builds(
        ToolResult, call_id=provider_ids, name=st.just("search"), output=deltas, provider_executed=st.just(value=True)
    ),
)
whole_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(Source, id=ids), st.builds(File, media_type=st.just("image/png"), name=deltas)
)
traceless_parts: st.SearchStrategy[Part] = st.sampled_from(
    [
        ToolStarted("a", "weather"),
        StreamWarning("old"),
        StreamError("broken"),
        KeepAlive(),
        Finish(),
    ]
)
said_parts = st.one_of(text_parts, reasoning_parts, call_parts, result_parts, whole_parts)
streams = st.lists(st.one_of(said_parts, said_parts, traceless_parts), max_size=16)
reasons = st.sampled_from(get_args(PartialReason))
optional_reasons = st.one_of(st.none(), reasons)


def merge_neighbours(parts: Sequence[Part]) -> list[Part]:
    """What the journal does: neighbouring deltas of one block become one."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(last, TextDelta) and isinstance(part, TextDelta) and last.id == part.id:
            merged[-1] = TextDelta(part.id, last.delta + part.delta)
        elif isinstance(last, ToolInputDelta) and isinstance(part, ToolInputDelta) and last.id == part.id:
            merged[-1] = ToolInputDelta(part.id, last.delta + part.delta)
        elif isinstance(last, ReasoningDelta) and isinstance(part, ReasoningDelta) and last.id == part.id:
            merged[-1] = ReasoningDelta(
                id=part.id,
                delta=last.delta + part.delta,
                signature=part.signature or last.signature,
                metadata=part.metadata or last.metadata,
            )
        else:
            merged.append(part)
    return merged


def split_deltas(parts: Sequence[Part]) -> list[Part]:
    """Every delta one character long, the rest of it (signature, metadata) with the first."""
    pieces: list[Part] = []
    for part in parts:
        if isinstance(part, TextDelta | ReasoningDelta | ToolInputDelta) and part.delta:
            pieces.append(replace(part, delta=part.delta[0]))
            pieces += [type(part)(id=part.id, delta=character) for character in part.delta[1:]]
        else:
            pieces.append(part)
    return pieces


def drop_local_results(blocks: Sequence[Block]) -> list[Block]:
    return [block for block in blocks if not (isinstance(block, ToolResult) and not block.provider_executed)]


def words_of(block: Block) -> str:
    match block:
        case Text() | Reasoning():
            return block.text
        case ToolCall():
            return block.arguments
    return ""


# --- assemble --------------------------------------------------------------------------------


@given(streams)
def test_merging_neighbouring_deltas_changes_nothing(parts: list[Part]) -> None:
    assert assemble(merge_neighbours(parts)) == assemble(parts)


@given(streams)
def test_cutting_deltas_into_characters_changes_nothing(parts: list[Part]) -> None:
    assert assemble(split_deltas(parts)) == assemble(parts)


@given(streams)
def test_what_was_read_back_from_json_folds_to_the_same(parts: list[Part]) -> None:
    assert assemble(decode_parts(encode(parts))) == assemble(parts)


@given(streams)
def test_collecting_part_by_part_is_folding_every_prefix(parts: list[Part]) -> None:
    assembler = PartAssembler()
    for count, part in enumerate(parts, start=1):
        assembler.add(part)
        assert assembler.blocks() == assemble(parts[:count])


@given(streams)
def test_a_longer_stream_only_adds(parts: list[Part]) -> None:
    """Block by block: what had come stays where it was and only grows; but a complete call replaces its pieces."""
    for shorter, longer in pairwise(assemble(parts[:count]) for count in range(len(parts) + 1)):
        before, after = drop_local_results(shorter), drop_local_results(longer)
        assert len(before) <= len(after)
        for old, new in zip(before, after, strict=False):
            assert type(old) is type(new)
            assert isinstance(new, ToolCall) or words_of(new).startswith(words_of(old))


@given(streams)
def test_no_character_of_a_text_is_lost_or_added(parts: list[Part]) -> None:
    blocks = assemble(parts)

    for kind, delta_kind in ((Text, TextDelta), (Reasoning, ReasoningDelta)):
        said = Counter("".join(part.delta for part in parts if isinstance(part, delta_kind)))
        assert Counter("".join(words_of(block) for block in blocks if isinstance(block, kind))) == said


@given(st.lists(st.one_of(text_parts, reasoning_parts, call_parts), max_size=12), st.data())
def test_parts_that_leave_no_trace_leave_none(parts: list[Part], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(parts)))
    traceless = data.draw(traceless_parts)

    assert finalize(assemble([*parts[:at], traceless, *parts[at:]]), None, AT) == finalize(assemble(parts), None, AT)


def test_a_call_that_was_started_is_marked_until_it_is_sealed() -> None:
    parts: list[Part] = [ToolCall(id="a", name="pay", arguments="{}"), ToolStarted("a", "pay")]

    assert assemble(parts) == [ToolCall(id="a", name="pay", arguments="{}", started=True)]
    assert finalize(assemble(parts), None, AT) == [ToolCall(id="a", name="pay", arguments="{}")]
    assert finalize(assemble(parts), "crashed", AT)[1] == ToolResult(
        call_id="a", name="pay", output=OUTCOME_UNKNOWN, outcome="unknown", reason="lost"
    )
    assert assemble([ToolStarted("b", "pay")]) == []


@given(streams)
def test_a_local_call_has_at_most_one_result_and_it_is_the_first_that_came(parts: list[Part]) -> None:
    results = [block for block in assemble(parts) if isinstance(block, ToolResult) and not block.provider_executed]
    came = [part for part in parts if isinstance(part, ToolResult) and not part.provider_executed]

    assert sorted(result.call_id for result in results) == sorted({result.call_id for result in came})
    for result in results:
        assert result is next(part for part in came if part.call_id == result.call_id)


def test_blocks_stand_in_the_order_in_which_they_began() -> None:
    search = ToolResult(call_id="p", name="search", output=["hit"], provider_executed=True)
    page = Source(id="s")
    parts: list[Part] = [
        TextStart("1"),
        ReasoningStart(id="1"),
        ToolInputStart(id="a", name="weather"),
        TextDelta("2", "second "),
        ToolCall(id="p", name="search", provider_executed=True),
        search,
        TextDelta("1", "first"),
        page,
        ReasoningDelta(id="1", delta="hm"),
        TextDelta("2", "text"),
    ]

    assert assemble(parts) == [
        Text("first"),
        Reasoning("hm"),
        ToolCall(id="a", name="weather"),
        Text("second text"),
        ToolCall(id="p", name="search", provider_executed=True),
        search,
        page,
    ]


def test_results_of_local_tools_come_last_in_the_order_of_their_calls() -> None:
    a, b = (ToolCall(id=id_, name="weather", arguments="{}") for id_ in "ab")
    of_a, of_b = (ToolResult(call_id=id_, name="weather", output=id_) for id_ in "ab")

    assert assemble([a, b, of_b, TextDelta("1", "and"), of_a]) == [a, b, Text("and"), of_a, of_b]


def test_a_delta_for_an_id_that_is_not_open_opens_it() -> None:
    parts: list[Part] = [TextDelta("1", "a"), ReasoningDelta(id="1", delta="b"), ToolInputDelta("a", "{")]

    assert assemble(parts) == [Text("a"), Reasoning("b"), ToolCall(id="a", name="", arguments="{")]


def test_an_id_that_was_closed_opens_another_block() -> None:
    assert assemble([TextDelta("1", "a"), TextEnd("1"), TextDelta("1", "b")]) == [Text("a"), Text("b")]


@pytest.mark.parametrize(
    ("given_metadata", "kept"),
    [([{"a": 1}, None], {"a": 1}), ([{"a": 1}, {}], {"a": 1}), ([{"a": 1}, {"b": 2}], {"b": 2}), ([None, {}], None)],
)
def test_metadata_is_replaced_only_by_metadata_that_is_not_empty(
    given_metadata: list[dict[str, int] | None], kept: dict[str, int] | None
) -> None:
    first, second = given_metadata

    assembled = assemble([ReasoningStart(id="1", metadata=first), ReasoningEnd(id="1", metadata=second)])

    assert assembled == [Reasoning(metadata=kept)]


def test_a_signature_is_replaced_only_by_one_that_is_not_empty() -> None:
    parts: list[Part] = [
        ReasoningStart(id="1", signature="first"),
        ReasoningDelta(id="1", delta="hm", signature="second"),
        ReasoningEnd(id="1", signature=""),
    ]

    assert assemble(parts) == [Reasoning("hm", signature="second")]


@given(local_ids, deltas, deltas, deltas)
def test_the_complete_call_wins_over_its_pieces_whenever_they_come(id_: str, one: str, other: str, whole: str) -> None:
    complete = ToolCall(id=id_, name="weather", arguments=whole, metadata={"item": 1})
    start = ToolInputStart(id=id_, name="wea")

    assert assemble([start, ToolInputDelta(id_, one), complete, ToolInputDelta(id_, other)]) == [complete]


def test_half_of_the_arguments_is_not_whole_and_either_kind_of_end_makes_them_so() -> None:
    for end in ([], [ToolInputEnd("a")], [ToolCall(id="a", name="weather", arguments="{}")]):
        assembler = PartAssembler()
        for part in [ToolInputStart(id="a", name="weather"), ToolInputDelta("a", "{}"), *end]:
            assembler.add(part)
        (call,) = assembler.local_calls()
        assert assembler.is_whole(call) is bool(end)


def test_finish_is_kept_with_what_the_call_cost() -> None:
    assembler = PartAssembler()
    assert assembler.usage is None

    assembler.add(Finish(reason="length", usage=Usage(output_tokens=3), response_id="r1"))

    assert assembler.finish == Finish(reason="length", usage=Usage(output_tokens=3), response_id="r1")
    assert assembler.usage == Usage(output_tokens=3)


# --- finalize --------------------------------------------------------------------------------


@given(streams, optional_reasons)
def test_sealing_twice_is_sealing_once(parts: list[Part], reason: PartialReason | None) -> None:
    finalized = finalize(assemble(parts), reason, AT)

    assert finalize(finalized, reason, AT) == finalized
    assert finalize(finalized, reason, EARLIER) == finalized


@given(streams, reasons)
def test_of_a_cut_step_every_local_call_has_exactly_one_result(parts: list[Part], reason: PartialReason) -> None:
    raw = assemble(parts)
    finalized = finalize(raw, reason, AT)

    calls = [block.id for block in finalized if isinstance(block, ToolCall) and not block.provider_executed]
    results = [block for block in finalized if isinstance(block, ToolResult) and not block.provider_executed]
    answered = [result for result in results if result.call_id in calls]
    assert calls == [block.id for block in raw if isinstance(block, ToolCall) and not block.provider_executed]
    assert [result.call_id for result in answered] == calls
    for result in results:
        if result not in raw:
            assert result.is_error
            started = any(isinstance(part, ToolStarted) and part.call_id == result.call_id for part in parts)
            told = {
                UNANSWERED[reason]: ("not_run", reason),
                **({OUTCOME_UNKNOWN: ("unknown", "lost")} if started else {}),
            }
            assert told[result.output] == (result.outcome, result.reason)


@given(streams, optional_reasons)
def test_the_providers_own_calls_never_get_a_result_of_ours(parts: list[Part], reason: PartialReason | None) -> None:
    finalized = finalize(assemble(parts), reason, AT)

    of_provider = {block.id for block in finalized if isinstance(block, ToolCall) and block.provider_executed}
    ours = {block.call_id for block in finalized if isinstance(block, ToolResult) and not block.provider_executed}
    assert not of_provider & ours


@given(streams, reasons)
def test_of_a_cut_step_an_unanswered_call_of_the_provider_stays_only_where_it_may(
    parts: list[Part], reason: PartialReason
) -> None:
    raw = assemble(parts)
    answered = {block.call_id for block in raw if isinstance(block, ToolResult)}

    kept = [block for block in finalize(raw, reason, AT) if isinstance(block, ToolCall) and block.provider_executed]

    of_provider = [block for block in raw if isinstance(block, ToolCall) and block.provider_executed]
    assert kept == [call for call in of_provider if call.standalone or call.id in answered]


@given(streams)
def test_a_complete_step_is_given_no_results(parts: list[Part]) -> None:
    raw = assemble(parts)

    assert [b for b in finalize(raw, None, AT) if isinstance(b, ToolResult)] == [
        b for b in raw if isinstance(b, ToolResult)
    ]


@given(streams, optional_reasons)
def test_sealed_reasoning_has_an_end_and_nothing_that_is_empty_is_left(
    parts: list[Part], reason: PartialReason | None
) -> None:
    raw = assemble(parts)
    finalized = finalize(raw, reason, AT)

    expected = [
        replace(block, ended_at=block.ended_at or AT)
        for block in raw
        if isinstance(block, Reasoning) and (block.text or block.signature or block.metadata)
    ]
    assert [block for block in finalized if isinstance(block, Reasoning)] == expected
    assert not [block for block in finalized if block == Text("")]


@given(streams, optional_reasons)
def test_sealing_keeps_text_and_order(parts: list[Part], reason: PartialReason | None) -> None:
    finalized = finalize(assemble(parts), reason, AT)
    raw = [replace(block, started=False) if isinstance(block, ToolCall) else block for block in assemble(parts)]

    for kind in (Text, ToolCall, Source, File):
        rest = [block for block in finalized if isinstance(block, kind)]
        assert rest == [block for block in raw if isinstance(block, kind) and block in rest]
    assert [words_of(b) for b in finalized if isinstance(b, Text) and b.text] == [
        words_of(b) for b in raw if isinstance(b, Text) and b.text
    ]


def test_every_reason_has_words_for_a_call_that_nobody_answered() -> None:
    assert set(UNANSWERED) == set(get_args(PartialReason))
    assert len(set(UNANSWERED.values())) == len(UNANSWERED)


# --- messages ----------------------------------------------------------------------------


@given(streams, optional_reasons)
def test_messages_hold_all_blocks_and_the_tools_message_the_local_results_only(
    parts: list[Part], reason: PartialReason | None
) -> None:
    finalized = finalize(assemble(parts), reason, AT)

    messages = to_messages(finalized, partial=reason is not None, reason=reason, provider="anthropic")

    assert [block for message in messages for block in message.blocks] == finalized
    assert [message.role for message in messages] in ([], ["assistant"], ["tool"], ["assistant", "tool"])
    for message in messages:
        assert message.blocks
        if message.role == "assistant":
            assert message.blocks == drop_local_results(finalized)
            assert (message.reason, message.provider) == (reason, "anthropic")
