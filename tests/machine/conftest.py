"""A chat in memory, and ways into every state: what `decide` answers is carried out here.

`Chat` is a reading of the rules of chats (docs/glossary.md) and of the effects' docstrings, not of any store: a tree of
messages, one queue, one open turn, one open attempt. It is strict. An effect that makes no sense (a turn opened inside
another, a user's message behind an unanswered call, an attempt closed that is not open) fails the test that led to it,
so that a wrong decision shows itself even where its end state is a right one.

`ways_into[state]` are scripts of real commands that end in that state, in as many variations as matter: with
a live holder, a dead one, many dead ones or none, with and without an open attempt, with short and long queues.
The words of a message are its name, so that each can be followed through queue and history.

Under `--import-mode=importlib` a test can not import from here: types come in for the type checker alone, the
rest as fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile

import pytest

from indelible.machine import Decision, Snapshot, State, Status, commands, decide, effects, state_of
from indelible.machine.commands import Command
from indelible.machine.states import Destination, IfBusy, OpenAttempt, OpenTurn, QueuedRow, Target, TurnKind

PLACES: list[IfBusy] = ["promoted", "interrupt", "steer", "queue"]
"""Rule 3.0, in its own words: promoted rows first, then interrupt rows, then steers, then the rest."""

CARRIES_WORDS = (commands.Send, commands.SendSteer, commands.SendInterrupt, commands.Edit, commands.EditQueued)

Sends = tuple[type[Command], ...]
QUEUES: list[Sends] = [
    (),
    (commands.Send,),
    (commands.Send, commands.Send),
    (commands.SendSteer,),
    (commands.SendSteer, commands.Send),
]


@dataclass
class Node:
    """`why`: the reason of a reply that was cut, of an answer that no tool gave, of a notice, or of a summary."""

    id: str
    parent_id: str | None
    role: str
    words: str | None = None
    calls: tuple[str, ...] = ()
    is_partial: bool = False
    is_hidden: bool = False
    why: str | None = None
    has_failed: bool = False


@dataclass
class Row:
    id: str
    if_busy: IfBusy
    words: str


@dataclass
class Turn:
    id: str
    kind: TurnKind
    message_id: str | None
    outcomes: list[str] = field(default_factory=list)
    takeovers: int = 0
    stalled: int = 0
    journal_rows: int = 0
    journal_rows_at_takeover: int = 0


@dataclass
class Attempt:
    id: str
    turn_id: str
    epoch: int
    has_text: bool = False
    calls: tuple[str, ...] = ()
    is_finished: bool = False
    outcomes: list[str] = field(default_factory=list)


class Chat:
    """What is decided is done. Its words name a message wherever it goes."""

    def __init__(self) -> None:
        self.exists = False
        self.status = Status.IDLE
        self.archived = False
        self.epoch = 0
        self.holder: str | None = None
        self.alive: set[str] = set()
        self.nodes: dict[str, Node] = {}
        self.head_id: str | None = None
        self.queue: list[Row] = []
        self.turns: list[Turn] = []
        self.attempts: list[Attempt] = []
        self.turn: Turn | None = None
        self.attempt: Attempt | None = None
        self.has_error = False
        self.titled = False
        self.retry_told = False
        self.deadline_passed = False
        self.accepted: list[str] = []
        self.withdrawn: list[str] = []
        self._count = 0

    # --- what is there ---

    @property
    def state(self) -> State:
        return self.snapshot().state if self.exists else State.NONE

    @property
    def path(self) -> list[Node]:
        return list(self.climb(self.head_id))[::-1]

    def climb(self, node_id: str | None) -> Iterator[Node]:
        """The path from here upwards."""
        while node_id is not None:
            node = self.nodes[node_id]
            yield node
            node_id = node.parent_id

    @property
    def last_reply_is_partial(self) -> bool:
        """Answers to its calls may stand behind it."""
        last = next((node for node in self._climb_conversation() if node.role != "tool"), None)
        return last is not None and last.is_partial

    @property
    def last_is_answered(self) -> bool:
        """A reply that is complete, and nothing behind it but notices."""
        last = self.last
        return last is not None and last.role == "assistant" and not (last.is_partial or last.calls)

    @property
    def last(self) -> Node | None:
        return next(iter(self._climb_conversation()), None)

    def _climb_conversation(self) -> list[Node]:
        """From its end upwards, without what only people or only the model see."""
        return [node for node in self.climb(self.head_id) if node.role != "notice" and not node.is_hidden]

    @property
    def awaiting(self) -> tuple[str, ...]:
        last = self.last
        return last.calls if last is not None else ()

    @property
    def roles(self) -> list[str]:
        return [node.role for node in self.path]

    @property
    def words(self) -> list[str]:
        """What the user said on the way to the head."""
        return [node.words for node in self.path if node.words is not None]

    @property
    def queued(self) -> list[str]:
        return [row.words for row in self.queue]

    @property
    def open_turn(self) -> Turn:
        assert self.turn is not None
        return self.turn

    @property
    def open_attempt(self) -> Attempt:
        assert self.attempt is not None
        return self.attempt

    def find_last(self, role: str) -> Node:
        """The newest of this role on any branch, what only the model sees left out."""
        return [node for node in self.nodes.values() if node.role == role and not node.is_hidden][-1]

    def snapshot(self, command: Command | None = None) -> Snapshot:
        turn, attempt = self.turn, self.attempt
        target = self.nodes.get(getattr(command, "message_id", ""))
        return Snapshot(
            chat_id="chat",
            status=self.status,
            archived=self.archived,
            epoch=self.epoch,
            holder=self.holder,
            holder_alive=self.holder in self.alive,
            head_id=self.head_id,
            queue=tuple(QueuedRow(id=row.id, if_busy=row.if_busy) for row in self.queue),
            turn=OpenTurn(
                id=turn.id,
                kind=turn.kind,
                message_id=turn.message_id,
                takeovers=turn.takeovers,
                stalled_takeovers=turn.stalled,
                journal_rows=turn.journal_rows,
                journal_rows_at_takeover=turn.journal_rows_at_takeover,
            )
            if turn
            else None,
            attempt=OpenAttempt(
                id=attempt.id, turn_id=attempt.turn_id, epoch=attempt.epoch, finished=attempt.is_finished
            )
            if attempt
            else None,
            awaiting=self.awaiting,
            deadline_passed=self.deadline_passed,
            last_is_partial=self.last_reply_is_partial,
            titled=self.titled,
            last_user_id=_find_user(self.climb(self.head_id)),
            last_answered=self.last_is_answered,
            last_turn_kind=next((turn.kind for turn in reversed(self.turns) if turn.outcomes), "reply"),
            just_compacted=self.head_id is not None and self.nodes[self.head_id].why == "compacted",
            target=self._describe(target) if target else None,
            destination=self._find_destination(target, exact=getattr(command, "exact", False)) if target else None,
        )

    def _find_destination(self, target: Node, *, exact: bool) -> Destination | None:
        """The newest that people see from here on, or only the results of its calls."""
        if target.is_hidden:
            return None
        place = target
        if not exact:
            place = [node for node in self.nodes.values() if not node.is_hidden and target in self.climb(node.id)][-1]
        while exact and place.role in ("assistant", "tool"):
            results = [node for node in self.nodes.values() if node.parent_id == place.id and node.role == "tool"]
            if not results:
                break
            place = results[0]
        return Destination(id=place.id, failed=place.has_failed)

    def _describe(self, node: Node) -> Target:
        user_above_id = _find_user(self.climb(node.parent_id))
        return Target(id=node.id, role=node.role, parent_id=node.parent_id, user_above_id=user_above_id)

    # --- what happens ---

    def do(self, command: Command, words: str | None = None) -> Decision:
        """Decide and carry out. `words` come with commands that have content; without, they get a name of their own."""
        decision = decide(self.snapshot(command) if self.exists else None, command)
        self.apply(decision, command, words)
        return decision

    def apply(self, decision: Decision, command: Command, words: str | None = None) -> None:
        has_words = isinstance(command, CARRIES_WORDS) or getattr(command, "with_message", False)
        if has_words:
            words = words or self._name("words")
            self.accepted.append(words)
        for effect in decision.effects:
            self._apply(effect, command, words if has_words else None)

    def say(self, *, text: bool = True, calls: int = 0, finish: bool = False) -> None:
        """The open attempt's journal grows."""
        self.open_turn.journal_rows += 1
        self.open_attempt.has_text |= text
        self.open_attempt.calls += tuple(self._name("call") for _ in range(calls))
        self.open_attempt.is_finished |= finish

    # --- what its worker does ---

    def acquire(self) -> Decision:
        self.alive.add("worker")
        return self.do(commands.Acquire(worker_id="worker"))

    def start_attempt(self) -> Decision:
        """It begins, and says something."""
        decision = self.do(commands.StartAttempt(epoch=self.epoch, turn_id=self.open_turn.id))
        self.say()
        return decision

    def commit(self, *, failed: bool = False) -> Decision:
        turn_id, attempt_id = self.open_turn.id, self.open_attempt.id
        return self.do(commands.CommitStep(epoch=self.epoch, turn_id=turn_id, attempt_id=attempt_id, failed=failed))

    def finish(self) -> Decision:
        turn_id, attempt_id = self.open_turn.id, self.open_attempt.id
        return self.do(commands.FinishTurn(epoch=self.epoch, turn_id=turn_id, attempt_id=attempt_id))

    def await_action(self) -> Decision:
        turn_id, attempt_id = self.open_turn.id, self.open_attempt.id
        return self.do(commands.AwaitAction(epoch=self.epoch, turn_id=turn_id, attempt_id=attempt_id))

    def fail(self) -> Decision:
        turn_id, attempt_id = self.open_turn.id, self.open_attempt.id
        return self.do(commands.Fail(epoch=self.epoch, turn_id=turn_id, attempt_id=attempt_id))

    def finish_interruption(self) -> Decision:
        turn_id = self.open_turn.id
        attempt_id = self.attempt.id if self.attempt else None
        return self.do(commands.FinishInterruption(epoch=self.epoch, turn_id=turn_id, attempt_id=attempt_id))

    # --- effects ---

    def _apply(self, effect: effects.Effect, command: Command, words: str | None) -> None:
        match effect:
            case effects.SetStatus():
                self.status = effect.status
                self.exists = True
            case effects.SetError():
                self.has_error = True
            case effects.ClearError():
                assert self.has_error
                self.has_error = False
            case effects.RestoreError():
                assert self.head_id is not None
                assert self.nodes[self.head_id].has_failed
                self.has_error = True
            case effects.SetDeadline():
                self.deadline_passed = False
            case effects.ClearHolder():
                self.holder = None
            case effects.RaiseEpoch():
                self.epoch += 1
                self.holder = effect.holder
                self.retry_told = False
            case effects.SetArchived():
                self.archived = effect.archived
            case effects.UpdateMetadata():
                self.titled = True
            case effects.RecordTakeover():
                turn = self.open_turn
                assert (effect.takeovers, effect.journal_rows) == (turn.takeovers + 1, turn.journal_rows)
                turn.takeovers, turn.stalled, turn.journal_rows_at_takeover = (
                    effect.takeovers,
                    effect.stalled,
                    effect.journal_rows,
                )
            case effects.ScheduleRetry():
                assert self.turn is not None
                self.retry_told = True
                if self.attempt is not None:
                    self.attempt.outcomes.append("reset")
                    self.attempt = None
            case effects.DeleteChat():
                assert self.turn is None
                assert self.attempt is None
                self.exists = False
            case effects.CloseAttempt():
                self._close_attempt(
                    effect, is_left_open=isinstance(command, commands.AwaitAction) and effect.reason is None
                )
            case _:
                self._change_history(effect, words)

    def _change_history(self, effect: effects.Effect, words: str | None) -> None:
        match effect:
            case effects.AdoptAttempt():
                assert self.open_attempt.is_finished
                self.open_attempt.epoch = self.epoch
            case effects.LeaveAttempt():
                assert self.open_attempt.is_finished
            case effects.BeginAttempt():
                assert self.attempt is None
                self.attempt = Attempt(self._name("attempt"), self.open_turn.id, self.epoch)
                self.attempts.append(self.attempt)
                self.retry_told = False
            case effects.CloseTurn():
                assert self.attempt is None
                self.retry_told = False
                self.open_turn.outcomes.append(effect.outcome)
                self.turn = None
            case effects.BeginTurn():
                self._start_turn(effect.kind, effect.message_id)
            case effects.AddMessage():
                assert words is not None
                self._put("user", words=words)
            case effects.AddHistory():
                self._put("assistant", why="history")  # of any role: what was said elsewhere is nobody's work
            case effects.AddInstruction():
                if self.last is not None and self.last.is_partial and not self._is_instructed(self.last):
                    self._put("user", is_hidden=True)
            case effects.AddSummary():
                self._put("user", is_hidden=True, why="summary")
            case effects.AddToolResults():
                assert self.awaiting
                self._put("tool")
            case effects.AnswerOpenCalls():
                assert self.awaiting
                self._put("tool", why=effect.reason)
            case effects.AddNotice():
                self._put("notice", why=effect.kind).has_failed = effect.kind in ("failed", "crashed")
            case effects.MoveHead():
                assert effect.message_id is None or effect.message_id in self.nodes
                self.head_id = effect.message_id
            case _:
                self._change_queue(effect, words)

    def _change_queue(self, effect: effects.Effect, words: str | None) -> None:
        match effect:
            case effects.Enqueue():
                assert words is not None
                behind = [index for index, row in enumerate(self.queue) if _rank(row.if_busy) > _rank(effect.if_busy)]
                self.queue.insert(min(behind, default=len(self.queue)), Row(self._name("row"), effect.if_busy, words))
            case effects.StartQueued():
                row = self.queue.pop(0 if effect.queued_id is None else self._find_row(effect.queued_id))
                self._start_turn("reply", self._put("user", words=row.words).id)
            case effects.InsertSteers():
                for row in [row for row in self.queue if row.if_busy == "steer"]:
                    self._put("user", words=row.words)
                    self.queue.remove(row)
            case effects.RemoveQueued():
                self.withdrawn.append(self.queue.pop(self._find_row(effect.queued_id)).words)
            case effects.EditQueuedMessage():
                assert words is not None
                row = self.queue[self._find_row(effect.queued_id)]
                self.withdrawn.append(row.words)
                row.words = words
            case effects.ReorderQueueRows():
                assert sorted(effect.queued_ids) == sorted(row.id for row in self.queue)
                self.queue.sort(key=lambda row: effect.queued_ids.index(row.id))
                if effect.promoted_id is not None:
                    self.queue[self._find_row(effect.promoted_id)].if_busy = "promoted"
            case _:
                pytest.fail(f"No chat knows how to carry out {effect}")

    def _close_attempt(self, effect: effects.CloseAttempt, *, is_left_open: bool) -> None:
        attempt = self.open_attempt
        attempt.outcomes.append(effect.outcome)
        self.attempt = None
        if effect.outcome == "reset" or not (attempt.has_text or attempt.calls):
            return
        is_partial = effect.reason is not None and not attempt.is_finished and effect.outcome != "complete"
        self._put("assistant", calls=attempt.calls, is_partial=is_partial, why=effect.reason if is_partial else None)
        if attempt.calls and not is_left_open:
            self._put("tool", why=effect.reason)

    def _start_turn(self, kind: TurnKind, message_id: str | None) -> None:
        assert self.turn is None
        self.turn = Turn(self._name("turn"), kind, message_id or _find_user(self.climb(self.head_id)))
        self.turns.append(self.turn)

    def _put(
        self,
        role: str,
        *,
        words: str | None = None,
        calls: tuple[str, ...] = (),
        is_partial: bool = False,
        is_hidden: bool = False,
        why: str | None = None,
    ) -> Node:
        if role == "user":
            assert not self.awaiting, "a user's message entered before the open calls were answered (rule 3.2)"
        node = Node(self._name(role), self.head_id, role, words, calls, is_partial, is_hidden, why)
        self.nodes[node.id] = node
        self.head_id = node.id
        return node

    def _is_instructed(self, reply: Node) -> bool:
        below = takewhile(lambda node: node is not reply, self.climb(self.head_id))
        return any(node.is_hidden and node.why != "summary" for node in below)

    def _find_row(self, queued_id: str) -> int:
        return [row.id for row in self.queue].index(queued_id)

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"


