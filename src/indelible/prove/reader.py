"""A reader of one chat over HTTP, what it received event by event, and what was wrong with it.

The client reconnects by itself, with its cursor, as often as the connection is lost. A restless reader also disconnects
every few events. Either way it has one transcript, which has no opinion about what should have been written. It knows
the rules of a feed (docs/feed.md): an attempt begins once, its rows come in order and without gap, exactly one event
ends it and names its last row, a message that ends it agrees with its rows, text that was shown is never retracted, a
turn ends once, and who starts at the beginning never gets a snapshot.

Two readers of one chat receive the same facts in the same order; only the rows of a running attempt may come at other
places between them. So a transcript keeps the facts and the rows apart, and transcripts can be compared. It also keeps
the tree of all messages with the head, as a client that shows branches would: from them the question of each turn is
read. A message of the user in a running turn begins the next one or steers this one; the next event shows which.

checks.py compares transcripts; tests/prove/test_checker.py tests both.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple

import msgspec

from indelible.api.events import FeedEvent
from indelible.client.client import RemoteService
from indelible.errors import IndelibleError

_COMPARED_FIELDS: Final = ("id", "parent_id", "role", "blocks", "partial", "reason", "continues", "model")
_DIFFERS_BY_TIME: Final = frozenset({"queue"})
"""Of a queue event: what still waits at the time of reading."""


class SeenAttempt(msgspec.Struct):
    """What one attempt said: `rows` are its rows as text, `n` the last of them."""

    turn_id: str | None
    text: str = ""
    rows: list[str] = []
    has_ended: bool = False

    @property
    def n(self) -> int:
        return len(self.rows)


class SeenTurn(msgspec.Struct):
    """A turn: the message that it answers, the text of its messages, and its outcomes (one, if all is well).

    `last_id` is its last reply or result, `notices` are its notices. `gave_way`: it waited for its client when another
    message took its place.
    """

    question_id: str | None
    question: str
    reply: str = ""
    outcomes: list[str] = []
    last_id: str | None = None
    notices: list[str] = []
    gave_way: bool = False


class SeenMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the tree. `turn_id` is the turn that ran when it arrived, `model` has no address.

    `files` are the ids of its files.
    """

    id: str
    parent_id: str | None
    role: str
    text: str
    partial: bool
    reason: str | None
    model: str | None
    usage: dict[str, int] | None
    turn_id: str | None
    described: str
    files: tuple[str, ...] = ()


class SeenResult(NamedTuple):
    """The result of a tool, and its turn; None if it was copied from another chat."""

    turn_id: str | None
    block: dict[str, Any]


