"""Positions: a reader and a watch that move through the same logs, each in its own way, and meet anywhere.

The logs here are lists: what is committed is what a reading gives. Chance decides what is committed, who reads
when, and how much of it. Whoever joins, wherever and whenever, must meet every fact and every row exactly once.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import count_examples

from indelible.api.events import BEGINNING, Position
from indelible.feed.events import Cursors, TimelineStep, build_timeline, covers, follow
from indelible.store.queries.changes import Changes, LoadedRow
from indelible.store.queries.chat_view import Event

EXAMPLES = count_examples(50)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CURSORS = Cursors("chat_1")


class Logs:
    """What is committed so far."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.rows: dict[str, list[LoadedRow]] = {}
        self.open: str | None = None

    def tell(self, kind: str, ref: str | None = None, **payload: object) -> None:
        self.events.append(Event(seq=len(self.events) + 1, kind=kind, ref=ref, payload=payload, at=NOW))

    def commit(self, what: str) -> None:
        """Something that can happen now: another fact, an attempt that begins, says something, or ends."""
        if what == "fact":
            self.tell("chat", title="x")
        elif self.open is None:
            self.open = f"attempt_{len(self.rows)}"
            self.rows[self.open] = []
            self.tell("attempt", self.open)
        elif what == "row":
            rows = self.rows[self.open]
            rows.append(LoadedRow(self.open, len(rows) + 1, b"[]"))
        else:
            self.tell("reset", self.open, attempt=self.open, last_n=len(self.rows[self.open]))
            self.open = None

    def read(self, after: Position) -> list[TimelineStep]:
        """As the store reads: each attempt's rows before the event that ends it, the open one's at the end."""
        entries: list[Event | LoadedRow] = []
        attempt, n = after.attempt, after.n
        for event in self.events[after.seq :]:
            if "last_n" in event.payload and attempt is not None:
                entries.extend(self.rows[attempt][n:])
                attempt, n = None, 0
            if event.kind == "attempt":
                attempt, n = event.ref, 0
            entries.append(event)
        if attempt is not None:
            entries.extend(self.rows[attempt][n:])
        changes = Changes(entries=entries, messages={}, visible={}, queue=[], missing=0, complete=True)
        return build_timeline(CURSORS, after, changes)

    def list_everything(self) -> list[tuple[object, ...]]:
        return sorted(
            [("event", event.seq) for event in self.events]
            + [("row", row.attempt, row.n) for rows in self.rows.values() for row in rows],
            key=str,
        )


class Way:
    """Somebody who moves through the logs, and what it met."""

    def __init__(self, position: Position = BEGINNING) -> None:
        self.position = position
        self.met: list[tuple[object, ...]] = []
        self.is_live = False
        self.handed: list[TimelineStep] = []

    def go(self, step: TimelineStep) -> None:
        position = follow(self.position, step)
        assert position is not None
        if position is not self.position:
            self.position = position
            after = step.after
            self.met.append(("row", after.attempt, after.n) if step.is_row else ("event", after.seq))


commits = st.sampled_from(["fact", "begin", "row", "row", "row", "end"])
acts = st.one_of(commits, st.sampled_from(["watch reads", "watch is handed a row", "reader reads", "reader goes on"]))


@given(st.lists(commits, max_size=10), st.lists(acts, max_size=40), st.integers(0, 20), st.integers(1, 5))
@settings(max_examples=EXAMPLES)
def test_whoever_covers_a_watch_and_follows_it_meets_everything_once(
    before: list[str], happenings: list[str], joins_at: int, pace: int
) -> None:
    logs = Logs()
    for what in before:
        logs.commit(what)
    reader = Way()
    for step in logs.read(BEGINNING)[:joins_at]:
        reader.go(step)
    channel = Way((logs.read(BEGINNING) or [TimelineStep(BEGINNING)])[-1].after)

    for act in happenings:
        if act == "watch reads":
            hand(channel, logs.read(channel.position)[:pace], reader)
        elif act == "watch is handed a row":
            rows = logs.rows.get(channel.position.attempt or "", [])[channel.position.n :]
            hand(
                channel,
                [TimelineStep(Position(channel.position.seq, row.attempt, row.n), None, is_row=True) for row in rows],
                reader,
            )
        elif act == "reader reads" and not reader.is_live:
            for step in logs.read(reader.position)[:pace]:
                reader.go(step)
        elif act == "reader goes on" and reader.is_live:
            for step in reader.handed:
                reader.go(step)
            reader.handed.clear()
        elif act == "reader goes on":
            reader.is_live = covers(reader.position, channel.position)
        elif act != "reader reads":
            logs.commit(act)
    for step in [*reader.handed, *logs.read(reader.position)]:
        reader.go(step)

    assert sorted(reader.met, key=str) == logs.list_everything()


def hand(channel: Way, steps: list[TimelineStep], reader: Way) -> None:
    for step in steps:
        channel.go(step)
        if reader.is_live:
            reader.handed.append(step)


@pytest.mark.parametrize(
    ("here", "step", "then"),
    [
        (Position(9, "a", 5), TimelineStep(Position(10, "a", 5)), Position(10, "a", 5)),
        (Position(9, "a", 5), TimelineStep(Position(9, "a", 6), is_row=True), Position(9, "a", 6)),
        (Position(9, "a", 6), TimelineStep(Position(10)), Position(10)),
        (Position(9), TimelineStep(Position(10, "a")), Position(10, "a")),
        (Position(9, "a", 6), TimelineStep(Position(10, "a", 5)), Position(10, "a", 6)),  # ahead in rows
        (Position(10, "a", 5), TimelineStep(Position(9, "a", 6), is_row=True), Position(10, "a", 6)),  # ahead in events
    ],
)
def test_what_is_new_leads_on_and_never_back(here: Position, step: TimelineStep, then: Position) -> None:
    assert follow(here, step) == then


@pytest.mark.parametrize(
    ("here", "step"),
    [
        (Position(10), TimelineStep(Position(10))),
        (Position(10, "b", 1), TimelineStep(Position(7, "a", 3))),
        (Position(10, "a", 5), TimelineStep(Position(9, "a", 5), is_row=True)),
        (Position(10), TimelineStep(Position(9, "a", 6), is_row=True)),  # of an attempt that has ended since
        (Position(12, "b", 1), TimelineStep(Position(9, "a", 6), is_row=True)),
    ],
)
def test_what_was_seen_is_nothing_new(here: Position, step: TimelineStep) -> None:
    assert follow(here, step) is here


@given(st.lists(commits, max_size=30))
def test_a_position_covers_itself_and_what_was_before_it(happenings: list[str]) -> None:
    logs = Logs()
    for what in happenings:
        logs.commit(what)
    way = [BEGINNING, *(step.after for step in logs.read(BEGINNING))]

    for number, position in enumerate(way):
        assert all(covers(position, earlier) for earlier in way[: number + 1])
        assert not any(covers(position, later) for later in way[number + 1 :])
