"""The life of a chat on real databases: several users and workers, in any order and side by side.

Hypothesis chooses what happens: mostly commands that the machine accepts here and now, else any, with names of
what is there and of what was there once, from workers that hold the chat and from workers that lost it; models
speak, workers die and come back, deadlines pass. One command alone is compared with `decide`: what it refuses must
be refused and change nothing, and what it accepts must leave the chat as its effects say. Two or three at once may
come in any order; then the rules that hold for every order are checked. After every step the chat must be whole
(testing/invariants.py), and at the end a fresh worker must be able to bring it to rest.

Every command has to be accepted at least once on each database. What chance has left out is looked for afterwards,
in lives that take it wherever they can.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import takewhile
from random import Random
from typing import Any, Literal, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import FieldInfo
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.engine import begin_read, begin_write, close_databases, get_database, open_engine, transact
from tests.support.examples import count_examples
from tests.support.tables import attempts, chats, events, journal, messages, queue, turns, users, workers

from indelible.api.events import Position
from indelible.content import Finish, Message, Part, ReasoningDelta, Text, TextDelta, ToolCall, ToolResult, encode
from indelible.errors import Interrupted, LeaseLost, Refused
from indelible.feed.events import Cursors, build_timeline, follows
from indelible.ids import new_id
from indelible.loop.prompt.compact import make_summary
from indelible.machine import TABLE, CommandName, State, Status, commands, decide, effects
from indelible.machine.commands import Command
from indelible.machine.states import (
    Destination,
    OpenAttempt,
    OpenTurn,
    QueuedRow,
    Snapshot,
    Target,
    place_in_queue,
    state_of,
)
from indelible.store.commands.facts import load_snapshot
from indelible.store.journal.append import JournalRow
from indelible.store.outcome import Outcome
from indelible.store.payloads import (
    AddedHistory,
    AwaitedStep,
    ChatPatch,
    CompactionResult,
    NewChat,
    Payload,
    QueuedInput,
    RetryScheduled,
    StepResult,
    Summary,
    ToolResultsInput,
    UserInput,
    WithPending,
)
from indelible.store.queries.changes import Changes
from indelible.store.queries.chat_view import Event
from indelible.store.store import Store
from indelible.testing.invariants import StoredChat, find_faults, load_chat
from indelible.testing.store import finish_parts, take_over

T = TypeVar("T")
EXAMPLES = {"sqlite": 12, "postgresql": 8}
CHOICES = 24
STEPS = st.lists(st.binary(min_size=CHOICES, max_size=CHOICES), min_size=5, max_size=30)
"""One byte per choice. What there is to choose from depends on who came first, and Hypothesis must not notice."""

LIVES_TO_LOOK_FOR_THE_REST = 20
WORKERS = 3
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
LEASE_TIMEOUT_S = 3600.0
SOON_S = 1e-6
WRITING = {CommandName.SEND, CommandName.SEND_STEER, CommandName.SEND_INTERRUPT, CommandName.EDIT}
REARRANGING = {CommandName.REORDER_QUEUE, CommandName.PROMOTE_QUEUED}
KINDS = {
    kind.name: kind
    for kind in vars(commands).values()
    if isinstance(kind, type) and issubclass(kind, Command) and hasattr(kind, "name")
}
ALL = frozenset(CommandName)
NAMES = [name for name in CommandName if name not in {CommandName.CREATE, CommandName.DELETE}]
WORK = {
    CommandName.ACQUIRE: 1,
    CommandName.START_ATTEMPT: 6,
    CommandName.COMMIT_STEP: 2,
    CommandName.FINISH_TURN: 1,
    CommandName.AWAIT_ACTION: 3,
    CommandName.FAIL: 1,
    CommandName.FINISH_INTERRUPTION: 1,
    CommandName.TOOL_RESULTS: 1,
    CommandName.ACTION_EXPIRED: 1,
}
"""What brings a chat on, with its weight; all else comes in between. A model that speaks weighs what a start does."""

OF_WORKERS = [name for name in NAMES if issubclass(KINDS[name], commands.WorkerCommand)]
SHOWS_MORE = {"head", "queue"}
"""Events that show what they do not hold: a reader has to ask."""

REFUSALS = (Refused, LeaseLost, Interrupted)
Mood = Literal["sober", "late", "wild"]
MOODS: tuple[Mood, ...] = ("sober", "sober", "sober", "sober", "sober", "late", "wild", "wild")


def test_a_chat_stays_whole_whatever_several_writers_do(migrated: str) -> None:
    kind = "postgresql" if migrated.startswith("postgresql") else "sqlite"
    examples = count_examples(EXAMPLES[kind])
    accepted: Counter[str] = Counter()
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        engine = runner.run(open_engine(migrated))
        stack.callback(lambda: runner.run(engine.dispose()))
        stack.callback(lambda: runner.run(close_databases()))

        @settings(max_examples=examples)
        @given(steps=STEPS, with_message=st.booleans())
        def live(steps: list[bytes], with_message: bool) -> None:
            accepted.update(runner.run(live_once(engine, steps, with_message=with_message)))

        live()
        chance = Random(kind)  # noqa: S311  (nobody has to guess it)
        for _ in range(LIVES_TO_LOOK_FOR_THE_REST):
            missing = ALL - accepted.keys()
            if missing:
                steps = [chance.randbytes(CHOICES) for _ in range(40)]
                accepted.update(runner.run(live_once(engine, steps, with_message=True, wanted=missing)))
    assert ALL - accepted.keys() == set()


async def live_once(
    engine: AsyncEngine, steps: list[bytes], *, with_message: bool, wanted: AbstractSet[CommandName] = frozenset()
) -> Counter[str]:
    """Gives which commands were accepted, and how often. A life that looks for some ends when it has found them."""
    life = await Life.begin(engine, with_message=with_message)
    for step in steps:
        life.wanted = wanted - life.accepted.keys()
        if wanted and not life.wanted:
            break
        await life.step(step)
        life.check()
    await life.end()
    return life.accepted


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("DELETE FROM events WHERE seq = 2", "numbered"),
        ("UPDATE chats SET seq = seq + 1", "numbered"),
        ("UPDATE chats SET status = 'idle', holder = NULL", "turns are open"),
        ("UPDATE turns SET outcome = 'complete', ended_at = started_at", "turns are open"),
        ("UPDATE chats SET epoch = epoch + 1", "under epoch"),
        ("UPDATE journal SET n = n + 1", "the journal of"),
        ("DELETE FROM journal", "history has"),
        ("UPDATE messages SET blocks = '[]' WHERE role = 'assistant'", "history has"),
        ("UPDATE events SET ref = NULL WHERE kind = 'attempt'", "their beginning"),
        ("UPDATE events SET ref = 'none' WHERE kind = 'message' AND seq < 3", "messages and the events"),
        ("UPDATE events SET payload = NULL WHERE kind = 'message'", "that have ended"),
        ("UPDATE messages SET blocks = '[]' WHERE role = 'tool'", "what follows it answers"),
    ],
)
async def test_a_chat_that_was_broken_by_hand_is_reported(statement: str, fault: str, engine: AsyncEngine) -> None:
    life = await Life.begin(engine, with_message=True)
    held = await life.store.execute(life.chat_id, commands.Acquire(worker_id=life.worker_ids[0]))
    assert held.turn_id is not None
    start = commands.StartAttempt(epoch=held.epoch, turn_id=held.turn_id)
    attempt = (await life.store.execute(life.chat_id, start)).attempt
    assert attempt is not None
    said = [TextDelta("1", "one"), ToolCall("call", "look", "{}"), ToolResult("call", "look", "it"), Finish()]
    await life.store.append([JournalRow(attempt.chat_id, attempt.id, held.epoch, 1, encode(said))])
    commit = commands.CommitStep(epoch=held.epoch, turn_id=held.turn_id, attempt_id=attempt.id)
    await life.store.execute(life.chat_id, commit)
    await life.store.execute(life.chat_id, start)
    await life.look()
    life.check()
    async with begin_write(engine) as connection:
        await connection.exec_driver_sql(statement)
    await life.look()
    assert any(fault in found for found in find_faults(life.stored)), find_faults(life.stored)


def _took_effect(result: Any) -> bool:
    return isinstance(result, Outcome) and result.effective


class Move(msgspec.Struct, kw_only=True):
    """One call of the store: a command with its payload, or one journal row."""

    name: str
    command: Command | None = None
    payload: Payload[Any] | None = None
    text: str | None = None
    row: JournalRow | None = None


class Life:
    """One chat, those who write to it, and what they were told."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.store = Store(get_database(engine), lease_timeout_s=LEASE_TIMEOUT_S)
        self.choices = iter(b"")
        self.chat_id = new_id("chat")
        self.user_id = new_id("user")
        self.worker_ids = [new_id("worker") for _ in range(WORKERS)]
        self.epochs = dict.fromkeys(self.worker_ids, 0)
        self.typed: Counter[str] = Counter()
        self.text_of_row: dict[str, str] = {}
        self.ends: dict[str, str] = {}
        self.told: dict[tuple[str, int], bytes] = {}
        self.refused: set[bytes] = set()
        self.accepted: Counter[str] = Counter()
        self.wanted: AbstractSet[CommandName] = frozenset()
        self.alive = set(self.worker_ids)
        self.count = 0
        self.stored: StoredChat

    @classmethod
    async def begin(cls, engine: AsyncEngine, *, with_message: bool) -> Life:
        life = cls(engine)
        async with begin_write(engine) as connection:
            now = datetime.now(UTC)
            await connection.execute(insert(users).values(id=life.user_id, name=life.user_id, created_at=now))
            beating = [{"id": id_, "started_at": now, "heartbeat_at": now} for id_ in life.worker_ids]
            await connection.execute(insert(workers), beating)
        text = life.name("message")
        payload = NewChat(owner_id=life.user_id, blocks=[Text(text)])
        await life.store.execute(life.chat_id, commands.Create(with_message=with_message), payload)
        life.typed[text] += with_message
        life.accepted[CommandName.CREATE] += 1
        await life.look()
        life.check()
        return life

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}-{self.count}"

    # --- what happens ---

    def pick(self, options: Sequence[T]) -> T:
        return options[next(self.choices, 0) % len(options)]

    async def step(self, choices: bytes) -> None:
        self.choices = iter(choices)
        choice = self.pick(range(10))
        if choice <= 1:
            await self.let_the_world_turn()
        elif choice <= 6:
            await self.do_one(self.draw_move())
        else:
            drawn = [self.draw_move() for _ in range(self.pick([2, 3]))]
            await self.do_together(drop_rivals(drawn))

    async def let_the_world_turn(self) -> None:
        """A worker dies or comes back, or the time to answer is over."""
        worker_id, lives = self.pick(self.worker_ids), self.pick([False, True])
        heartbeat_at = datetime.now(UTC) if lives else LONG_AGO
        self.alive = self.alive | {worker_id} if lives else self.alive - {worker_id}
        async with begin_write(self.engine) as connection:
            beat = update(workers).where(workers.c.id == worker_id).values(heartbeat_at=heartbeat_at)
            await connection.execute(beat)
            waiting = update(chats).where(chats.c.id == self.chat_id, chats.c.status == "requires_action")
            await connection.execute(waiting.values(deadline_at=LONG_AGO))
        await self.look()

    async def do_one(self, move: Move) -> None:
        """Alone, a command does what `decide` says of the snapshot before it."""
        if move.row is not None:
            (attempt,) = [row for row in self.stored.attempts if row.id == move.row.attempt_id]
            result = await self.transact(move)
            await self.settle([result], [move])
            is_ours = attempt.ended_at is None and attempt.epoch == move.row.epoch
            assert (result.written if is_ours else result.closed) == {attempt.id}, move
            return
        assert move.command is not None
        snapshot = await self.load_snapshot(move.command)
        try:
            decided: Any = decide(snapshot, move.command)
        except REFUSALS as error:
            decided = error
        before, position = self.stored, await self.load_position()
        result = await self.transact(move)
        await self.settle([result], [move])
        if isinstance(result, Outcome):
            await self.check_additions(result, position)
        if isinstance(decided, Exception):
            assert type(result) is type(decided), (move, result, decided)
            assert self.stored == before, move
            return
        assert isinstance(result, Outcome), (move, result)
        assert result.effective == decided.effective
        if decided.effects:
            assert self.state in TABLE[move.command.name][snapshot.state], (move, snapshot.state, self.state)
        else:
            assert self.stored == before, move
        chat = self.stored.chat
        found = (chat.status, chat.archived, chat.epoch, chat.holder, read_queue(self.stored))
        assert found == interpret(snapshot, decided.effects, result.queued_id), move

    async def do_together(self, moves: list[Move]) -> None:
        before = read_queue(self.stored)
        await self.settle(await asyncio.gather(*(self.transact(move) for move in moves)), moves)
        after = [row.id for row in read_queue(self.stored)]
        if not any(move.name in REARRANGING for move in moves):
            old = [row.id for row in before]
            assert [id_ for id_ in old if id_ in after] == [id_ for id_ in after if id_ in old], moves

    async def transact(self, move: Move) -> Any:
        try:
            if move.row is not None:
                return await self.store.append([move.row])
            assert move.command is not None
            return await self.store.execute(self.chat_id, move.command, move.payload)
        except REFUSALS as error:
            return error

    async def settle(self, results: list[Any], moves: list[Move]) -> None:
        """Remember what was acknowledged, in the order in which the store did it."""
        done = list(zip(results, moves, strict=True))
        for result, move in done:
            if move.row is not None and move.row.attempt_id in result.written:
                self.told[move.row.attempt_id, move.row.n] = move.row.parts
            elif move.row is not None:
                self.refused.add(move.row.parts)
            elif isinstance(move.payload, WithPending) and move.payload.pending and not _took_effect(result):
                self.refused.add(encode(move.payload.pending))
        outcomes = [(result, move) for result, move in done if isinstance(result, Outcome) and result.effective]
        for outcome, move in sorted(outcomes, key=lambda pair: pair[0].seq):
            self.remember(outcome, move)
        await self.look()

    async def look(self) -> None:
        stored = await load_chat(get_database(self.engine), self.chat_id)
        assert stored is not None
        self.stored = stored

    def remember(self, outcome: Outcome, move: Move) -> None:
        command = move.command
        assert command is not None
        self.accepted[command.name] += 1
        if isinstance(command, commands.WorkerCommand):
            assert outcome.epoch == command.epoch, "somebody wrote with an old epoch"
        if isinstance(command, commands.Acquire):
            self.epochs[command.worker_id] = outcome.epoch
        if isinstance(command, commands.DeleteQueued | commands.EditQueued):
            self.typed[self.text_of_row[command.queued_id]] -= 1
        if move.text is not None:
            self.typed[move.text] += 1
            row_id = command.queued_id if isinstance(command, commands.EditQueued) else outcome.queued_id
            if row_id is not None:
                self.text_of_row[row_id] = move.text

    async def check_additions(self, outcome: Outcome, before: Position) -> None:
        """What readers of this process are told of a command is what the others load, to the byte."""
        loaded = await self.store.changes(self.chat_id, before)
        new = [entry for entry in loaded.entries if isinstance(entry, Event)]
        if outcome.additions is None:
            assert not new or SHOWS_MORE & {entry.kind for entry in new} or self.follows_hidden(new), new
            return
        told = outcome.additions.to_changes()
        assert follows(before, told)
        assert self.read(before, told) == self.read(before, loaded)

    def read(self, before: Position, changes: Changes) -> list[Any]:
        """What a reader gets of these changes, step by step."""
        steps = build_timeline(Cursors(self.chat_id), before, changes)
        events = [
            None if step.event is None else (step.event.kind, step.event.cursor, step.event.json) for step in steps
        ]
        return [(step.after, step.is_row, event) for step, event in zip(steps, events, strict=True)]

    def follows_hidden(self, new: Sequence[Event]) -> bool:
        """Whether people see one of these new messages below another one than its parent."""
        known = {row.id: row for row in self.stored.messages}
        rows = [known[event.ref or ""] for event in new if event.kind == "message"]
        above = [known[row.parent_id] for row in rows if row.parent_id is not None and row.visibility != "model"]
        return any(row.visibility == "model" for row in above)

    async def load_position(self) -> Position:
        return (await self.store.positions([self.chat_id]))[self.chat_id]

    async def load_snapshot(self, command: Command) -> Snapshot:
        loaded = await transact(self.engine, load_snapshot, self.chat_id, command, lease_timeout_s=LEASE_TIMEOUT_S)
        assert loaded is not None
        return loaded.snapshot

    # --- what may happen ---

    @property
    def is_archived(self) -> bool:
        return bool(self.stored.chat.archived)

    @property
    def state(self) -> State:
        status = Status(self.stored.chat.status)
        return state_of(status, queued=len(self.stored.queue), archived=self.is_archived)

    def draw_move(self) -> Move:
        """Mostly something that the machine accepts; else what a worker does that lost the chat, or anything at all."""
        mood: Mood = "sober" if self.wanted else self.pick(MOODS)
        name = self.pick(self.choose_names(mood))
        if name == "append":
            return self.draw_speech(mood)
        command = self.draw_command(KINDS[CommandName(name)], mood)
        if name in WRITING or name is CommandName.EDIT_QUEUED:
            text = self.name("message")
            payload: Payload[Any] = UserInput(author_id=self.user_id, blocks=[Text(text)])
            if name is CommandName.EDIT_QUEUED:
                payload = QueuedInput(blocks=[Text(text)])
            return Move(name=name, command=command, payload=payload, text=text)
        return Move(name=name, command=command, payload=self.choose_payload(command))

    def draw_command(self, kind: type[Command], mood: Mood) -> Command:
        return kind(**{field.name: self.draw_field(field, kind, mood) for field in msgspec.structs.fields(kind)})

    def choose_names(self, mood: Mood) -> list[str]:
        if mood == "sober":
            return self.choose_accepted()
        speech = ["append"] * 10 if self.stored.attempts else []
        if mood == "late":
            return [*OF_WORKERS, *speech]
        return [*NAMES, *(name for name in NAMES if self.state in TABLE[name]), *speech]

    def choose_accepted(self) -> list[str]:
        """Commands that will be accepted: those that are looked for, else some that bring the chat on, or others."""
        state, snapshot = self.state, self.imagine_snapshot()
        accepted = [name for name in NAMES if state in TABLE[name] and self.is_accepted(KINDS[name], snapshot)]
        wanted = [name for name in accepted if name in self.wanted]
        others: list[str] = [name for name in accepted if name not in WORK]
        work: list[str] = [name for name in accepted for _ in range(WORK.get(name, 0))]
        if self.stored.open_attempt is not None and self.stored.chat.holder is not None:
            work = ["append" if name is CommandName.START_ATTEMPT else name for name in work]
        return list(wanted) or (work if work and self.pick(range(10)) < 7 else others)

    def is_accepted(self, kind: type[Command], snapshot: Snapshot) -> bool:
        """By the machine, of a chat that looks like this one. What it names is then chosen among its like."""
        choices, self.choices = self.choices, iter(b"")
        command, self.choices = self.draw_command(kind, "sober"), choices
        try:
            target = self.find_target(command)
            place = None if target is None else Destination(id=target.id)
            return bool(decide(msgspec.structs.replace(snapshot, target=target, destination=place), command).effects)
        except REFUSALS:
            return False

    def imagine_snapshot(self) -> Snapshot:
        """What the store would load, as far as it takes to know which commands will be accepted."""
        chat, turn, attempt = self.stored.chat, self.stored.open_turn, self.stored.open_attempt
        heard = [message for message in self.stored.path if message.role != "notice"]
        typed = [message.id for message in heard if message.role == "user" and message.visibility == "both"]
        last = next((message for message in reversed(heard) if message.role != "tool"), None)
        return Snapshot(
            chat_id=self.chat_id,
            status=Status(chat.status),
            archived=chat.archived,
            epoch=chat.epoch,
            holder=chat.holder,
            holder_alive=chat.holder in self.alive,
            head_id=chat.head_id,
            queue=tuple(read_queue(self.stored)),
            turn=None if turn is None else OpenTurn(id=turn.id, kind=turn.kind),
            attempt=None
            if attempt is None
            else OpenAttempt(id=attempt.id, turn_id=attempt.turn_id, epoch=attempt.epoch),
            awaiting=self.awaiting,
            deadline_passed=chat.deadline_at is not None and chat.deadline_at <= datetime.now(UTC),
            last_is_partial=last is not None and last.role == "assistant" and last.partial,
            last_user_id=typed[-1] if typed else None,
            last_answered=bool(heard) and heard[-1].role == "assistant" and not heard[-1].partial,
        )

    @property
    def awaiting(self) -> tuple[str, ...]:
        """The calls at the end of the path that nobody has answered."""
        heard = [message for message in reversed(self.stored.path) if message.role != "notice"]
        results = list(takewhile(lambda message: message.role == "tool", heard))
        replies = [message for message in heard[len(results) :][:1] if message.role == "assistant"]
        answered = {block.call_id for message in results for block in message.blocks if isinstance(block, ToolResult)}
        calls = [block.id for message in replies for block in message.blocks if isinstance(block, ToolCall)]
        return tuple(id_ for id_ in calls if id_ not in answered)

    def find_target(self, command: Command) -> Target | None:
        named = getattr(command, "message_id", None)
        for row in self.stored.messages:
            if row.id == named:
                return Target(id=row.id, role=row.role, parent_id=row.parent_id, user_above_id="message_above")
        return None

    def choose_payload(self, command: Command) -> Payload[Any] | None:
        """A worker that ends a step brings what is missing of it."""
        match command:
            case commands.ToolResults():
                return ToolResultsInput(
                    results=[ToolResult(call_id=id_, name="look", output="it") for id_ in command.call_ids]
                )
            case commands.CommitStep(failed=False) | commands.FinishTurn(attempt_id=str()):
                said = self.stored.parts_of(getattr(command, "attempt_id", ""))
                rest = [TextDelta("9", self.name("rest ")), *finish_parts(said)]
                if isinstance(command, commands.CommitStep):
                    return StepResult(pending=rest)
                return CompactionResult(pending=rest, summary=make_summary(self.name("summary"), keep_last=1))
            case commands.AwaitAction():
                call = ToolCall(id=self.name("call"), name="look", arguments="{}")
                said = finish_parts(self.stored.parts_of(command.attempt_id))
                return AwaitedStep(pending=[*said, call], deadline_s=self.pick([600, SOON_S]))
            case commands.KeepSummary():
                return Summary(summary=make_summary(self.name("summary"), keep_last=1))
            case commands.AnnounceRetry():
                return RetryScheduled(
                    retry={"attempt": 1, "kind": "overloaded"}, pending=[ReasoningDelta("2", self.name("Hm "))]
                )
            case commands.AddMessages():
                return AddedHistory(history=[Message(role="assistant", blocks=[Text(self.name("said "))])])
            case commands.UpdateChat():
                return ChatPatch(title=self.name("title"))
            case _:
                return None

    def draw_speech(self, mood: Mood) -> Move:
        attempt = self.stored.open_attempt
        if attempt is None or mood == "wild":
            attempt = self.pick(self.stored.attempts)
        n = sum(row.attempt_id == attempt.id for row in self.stored.journal) + 1
        word = self.name("word ")
        call = ToolCall(id=self.name("call"), name="look", arguments="{}")
        answer = ToolResult(call_id=call.id, name="look", output="it")
        speeches: list[list[Part]] = [
            [TextDelta("1", word)],
            [ReasoningDelta("2", word)],
            [call],
            [TextDelta("1", word), call, answer],
            [TextDelta("1", word), Finish()],
        ]
        said = self.pick(speeches)
        row = JournalRow(
            attempt.chat_id, attempt.id, self.draw_epoch(mood), n, encode([*said, TextDelta("1", self.name(" "))])
        )
        return Move(name="append", row=row)

    def draw_epoch(self, mood: Mood) -> int:
        """That of the worker that holds the chat; else one that is over, or one that some worker believes in."""
        epoch: int = self.stored.chat.epoch
        if mood == "late":
            return epoch - self.pick([1, 2])
        return epoch if mood == "sober" else self.epochs[self.pick(self.worker_ids)]

    def draw_field(self, field: FieldInfo, kind: type[Command], mood: Mood) -> Any:
        stored, is_sober = self.stored, mood != "wild"
        turn, attempt = stored.open_turn, stored.open_attempt
        match field.name:
            case "worker_id":
                return self.pick(self.worker_ids)
            case "epoch":
                return self.draw_epoch(mood)
            case "turn_id":
                open_id = turn.id if turn is not None else "no_turn"
                return open_id if is_sober else self.pick([open_id, *(row.id for row in stored.turns)])
            case "attempt_id":
                open_id = attempt.id if attempt is not None else None if not field.required else "no_attempt"
                return open_id if is_sober else self.pick([open_id, *(row.id for row in stored.attempts)])
            case "message_id":
                roles = {commands.Edit: {"user"}, commands.Regenerate: {"assistant", "user"}}.get(kind)
                shown = [row for row in stored.messages if not is_sober or row.visibility != "model"]
                fitting = [row.id for row in shown if not is_sober or roles is None or row.role in roles]
                return self.pick([*fitting, "no_message"] if not is_sober else fitting or ["no_message"])
            case "queued_id":
                rows = [row.id for row in stored.queue]
                return self.pick(rows if is_sober and rows else [*rows, "no_row"])
            case "queued_ids":
                rows = [row.id for row in stored.queue]
                return tuple(rows.pop(self.pick(range(len(rows)))) for _ in stored.queue)
            case "call_ids":
                return self.awaiting
            case "limit":
                return self.pick([None, None, "max_steps"])
            case "failed" | "only_untitled" | "exact":
                return self.pick([False, True])
            case _:
                pytest.fail(f"Nobody can draw {field.name}")

    # --- what must hold ---

    def check(self) -> None:
        stored = self.stored
        faults = find_faults(stored)
        assert faults == [], faults
        assert Counter(stored.typed) == +self.typed
        rows = {(row.attempt_id, row.n): row.parts for row in stored.journal}
        assert self.told.items() <= rows.items(), "an acknowledged row is gone or changed"
        assert not self.refused & set(rows.values()), "somebody wrote who was refused"
        ends = {row.id: row.outcome for row in (*stored.turns, *stored.attempts) if row.outcome is not None}
        assert self.ends.items() <= ends.items(), "what had ended ended again"
        self.ends = ends

    async def end(self) -> None:
        """A worker that comes last brings the chat to rest with all that was typed in history; then it is deleted."""
        last_id = new_id("worker")
        async with begin_write(self.engine) as connection:
            await connection.execute(delete(workers).where(workers.c.id.in_(self.worker_ids)))
            now = datetime.now(UTC)
            await connection.execute(insert(workers).values(id=last_id, started_at=now, heartbeat_at=now))
        rests = await take_over(self.store, self.store.database, self.chat_id, last_id)
        await self.look()
        self.check()
        assert rests is not None
        assert Status(rests.chat.status) in {Status.IDLE, Status.ERROR}
        if rests.chat.status == Status.IDLE:
            assert rests.queue == []
        attempt_ids = [row.id for row in rests.attempts]
        await self.store.execute(self.chat_id, commands.Delete())
        self.accepted[CommandName.DELETE] += 1
        async with begin_read(self.engine) as connection:
            for table in (turns, attempts, messages, queue, events):
                left = select(func.count()).select_from(table).where(table.c.chat_id == self.chat_id)
                assert (await connection.execute(left)).scalar_one() == 0, table.name
            left = select(func.count()).select_from(journal).where(journal.c.attempt_id.in_(attempt_ids))
            assert (await connection.execute(left)).scalar_one() == 0