class ReaderTranscript:
    """See the module header. `faults` are sentences; without any, it is valid so far. `rows` counts rows."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.facts: list[str] = []
        self.attempts: dict[str, SeenAttempt] = {}
        self.turns: dict[str, SeenTurn] = {}
        self.questions: list[str] = []
        self.tree: dict[str, SeenMessage] = {}
        self.head: str | None = None
        self.joined: set[str] = set()
        self.copied: set[str] = set()
        self.results: list[SeenResult] = []
        self.action: dict[str, Any] | None = None
        self.status: str | None = None
        self.turn_id: str | None = None
        self.cursor: str | None = None
        self.rows = 0
        self._open_attempt: str | None = None
        self._is_pending = False
        self._is_new: str | None = None

    @property
    def text(self) -> str:
        """The text of all turns."""
        return "".join(attempt.text for attempt in self.attempts.values())

    @property
    def ended(self) -> int:
        """The number of ended turns."""
        return sum(bool(turn.outcomes) for turn in self.turns.values())

    def read_turn(self, turn_id: str) -> str:
        """The text of its attempts, in order."""
        return "".join(attempt.text for attempt in self.attempts.values() if attempt.turn_id == turn_id)

    def add(self, event: FeedEvent) -> None:
        self.cursor = event.cursor or self.cursor
        data = event.data
        if event.kind == "part":
            self._add_row(data)
            return
        if event.kind in ("snapshot", "resync"):
            self.faults.append(f"a reader got a {event.kind} instead of what it had missed")
            return
        if event.kind == "status" and self._is_computed(data):
            return  # whether a worker is alive: stored nowhere, and no reader has to have seen it
        self.facts.append(_describe(event))
        if event.kind in ("attempt", "head", "message"):
            self._settle_new()
        if event.kind == "attempt":
            self._begin_attempt(data["attempt"])
        if event.kind == "head":
            self.head = data["head"]
        if event.kind == "action":
            self.action = data
        if event.kind == "message":
            self._add_message(data["message"])
        if data.get("last_n") is not None:
            self._end_attempt(event)
        if event.kind == "status":
            self._add_status(data)

    def _is_computed(self, data: dict[str, Any]) -> bool:
        """Whether it says that no worker is alive, or, after that, that one is again."""
        was_pending, self._is_pending = self._is_pending, data["status"] == "pending"
        is_back = was_pending and data["status"] == "running" and "ended" not in data
        return self._is_pending or (is_back and data["turn"] == self.turn_id)

    def _begin_attempt(self, attempt_id: str) -> None:
        if attempt_id in self.attempts:
            self.faults.append(f"{attempt_id} begins twice")
            return
        if self._open_attempt is not None:
            self.faults.append(f"{attempt_id} begins while {self._open_attempt} runs")
        self.attempts[attempt_id] = SeenAttempt(self.turn_id)
        self._open_attempt = attempt_id

    def _add_row(self, data: dict[str, Any]) -> None:
        attempt_id, n = data["attempt"], data["n"]
        attempt = self.attempts.get(attempt_id)
        if attempt is None or attempt_id != self._open_attempt:
            self.faults.append(f"{attempt_id} speaks (row {n}) and does not run: {_read_deltas(data['parts'])!r}")
            return
        if n != attempt.n + 1:
            self.faults.append(f"row {n} of {attempt_id} comes after row {attempt.n}")
            return
        self.rows += 1
        attempt.rows.append(json.dumps(data["parts"], sort_keys=True))
        attempt.text += _read_deltas(data["parts"])

    def _end_attempt(self, event: FeedEvent) -> None:
        attempt_id, last_n = event.data["attempt"], event.data["last_n"]
        attempt = self.attempts.get(attempt_id)
        if attempt is None or attempt.has_ended:
            self.faults.append(f"{attempt_id} ends by a {event.kind} and does not run")
            return
        attempt.has_ended = True
        self._open_attempt = None
        if attempt.n != last_n:
            self.faults.append(f"{attempt_id} ends with row {last_n}, and {attempt.n} were shown")
        saved = read_text(event.data["message"]["blocks"]) if event.kind == "message" else ""
        if saved != attempt.text:
            self.faults.append(f"{attempt_id} showed {attempt.text!r}, but {saved!r} is stored")

    def _add_message(self, message: dict[str, Any]) -> None:
        seen = _read_message(message, self.turn_id)
        if seen.id in self.tree:
            self.faults.append(f"{seen.id} comes twice")
        if seen.parent_id is not None and seen.parent_id not in self.tree:
            self.faults.append(f"{seen.id} hangs on {seen.parent_id}, which never came")
        self.tree[seen.id] = seen
        self.head = seen.id
        turn = None if self.turn_id is None else self.turns[self.turn_id]
        if seen.role == "user":
            self.questions.append(seen.text)
            self._is_new = seen.id
        elif turn is None:
            self.copied.add(seen.id)
        elif seen.role == "notice":
            turn.notices.append(message["blocks"][0].get("metadata", {}).get("notice", seen.text))
        else:
            turn.last_id = seen.id
            turn.reply += seen.text if seen.role == "assistant" else ""
        if seen.role == "tool":
            results = [block for block in message["blocks"] if block["type"] == "tool_result"]
            self.results += [SeenResult(self.turn_id, block) for block in results]

    def _settle_new(self) -> None:
        """The last message began no turn: it steers the one that runs, or was copied from another chat."""
        if self._is_new is not None:
            (self.copied if self.turn_id is None else self.joined).add(self._is_new)
            self._is_new = None

    def list_ancestors(self, message_id: str | None) -> Iterator[SeenMessage]:
        """The path from this message up to the first one."""
        while message_id in self.tree:
            message = self.tree[message_id]
            yield message
            message_id = message.parent_id

    def read_answer(self, message_id: str | None) -> tuple[str, str]:
        """The question above a message, and the text of the replies in between, in order. Empty without a question."""
        texts: list[str] = []
        for message in self.list_ancestors(message_id):
            if message.role == "user":
                return message.text, "".join(reversed(texts))
            if message.role == "assistant":
                texts.append(message.text)
        return "", "".join(reversed(texts))

    def _add_status(self, data: dict[str, Any]) -> None:
        was_waiting, self.status = self.status == "requires_action", data["status"]
        if self.status != "requires_action":
            self.action = None
        ended = data.get("ended")
        if ended is not None:
            turn = self.turns.get(ended["turn"])
            if turn is None or turn.outcomes:
                self.faults.append(f"{ended['turn']} ends ({ended['outcome']}) and does not run")
            if turn is not None:
                turn.outcomes.append(ended["outcome"])
                turn.gave_way = was_waiting and data["turn"] is not None
        if data["turn"] != self.turn_id and data["turn"] is not None:
            if data["turn"] in self.turns:
                self.faults.append(f"{data['turn']} begins twice")
            elif self.turn_id is not None and not self.turns[self.turn_id].outcomes:
                self.faults.append(f"{data['turn']} begins while {self.turn_id} runs")
            self._begin_turn(data["turn"])
        if data["turn"] is not None:
            self._settle_new()
        self.turn_id = data["turn"]

    def _begin_turn(self, turn_id: str) -> None:
        question = next((message for message in self.list_ancestors(self.head) if message.role == "user"), None)
        if question is None:
            self.faults.append(f"{turn_id} begins before anything was asked")
            self.turns[turn_id] = SeenTurn(None, "")
            return
        self.turns[turn_id] = SeenTurn(question.id, question.text)
        self.joined.add(question.id)
        self._is_new = None


def _read_message(message: dict[str, Any], turn_id: str | None) -> SeenMessage:
    return SeenMessage(
        id=message["id"],
        parent_id=message.get("parent_id"),
        role=message["role"],
        text=read_text(message["blocks"]),
        partial=message["partial"],
        reason=message["reason"],
        model=(message.get("model") or "").partition("@")[0] or None,
        usage=message.get("usage"),
        turn_id=turn_id,
        described=describe_message(message),
        files=tuple(str(block.get("file_id")) for block in message["blocks"] if block["type"] == "file"),
    )


def read_text(blocks: Sequence[dict[str, Any]]) -> str:
    return "".join(block.get("text", "") for block in blocks if block["type"] == "text")


def _read_deltas(parts: Sequence[dict[str, Any]]) -> str:
    return "".join(part["delta"] for part in parts if part["type"] == "text_delta")


def _describe(event: FeedEvent) -> str:
    """An event as all its readers get it."""
    data = {name: value for name, value in event.data.items() if name not in _DIFFERS_BY_TIME}
    if event.kind == "message":
        data["message"] = describe_message(event.data["message"])
    return f"{event.kind} {json.dumps(data, sort_keys=True)}"


def describe_message(message: dict[str, Any]) -> str:
    """The facts about a message, in a feed and elsewhere."""
    return json.dumps({name: message.get(name) for name in _COMPARED_FIELDS}, sort_keys=True)


class SimulatedReader:
    """`reconnects` counts the reconnects."""

    def __init__(self, client: RemoteService, chat_id: str, *, restless_after: int | None = None) -> None:
        self.transcript = ReaderTranscript()
        self.reconnects = 0
        self._client = client
        self._chat_id = chat_id
        self._restless_after = restless_after
        self._changed = asyncio.Event()

    async def read(self) -> None:
        """Read without end. A server that does not come back is a fault of the transcript."""
        try:
            await self._read()
        except IndelibleError as error:
            self.transcript.faults.append(f"a reader had to give up: {error}")
            self._changed.set()

    async def _read(self) -> None:
        while True:
            async with self._open_feed() as feed:
                received = 0
                async for event in feed:
                    self.transcript.add(event)
                    self._changed.set()
                    received += 1
                    if received == self._restless_after:
                        break
            self._note_reconnect()

    def _open_feed(self) -> AbstractAsyncContextManager[AsyncIterator[FeedEvent]]:
        after = self.transcript.cursor or "start"
        return self._client.open_events(self._chat_id, after=after, on_reconnect=self._note_reconnect)

    async def wait_until(self, is_so: Callable[[ReaderTranscript], bool]) -> None:
        while not is_so(self.transcript):
            self._changed.clear()
            await self._changed.wait()

    def _note_reconnect(self) -> None:
        self.reconnects += 1
