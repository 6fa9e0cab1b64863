"""Arbitrary histories: whatever users, workers and the world do, and in whatever order, a chat stays whole.

Hypothesis drives a chat of conftest.py with commands that are legal and illegal, that name what is there, what
was there once and what never was, from workers with the right epoch and with old ones; in between models
speak, workers die and come back, and deadlines pass. After every step the invariants are checked, and at the
end of every history a worker must be able to bring the chat to rest, with all that was accepted still there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import count_examples

from indelible.errors import Interrupted, LeaseLost, Refused
from indelible.machine import TABLE, CommandName, State, Status, commands
from indelible.machine.commands import Command
from indelible.machine.decide_worker import MAX_STALLED_TAKEOVERS, MAX_TAKEOVERS

if TYPE_CHECKING:
    from tests.machine.conftest import Chat, Way

WORKERS = ["worker", "another"]
OPEN = {Status.RUNNING, Status.INTERRUPTING, Status.REQUIRES_ACTION}
HELD = {Status.RUNNING, Status.INTERRUPTING}
RAISES_EPOCH = {CommandName.ACQUIRE, CommandName.EDIT, CommandName.REGENERATE, CommandName.DELETE}
REARRANGES = {CommandName.REORDER_QUEUE, CommandName.PROMOTE_QUEUED}


@settings(max_examples=count_examples(25))
@given(data=st.data())
def test_a_chat_stays_whole_whatever_happens(data: st.DataObject, new_chat: Way) -> None:
    chat = new_chat()
    chat.do(commands.Create(with_message=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 80))):
        if data.draw(st.integers(0, 3)) == 0:
            let_the_world_turn(chat, data)
        else:
            try_command(chat, draw_command(chat, data))
        check_chat(chat)
        if not chat.exists:
            return
    bring_to_rest(chat)
    check_chat(chat)
    assert sorted(node.words for node in chat.nodes.values() if node.words) == sorted(
        set(chat.accepted) - set(chat.withdrawn)
    )


# --- what happens ---


def let_the_world_turn(chat: Chat, data: st.DataObject) -> None:
    chat.alive = set(data.draw(st.sets(st.sampled_from(WORKERS))))
    chat.deadline_passed = data.draw(st.booleans())
    if chat.attempt is not None and not chat.attempt.is_finished:
        chat.say(text=data.draw(st.booleans()), calls=data.draw(st.integers(0, 2)), finish=data.draw(st.booleans()))


def draw_command(chat: Chat, data: st.DataObject) -> Command:
    kind = KINDS[data.draw(offer_names_of_commands(chat.state))]
    fields = kind.__struct_fields__
    return kind(**{field: data.draw(offer_values(chat, field, kind), label=field) for field in fields})


@cache
def offer_names_of_commands(state: State) -> st.SearchStrategy[CommandName]:
    legal = [name for name, row in TABLE.items() if state in row and name is not CommandName.DELETE]
    return st.one_of(st.sampled_from(legal), st.sampled_from(legal), st.sampled_from(CommandName))


def list_commands(kind: type[Command] = Command) -> list[type[Command]]:
    below = [command for child in kind.__subclasses__() for command in list_commands(child)]
    return below or [kind]


KINDS = {kind.name: kind for kind in list_commands()}


def offer_values(chat: Chat, field: str, kind: type[Command]) -> st.SearchStrategy[Any]:
    """Mostly what is there, now and then what is not."""
    rows = [row.id for row in chat.queue]
    may_be_none = kind in {commands.Interrupt, commands.FinishTurn, commands.Fail, commands.FinishInterruption}
    none = [None] if may_be_none else []
    match field:
        case "epoch":
            return st.one_of(st.just(chat.epoch), st.just(chat.epoch), st.integers(0, chat.epoch + 1))
        case "turn_id":
            current = chat.turn.id if chat.turn else None
            return offer_names([turn.id for turn in chat.turns], current, none if kind is commands.Interrupt else ())
        case "attempt_id":
            current = chat.attempt.id if chat.attempt else None
            return offer_names([attempt.id for attempt in chat.attempts], current, none)
        case "message_id":
            return offer_names(list(chat.nodes), chat.head_id)
        case "queued_id":
            return offer_names(rows, rows[0] if rows else None)
        case "queued_ids":
            return st.one_of(st.permutations(rows).map(tuple), st.just((*rows, "nobody")))
        case "call_ids":
            return st.sampled_from([chat.awaiting, chat.awaiting[::-1], chat.awaiting[1:]])
        case "worker_id":
            return st.sampled_from(WORKERS)
        case _:
            return st.booleans()


def offer_names(
    known: Sequence[str], current: str | None, more: Sequence[str | None] = ()
) -> st.SearchStrategy[str | None]:
    likely = [current] * 4 if current is not None else []
    return st.sampled_from([*likely, *more, *known, "nobody"])


# --- what must be true of every step ---


def try_command(chat: Chat, command: Command) -> None:
    if isinstance(command, commands.AwaitAction) and chat.attempt is not None and not chat.attempt.calls:
        chat.say(calls=1)  # nobody waits for nothing
    before = deepcopy(chat)
    try:
        decision = chat.do(command)
    except (Refused, LeaseLost, Interrupted):
        decision = None
    if decision is None or not decision.effective:
        assert vars(chat) == vars(before)
        return
    assert not isinstance(command, commands.WorkerCommand) or command.epoch == before.epoch
    assert chat.state in TABLE[command.name][before.state]
    assert chat.epoch == before.epoch + (command.name in RAISES_EPOCH)
    assert command.name in REARRANGES or is_in_order(before, chat)


def is_in_order(before: Chat, after: Chat) -> bool:
    """Whether what stayed in the queue stands in the order in which it stood."""
    old, new = [row.id for row in before.queue], [row.id for row in after.queue]
    return [row for row in old if row in new] == [row for row in new if row in old]


# --- what must be true at every moment ---


def check_chat(chat: Chat) -> None:
    check_ends(chat)
    said = [node.words for node in chat.nodes.values() if node.words is not None]
    assert Counter([*said, *chat.queued, *chat.withdrawn]) == Counter(chat.accepted)
    if not chat.exists:
        return
    assert chat.state in State  # a waiting chat with a queue, or an archived one that is busy, has none
    assert (chat.turn is not None) == (chat.status in OPEN)
    assert chat.holder is None or chat.status in HELD
    assert chat.has_error == (chat.status is Status.ERROR)
    if chat.attempt is not None:
        assert chat.status in HELD
        assert chat.holder is not None or chat.attempt.is_finished  # handed over whole, to be adopted
        assert (chat.attempt.turn_id, chat.attempt.epoch) == (chat.open_turn.id, chat.epoch)
    if chat.retry_told:
        assert chat.status in HELD  # as the schema has it
        assert chat.attempt is None
    if chat.turn is not None:
        assert 0 <= chat.turn.stalled <= chat.turn.takeovers < MAX_TAKEOVERS
        assert chat.turn.stalled < MAX_STALLED_TAKEOVERS
    if chat.status is Status.REQUIRES_ACTION:
        assert chat.awaiting
    if chat.status in HELD:
        assert not chat.awaiting


def check_ends(chat: Chat) -> None:
    """Every turn and every attempt ends exactly once."""
    for turn in chat.turns:
        assert len(turn.outcomes) == (0 if turn is chat.turn else 1)
    for attempt in chat.attempts:
        assert len(attempt.outcomes) == (0 if attempt is chat.attempt else 1)


def bring_to_rest(chat: Chat) -> None:
    """Nothing stays running for ever: one worker that does its duty ends every turn and empties the queue."""
    chat.alive = {"the last one"}
    if chat.archived:
        chat.do(commands.Unarchive())
    while chat.state not in {State.IDLE, State.ERROR}:
        if chat.status in HELD and chat.holder not in chat.alive:
            chat.do(commands.Acquire(worker_id="the last one"))  # which may have been one time too often
        elif chat.status is Status.RUNNING:
            chat.start_attempt()
            chat.finish()
        elif chat.status is Status.INTERRUPTING:
            chat.finish_interruption()
        elif chat.status is Status.REQUIRES_ACTION:
            chat.do(commands.Interrupt())
        else:
            chat.do(commands.PromoteQueued(queued_id=chat.queue[0].id))