def drop_rivals(moves: list[Move]) -> list[Move]:
    """Those that can happen at once: a worker does one thing at a time, and an epoch is one worker's."""
    epochs: set[int] = set()
    kept: list[Move] = []
    for move in moves:
        epoch = move.row.epoch if move.row is not None else getattr(move.command, "epoch", None)
        if epoch is None or epoch not in epochs:
            kept.append(move)
        epochs |= {epoch} if epoch is not None else set()
    return kept


# --- the chat, as the machine has it ---


def read_queue(stored: StoredChat) -> list[QueuedRow]:
    return [QueuedRow(id=row.id, if_busy=row.if_busy) for row in stored.queue]


def interpret(
    snapshot: Snapshot, decided: tuple[effects.Effect, ...], queued_id: str | None
) -> tuple[str, bool, int, str | None, list[QueuedRow]]:
    """Status, archived, epoch, holder and queue after these effects."""
    status, archived, epoch, holder = snapshot.status.value, snapshot.archived, snapshot.epoch, snapshot.holder
    rows = list(snapshot.queue)
    for effect in decided:
        match effect:
            case effects.SetStatus():
                status = effect.status.value
            case effects.SetArchived():
                archived = effect.archived
            case effects.RaiseEpoch():
                epoch, holder = epoch + 1, effect.holder
            case effects.ClearHolder():
                holder = None
            case effects.Enqueue():
                assert queued_id is not None
                rows.insert(place_in_queue(rows, effect.if_busy), QueuedRow(id=queued_id, if_busy=effect.if_busy))
            case effects.StartQueued():
                taken = effect.queued_id or rows[0].id
                rows = [row for row in rows if row.id != taken]
            case effects.InsertSteers():
                rows = [row for row in rows if row.if_busy != "steer"]
            case effects.RemoveQueued():
                rows = [row for row in rows if row.id != effect.queued_id]
            case effects.ReorderQueueRows():
                rows.sort(key=lambda row: effect.queued_ids.index(row.id))
                rows = [
                    QueuedRow(id=row.id, if_busy="promoted") if row.id == effect.promoted_id else row for row in rows
                ]
    return status, archived, epoch, holder, rows