Way = Callable[[], Chat]


def _rank(if_busy: IfBusy) -> int:
    return PLACES.index(if_busy)


def _find_user(upwards: Iterable[Node]) -> str | None:
    return next((node.id for node in upwards if node.role == "user" and not node.is_hidden), None)


# --- ways into a state ---


def _wait() -> Chat:
    """Behind it a reply that was cut by a stop, so that every command finds something to name."""
    chat = Chat()
    chat.do(commands.Create(with_message=True))
    chat.acquire()
    chat.start_attempt()
    chat.do(commands.Interrupt())
    chat.finish_interruption()
    return chat


def _run(sends: Sends = ()) -> Chat:
    chat = _wait()
    chat.do(commands.Send())
    for send in sends:
        chat.do(send())
    return chat


def _work(sends: Sends = ()) -> Chat:
    chat = _run(sends)
    chat.acquire()
    chat.start_attempt()
    return chat


def _work_between_attempts() -> Chat:
    chat = _work()
    chat.commit()
    return chat


def _lose_worker(chat: Chat) -> Chat:
    chat.alive.clear()
    return chat


def _lose_workers(chat: Chat, count: int) -> Chat:
    """So many workers have taken it over and died without a word; nobody holds it now."""
    for number in range(count):
        chat.alive.clear()
        chat.do(commands.Acquire(worker_id=f"worker {number}"))
    chat.alive.clear()
    return chat


