"""Histories of a chat that keep every promise, told by one who made them up, and ways to break them.

`histories` draws a whole one: messages, turns, attempts that are complete, cut by a crash, reset or stopped, rows of
any size, tools. A `History` is the sequence of events in which a feed would tell it. `interleave` gives it as another
reader may be told it: rows of a running attempt elsewhere between the facts. `BREAKS` are the smallest things that can
go wrong with what a reader is told.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Final, cast

import msgspec
from hypothesis import strategies as st

from indelible.api.events import EventBody, EventKind, FeedEvent
from indelible.content import encode
from indelible.prove.evidence import Evidence, UserLog
from indelible.prove.model import count_output
from indelible.prove.reader import ReaderTranscript
from indelible.prove.script import Wish
from indelible.store.commands.change import NOTICES

Events = list[FeedEvent]
PLAIN: Final = {"partial": False, "reason": None, "continues": None, "usage": None, "model": None}


class History(msgspec.Struct):
    """What happened in one chat."""

    events: Events = []
    log: UserLog = msgspec.field(default_factory=UserLog)
    messages: list[dict[str, Any]] = []


class Author:
    """Writes a history, one event after the other."""

    def __init__(self, seed: int) -> None:
        self.history = History(events=[], messages=[])
        self._chance = random.Random(seed)  # noqa: S311  (it only has to be the same next time)
        self._numbers = {"attempt": 0, "turn": 0, "message": 0}
        self._ended: dict[str, str] | None = None

    def write(self, turns: int) -> History:
        for _ in range(turns):
            self._write_turn()
        self._report("status", status="idle", turn=None, ended=self._ended)
        return self.history

    def _write_turn(self) -> None:
        wish = Wish(number=self._chance.randint(0, 999), words=self._chance.randint(1, 12), pace_ms=5)
        wish = msgspec.structs.replace(wish, number=wish.number * 100 + len(self.history.log.sent))
        self.history.log.sent.append(wish.to_text())
        self.history.log.models[wish.to_text()] = "proof"
        self._add_message("user", wish.to_text())
        turn_id = self._name("turn")
        ended = {} if self._ended is None else {"ended": self._ended}
        self._report("status", status="running", turn=turn_id, **ended)
        words = wish.list_words()
        is_stopped = self._chance.random() < 0.3
        until = self._chance.randint(0, len(words)) if is_stopped else len(words)
        at = 0
        while True:
            end = self._chance.choice([until, self._chance.randint(at, until)])
            self._write_attempt(words[at:end], is_last=end == until, is_stopped=is_stopped)
            at = end
            if end == until:
                break
        self.history.log.stops += is_stopped
        if is_stopped:
            text = {"type": "text", "text": NOTICES["stopped"], "metadata": {"notice": "stopped"}}
            self._add_message("notice", "", {"blocks": [text]})
        self._ended = {"turn": turn_id, "outcome": "interrupted" if is_stopped else "complete"}

    def _write_attempt(self, words: Sequence[str], *, is_last: bool, is_stopped: bool) -> None:
        attempt_id = self._name("attempt")
        self._report("attempt", attempt=attempt_id, step=1, number=1, model="proof")
        rows = 0
        while words:
            size = self._chance.randint(1, len(words))
            rows += 1
            parts = [{"type": "text_delta", "id": "text", "delta": "".join(words[:size])}]
            self._report("part", attempt=attempt_id, n=rows, parts=parts)
            words = words[size:]
        text = "".join(
            part["delta"]
            for event in self.history.events
            if event.kind == "part" and event.data["attempt"] == attempt_id
            for part in event.data["parts"]
        )
        if not text:
            self._report("reset", attempt=attempt_id, last_n=rows, outcome="reset")
        else:
            is_cut = not is_last or is_stopped
            usage = None if is_cut else {"input_tokens": 1, "output_tokens": count_output(len(text.split()))}
            said = {"partial": is_cut, "reason": "interrupted" if is_cut else None, "usage": usage, "model": "proof"}
            self._add_message("assistant", text, said, attempt=attempt_id, last_n=rows)

    def _add_message(self, role: str, text: str, said: dict[str, Any] | None = None, **ending: Any) -> None:
        parent_id = self.history.messages[-1]["id"] if self.history.messages else None
        place = {"id": self._name("message"), "parent_id": parent_id, "role": role}
        message = {**place, "blocks": [{"type": "text", "text": text}], **PLAIN, **(said or {})}
        message["siblings"] = [message["id"]]
        self.history.messages.append(message)
        told = {name: value for name, value in message.items() if name != "siblings"}
        self._report("message", message=told, **ending)

    def _name(self, kind: str) -> str:
        self._numbers[kind] += 1
        return f"{kind}_{self._numbers[kind]}"

    def _report(self, kind: str, **data: Any) -> None:
        if data.get("ended", ...) is None:
            del data["ended"]
        self.history.events.append(make_event(kind, data, f"cursor_{len(self.history.events)}"))


@st.composite
def histories(draw: st.DrawFn) -> History:
    return Author(draw(st.integers(0, 2**32))).write(draw(st.integers(1, 5)))


def make_event(kind: str, data: dict[str, Any], cursor: str | None = None) -> FeedEvent:
    return FeedEvent(cast("EventKind", kind), cursor, EventBody(encode(data)))


def read(events: Sequence[FeedEvent]) -> ReaderTranscript:
    story = ReaderTranscript()
    for event in events:
        story.add(event)
    return story


def make_evidence(history: History, *live: Sequence[FeedEvent]) -> Evidence:
    """As if these readers had been there; without any, one who was told all of it."""
    cursor = history.events[-1].cursor
    usages = [message["usage"] for message in history.messages if message["usage"]]
    usage = {name: sum(usage[name] for usage in usages) for name in ("input_tokens", "output_tokens") if usages}
    at_rest: dict[str, Any] = {"status": "idle", "turn": None, "live": None, "queue": [], "error": None}
    items = [{"id": message["id"], "parent_id": message["parent_id"]} for message in history.messages]
    return Evidence(
        chat_id="chat",
        log=history.log,
        live=[read(events) for events in live or [history.events]],
        stored=read(history.events),
        messages=history.messages,
        snapshot={**at_rest, "cursor": cursor, "usage": usage or None},
        tree={"head": items[-1]["id"], "items": items},
        seqs=range(1, 10),
    )


# --- what can go wrong ---


def _lose(events: Events, at: int) -> None:
    del events[at]


def _repeat(events: Events, at: int) -> None:
    events.insert(at, events[at])


def _change(events: Events, at: int) -> None:
    changed = deepcopy(events[at])
    spoil(changed.data)
    events[at] = changed


def _swap(events: Events, at: int) -> None:
    at = min(at, len(events) - 2)
    events[at], events[at + 1] = events[at + 1], events[at]


def _begin_anew(events: Events, at: int) -> None:
    events.insert(at, make_event("snapshot", {}, events[at].cursor))


BREAKS: Final[dict[str, Callable[[Events, int], None]]] = {
    "lose": _lose,
    "repeat": _repeat,
    "change": _change,
    "swap": _swap,
    "begin anew": _begin_anew,
}


def spoil(value: Any) -> bool:
    """Change the first text in it that says something, other than a kind; whether there was one."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value))
    for name, inner in items:
        if isinstance(inner, str) and name not in ("type", "role"):
            value[name] = f"{inner}!"
            return True
        if isinstance(inner, dict | list) and spoil(inner):
            return True
    return False
