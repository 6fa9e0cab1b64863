"""`conclude`: what is kept of a reply, whether it is partial and why, for any stream that ends anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from tests.content.test_assemble import (
    AT,
    merge_neighbours,
    optional_reasons,
    reasons,
    said_parts,
    streams,
    traceless_parts,
)

from indelible.content import Finish, Part, ToolCall, ToolResult, ToolStarted, decode_parts, encode, has_visible
from indelible.content.assemble import PartAssembler, conclude, finalize

if TYPE_CHECKING:
    from indelible.content import PartialReason
    from indelible.content.assemble import Conclusion

finishes = st.sampled_from([Finish("stop"), Finish("tool_calls"), Finish("length")])
endings = st.one_of(streams, st.builds(lambda parts, finish: [*parts, finish], streams, finishes))


def leaves_no_trace(part: Part) -> bool:
    """What is left of a stream's finish and of the start of a tool is a fact: `finish`, "outcome unknown"."""
    return not isinstance(part, Finish | ToolStarted)


def collect(parts: Sequence[Part]) -> PartAssembler:
    assembler = PartAssembler()
    for part in parts:
        assembler.add(part)
    return assembler


def end(parts: Sequence[Part], reason: PartialReason | None) -> Conclusion:
    return conclude(collect(parts), reason, AT)


@given(endings, optional_reasons, st.data())
def test_a_journal_gives_the_same_however_its_rows_were_cut_and_merged(
    parts: list[Part], reason: PartialReason | None, data: st.DataObject
) -> None:
    """The live holder has every part; whoever ends the journal has rows of merged parts, as JSON."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(parts)), max_size=4)))
    places = [0, *cuts, len(parts)]
    rows = [encode(merge_neighbours(parts[a:b])) for a, b in itertools.pairwise(places)]
    stored = [part for row in rows for part in decode_parts(row)]
    assert end(stored, reason) == end(parts, reason)


@given(endings, optional_reasons)
def test_a_partial_reply_shows_something_and_says_why_it_was_cut(
    parts: list[Part], reason: PartialReason | None
) -> None:
    concluded = end(parts, reason)
    if concluded.partial:
        assert not concluded.whole
        assert concluded.reason is not None
        assert has_visible(concluded.blocks)
    assert concluded.partial == (not concluded.whole and has_visible(concluded.blocks))


@given(endings, reasons)
def test_the_reason_that_is_given_stands_and_every_local_call_is_answered_once(
    parts: list[Part], reason: PartialReason
) -> None:
    concluded = end(parts, reason)
    assert concluded.reason == reason
    calls = [block.id for block in concluded.blocks if isinstance(block, ToolCall) and not block.provider_executed]
    answers = [
        block.call_id for block in concluded.blocks if isinstance(block, ToolResult) and not block.provider_executed
    ]
    assert [call for call in calls if answers.count(call) != 1] == []


@given(streams, optional_reasons)
def test_a_stream_that_never_finished_is_never_whole(parts: list[Part], reason: PartialReason | None) -> None:
    concluded = end([part for part in parts if not isinstance(part, Finish)], reason)
    assert not concluded.whole
    assert concluded.reason == (reason or "failed")


@given(st.lists(said_parts, max_size=12))
def test_a_finished_stream_that_nothing_cut_is_whole(parts: list[Part]) -> None:
    concluded = end([*parts, Finish("stop")], None)
    assert (concluded.whole, concluded.partial, concluded.reason) == (True, False, None)
    assert concluded.blocks == finalize(collect(parts).blocks(), None, AT)


@given(endings, optional_reasons, st.lists(traceless_parts.filter(leaves_no_trace), max_size=3))
def test_what_leaves_no_trace_changes_nothing(
    parts: list[Part], reason: PartialReason | None, traceless: list[Part]
) -> None:
    assert end([*traceless, *parts], reason) == end(parts, reason)