def _interrupt(chat: Chat) -> Chat:
    chat.do(commands.Interrupt())
    return chat


def _await(chat: Chat) -> Chat:
    chat.say(calls=2, finish=True)
    chat.await_action()
    chat.deadline_passed = True
    return chat


def _fail(chat: Chat) -> Chat:
    chat.fail()
    return chat


def _leave_error() -> Chat:
    """At the first reply; the second question, which failed, is on a branch below it."""
    chat = _fail(_work())
    chat.do(commands.SwitchBranch(message_id=chat.path[1].id, exact=True))
    return chat


def _archive(chat: Chat) -> Chat:
    chat.do(commands.Archive())
    return chat


def _list_ways(sends: Sends) -> Iterator[tuple[Status, Way]]:
    """By status; the queue makes the state."""
    yield Status.RUNNING, lambda: _work(sends)
    yield Status.RUNNING, lambda: _run(sends)
    yield Status.RUNNING, lambda: _lose_worker(_work(sends))
    yield Status.RUNNING, lambda: _lose_workers(_work(sends), 3)
    yield Status.INTERRUPTING, lambda: _interrupt(_work(sends))
    yield Status.INTERRUPTING, lambda: _lose_worker(_interrupt(_work(sends)))
    yield Status.REQUIRES_ACTION, lambda: _await(_work(sends))
    yield Status.ERROR, lambda: _fail(_work(sends))


@pytest.fixture(scope="session")
def ways_into() -> dict[State, list[Way]]:
    """In the first way there is a live worker with an open attempt, wherever there can be one."""
    ways: dict[State, list[Way]] = {state: [] for state in State}
    ways[State.NONE] = [Chat]
    ways[State.IDLE] = [_wait, _leave_error]
    for sends in QUEUES:
        for status, way in _list_ways(sends):
            ways[state_of(status, queued=int(bool(sends)), archived=False)].append(way)
    ways[State.RUNNING].append(_work_between_attempts)
    ways[State.INTERRUPTING].append(lambda: _interrupt(_work_between_attempts()))
    for state, archived in (
        (State.IDLE, State.IDLE_ARCHIVED),
        (State.ERROR, State.ERROR_ARCHIVED),
        (State.ERROR_QUEUED, State.ERROR_QUEUED_ARCHIVED),
    ):
        ways[archived] = [partial(lambda way: _archive(way()), way) for way in ways[state]]
    return ways


@pytest.fixture(scope="session")
def new_chat() -> Way:
    return Chat


@pytest.fixture(scope="session")
def chat_in(ways_into: dict[State, list[Way]]) -> Callable[[State], Chat]:
    return lambda state: ways_into[state][0]()
