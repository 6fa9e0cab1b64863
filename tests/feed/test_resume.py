"""Coming back with a cursor: exactly what is missing, at every cursor of a whole conversation (P7, rule 6.1, 6.2)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.feed.feed_harness import FeedHarness, StreamedChat, read_text, say_everything

from indelible.api.events import KINDS, FeedEvent, Position
from indelible.content import Finish, Text, ToolResult, decode_blocks, encode
from indelible.content.assemble import assemble
from indelible.feed.events import START, Cursors
from indelible.machine.commands import FinishTurn
from indelible.testing import ManualClock

pytestmark = pytest.mark.both_databases

FAR_OFF = datetime(2099, 1, 1, tzinfo=UTC)


def tell(events: Sequence[FeedEvent]) -> tuple[list[Any], list[Any]]:
    """What was told: facts, and parts. How the two are interleaved is free within the rule that `check_order` checks.

    What waits in the queue is told as it is at the time of reading, so it is left out.
    """
    told = [(event.kind, {name: event.data[name] for name in event.data if name != "queue"}) for event in events]
    return [fact for fact in told if fact[0] != "part"], [part for part in told if part[0] == "part"]


def check_order(events: Sequence[FeedEvent]) -> dict[str, list[FeedEvent]]:
    """rule 6.2: what an attempt says stands between the event that opens it and the one that ends it, without gaps."""
    told: dict[str, list[FeedEvent]] = {}
    running = ""
    for event in events:
        if event.kind == "attempt":
            assert running == ""
            running = event.data["attempt"]
            told[running] = []
        elif event.kind == "part":
            assert event.data["attempt"] == running
            told[running].append(event)
            assert event.data["n"] == len(told[running])
        elif event.data.get("last_n") is not None:
            assert (event.data["attempt"], event.data["last_n"]) == (running, len(told[running]))
            running = ""
    return told


async def record(harness: FeedHarness) -> tuple[StreamedChat, list[FeedEvent]]:
    """A conversation, and what somebody who read along from the beginning was told."""
    chat = await harness.create_chat()
    async with harness.read(chat, START) as seen:
        await say_everything(chat)
        return chat, list(await seen.catch_up())


async def read_everything(harness: FeedHarness, chat: StreamedChat, after: str | None = None) -> list[FeedEvent]:
    async with harness.read(chat, after) as seen:
        return list(await seen.catch_up())


async def test_resuming_at_every_cursor_gives_the_rest_and_nothing_else(harness: FeedHarness) -> None:
    chat, whole = await record(harness)
    assert {event.kind for event in whole} == set(KINDS) - {"snapshot", "resync", "end"}

    for place, event in enumerate(whole, 1):
        rest = await read_everything(harness, chat, event.cursor)
        assert tell(rest) == tell(whole[place:])
        check_order([*whole[:place], *rest])


async def test_replaying_from_the_start_gives_what_was_sent_live_and_packing_changes_nothing(
    harness: FeedHarness,
) -> None:
    chat, whole = await record(harness)

    assert tell(await read_everything(harness, chat, START)) == tell(whole)
    assert await harness.store.pack(ended_before=FAR_OFF, clock=ManualClock()) > 0
    assert tell(await read_everything(harness, chat, START)) == tell(whole)
    assert tell(await read_everything(harness, chat, whole[9].cursor)) == tell(whole[10:])


async def test_the_message_that_ends_an_attempt_has_the_attempts_text(harness: FeedHarness) -> None:
    _, whole = await record(harness)

    told = check_order(whole)

    assert len(told) == 9
    ends = [event for event in whole if event.kind == "message" and event.data["attempt"]]
    assert len(ends) == 7
    for event in ends:
        previewed = assemble(part for row in told[event.data["attempt"]] for part in row.parts)
        said = decode_blocks(encode(event.data["message"]["blocks"]))
        assert [block.text for block in said] == [
            block.text for block in previewed if not isinstance(block, ToolResult)
        ]


async def test_a_reply_that_failed_and_went_on_is_one_text_for_whoever_reads(harness: FeedHarness) -> None:
    _, whole = await record(harness)

    messages = [event.data["message"] for event in whole if event.kind == "message"]
    partial = next(message for message in messages if message["partial"])
    rest = next(message for message in messages if message["continues"] == partial["id"])
    assert partial["blocks"] + rest["blocks"][:1] == [
        {"type": "text", "text": "It is rai"},
        {"type": "text", "text": "ning"},
    ]
    assert rest["parent_id"] == partial["id"]  # the instruction between them is not for people
    assert "Go on exactly" not in str(tell(whole))


async def test_what_people_do_not_see_ends_no_attempt(harness: FeedHarness) -> None:
    chat, whole = await record(harness)
    shown = {event.data["message"]["id"] for event in whole if event.kind == "message"}

    hidden = [event for event in await harness.store.events(chat.id, after=0) if event.kind == "message"]
    hidden = [event for event in hidden if event.ref not in shown]

    assert [event.payload for event in hidden] == [None]


async def test_whoever_joins_without_a_cursor_gets_a_snapshot_and_then_what_is_new(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    await chat.write("It is ")
    async with harness.read(chat) as seen:
        (snapshot,) = await seen.catch_up()
        await chat.write("raining")
        await seen.wait_for("part")

    assert snapshot.kind == "snapshot"
    assert snapshot.data["cursor"] == snapshot.cursor
    assert snapshot.data["live"] == {"attempt": chat.attempt_id, "blocks": [{"type": "text", "text": "It is "}]}
    assert [message["blocks"] for message in snapshot.data["messages"]] == [[{"type": "text", "text": "Hello"}]]
    assert (snapshot.data["status"], snapshot.data["turn"]) == ("running", chat.turn_id)
    assert seen.text == "raining"


async def test_a_cursor_that_no_reader_can_have_means_a_snapshot(harness: FeedHarness) -> None:
    chat, whole = await record(harness)
    other = await harness.create_chat("Elsewhere")
    own = Cursors(chat.id)
    part = next(event for event in whole if event.kind == "part")
    here = own.read(part.cursor or "")
    assert here is not None
    for unusable in (
        "garbage",
        Cursors(other.id).write(Position(1)),
        own.write(Position(seq=len(whole) + 100)),
        own.write(Position(here.seq, here.attempt, n=100)),
        own.write(Position(here.seq, "attempt_of_another_chat", n=1)),
        own.write(Position(here.seq)),  # as if nobody spoke then
    ):
        first = (await read_everything(harness, chat, unusable))[0]

        assert first.kind == "snapshot", unusable
        assert first.data["messages"][-1]["role"] == "notice"


async def test_a_reply_of_two_megabytes_streams_without_a_hole(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat, START) as fast:
        for number in range(64):
            await chat.write(f"{number:04}" + "x" * 32 * 1024)
        await chat.close(FinishTurn, Finish("stop"))
        told = await fast.catch_up()

    message = next(event.data["message"] for event in told if event.kind == "message" and event.data["attempt"])
    (said,) = decode_blocks(encode(message["blocks"]))
    assert isinstance(said, Text)
    assert len(said.text) == 64 * (32 * 1024 + 4)
    assert read_text(told) == said.text
    assert harness.metrics.resyncs == 0
