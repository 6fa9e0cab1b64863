"""What an ended attempt leaves behind, whoever ends it: `finalize(assemble(parts), reason, at)` and nothing else.

Each script is what an attempt's journal holds, row by row. Each way of ending is carried out on each script,
with no word from the process that spoke, and the messages of the attempt are compared with the equation of
assemble.py, `at` being the time of the last row. driver.py checks besides that exactly one event ends the attempt
and names its last row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
import pytest
from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import SAID_AT, Driver, settle_in
from tests.support.engine import begin_read, get_database, is_sqlite
from tests.support.examples import is_thorough
from tests.support.tables import attempts, events, journal, messages

from indelible.api.shapes import Timings
from indelible.content import (
    Finish,
    Message,
    Part,
    PartialReason,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolInputDelta,
    ToolInputStart,
    ToolResult,
    ToolStarted,
    Usage,
    decode_blocks,
    decode_parts,
    encode,
)
from indelible.content.assemble import assemble, finalize, to_messages
from indelible.machine import State
from indelible.machine import commands as c
from indelible.store.store import Store

LOOK, ASK = ToolCall(id="c1", name="look", arguments="{}"), ToolCall(id="c2", name="ask", arguments="{}")
SEEN = ToolResult(call_id="c1", name="look", output="seen")
USED = Usage(input_tokens=7, output_tokens=5)


class Script(NamedTuple):
    """`visible`: there is something to show. `cut`: it is not all there."""

    rows: list[list[Part]]
    visible: bool
    cut: bool

    @property
    def parts(self) -> list[Part]:
        return [part for row in self.rows for part in row]

    @property
    def finished(self) -> bool:
        return any(isinstance(part, Finish) for part in self.parts)


SCRIPTS = {
    "nothing": Script([], visible=False, cut=True),
    "thinking": Script([[ReasoningDelta("r", "Hm")], [ReasoningDelta("r", ", rain")]], visible=False, cut=True),
    "text": Script(
        [[ReasoningDelta("r", "Hm")], [TextDelta("1", "It "), TextDelta("1", "is")]], visible=True, cut=True
    ),
    "half a call": Script(
        [[TextDelta("1", "Look:")], [ToolInputStart("c1", "look"), ToolInputDelta("c1", '{"pl')]],
        visible=True,
        cut=True,
    ),
    "a tool that runs": Script(
        [[LOOK, ASK, Finish("tool_calls")], [ToolStarted("c1", "look"), ToolStarted("c2", "ask")], [SEEN]],
        visible=True,
        cut=True,
    ),
    "a step with its results": Script([[TextDelta("1", "I see")], [LOOK, Finish()], [SEEN]], visible=True, cut=False),
    "a reply": Script([[TextDelta("1", "It is raining.")], [Finish(usage=USED)]], visible=True, cut=False),
}

End = Callable[[Driver], Awaitable[object]]


async def stop(chat: Driver) -> None:
    await chat.do(c.Interrupt())
    await chat.end(c.FinishInterruption)


async def stop_without_a_worker(chat: Driver) -> None:
    await chat.bury()
    await chat.do(c.Interrupt())


async def commit_into_a_stop(chat: Driver) -> None:
    await chat.do(c.Interrupt())
    await chat.end(c.CommitStep)


async def edit(chat: Driver) -> None:
    await chat.do(c.Edit(message_id=await chat.last_id("user")), "Is it dry?")


async def regenerate(chat: Driver) -> None:
    await chat.do(c.Regenerate(message_id=await chat.last_id("assistant")))


async def take_over(chat: Driver) -> None:
    await chat.bury()
    await chat.do(c.Acquire(worker_id="live"))


async def take_over_in_a_stop(chat: Driver) -> None:
    await chat.do(c.Interrupt())
    await take_over(chat)


ENDINGS: dict[str, tuple[End, PartialReason | None, State]] = {
    "stop": (stop, "interrupted", State.IDLE),
    "stop without a worker": (stop_without_a_worker, "interrupted", State.IDLE),
    "commit into a stop": (commit_into_a_stop, "interrupted", State.IDLE),
    "fail": (lambda chat: chat.end(c.Fail), "failed", State.ERROR),
    "carry on": (lambda chat: chat.end(c.CommitStep, failed=True), "failed", State.RUNNING),
    "edit": (edit, "edited", State.RUNNING),
    "regenerate": (regenerate, "edited", State.RUNNING),
    "take over": (take_over, "crashed", State.RUNNING),
    "take over in a stop": (take_over_in_a_stop, "interrupted", State.INTERRUPTING),
    "release": (lambda chat: chat.end(c.Release), "handed_over", State.RUNNING),
    "commit": (lambda chat: chat.end(c.CommitStep), None, State.RUNNING),
    "finish": (lambda chat: chat.end(c.FinishTurn), None, State.IDLE),
}


@pytest.fixture
async def chat(engine: AsyncEngine) -> Driver:
    """With a reply behind it, and an attempt that has said nothing yet."""
    await settle_in(engine)
    chat = await Driver(Store(get_database(engine)), engine).create("Hello")
    await chat.do(c.Acquire(worker_id="live"))
    await chat.start()
    await chat.do(c.Send(), "Is it raining?")
    await chat.end(c.FinishTurn, pending=[TextDelta("1", "Hi."), Finish()])
    await chat.start()
    return chat


async def load_left(chat: Driver) -> list[Message]:
    """What the attempt left, on whichever branch, in the order in which it was told."""
    told = {row.ref: row.seq for row in await chat.rows(events) if row.kind == "message"}
    rows = [row for row in await chat.rows(messages) if row.attempt_id == chat.attempt_id]
    return [
        Message(role=row.role, blocks=decode_blocks(row.blocks), partial=row.partial, reason=row.reason)
        for row in sorted(rows, key=lambda row: int(told[row.id]))
    ]


def expect_left(script: Script, reason: PartialReason | None) -> list[Message]:
    if reason in {"crashed", "handed_over"} and not script.visible:
        return []
    blocks = finalize(assemble(script.parts), reason, SAID_AT + timedelta(seconds=len(script.rows)))
    return to_messages(blocks, partial=script.visible and script.cut, reason=reason)


def choose_scripts(ending: str) -> dict[str, Script]:
    """What is finished outlives its worker, to be adopted by the next. Only a finished step is committed as one."""
    if ending in {"take over", "release"}:
        return {name: script for name, script in SCRIPTS.items() if not script.finished}
    if ending in {"commit", "finish"}:
        return {name: script for name, script in SCRIPTS.items() if not script.cut}
    return SCRIPTS


def describe_rows(script: Script, reason: PartialReason | None) -> tuple[Any, ...]:
    """What a database sees of a script: how many rows of the journal, and which messages are made of them."""
    left = expect_left(script, reason)
    return len(script.rows), script.finished, script.visible, tuple((message.role, message.partial) for message in left)


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_ending_makes_of_the_journal_what_the_equation_says(
    chat: Driver, engine: AsyncEngine, ending: str
) -> None:
    """All scripts on SQLite; on PostgreSQL one for each set of rows that is left, and all in `make nightly`."""
    end, reason, state = ENDINGS[ending]
    scripts = choose_scripts(ending)
    if not is_sqlite(engine) and not is_thorough():
        one_of_each = {describe_rows(script, reason): name for name, script in scripts.items()}
        scripts = {name: scripts[name] for name in one_of_each.values()}
    for name, script in scripts.items():
        twin = await chat.copy()
        for row in script.rows:
            await twin.say(*row)
        await end(twin)
        await twin.check()
        assert await twin.state() is state
        assert await load_left(twin) == expect_left(script, reason), name
        attempt = await twin.attempt()
        assert attempt.last_n == len(script.rows)
        assert (attempt.outcome == "reset") == (reason in {"crashed", "handed_over"} and not script.visible)


@pytest.mark.parametrize("reason", ["interrupted", "failed"])
async def test_parts_that_were_not_flushed_become_the_last_row_of_the_journal(
    chat: Driver, engine: AsyncEngine, reason: PartialReason
) -> None:
    rest: list[Part] = [ReasoningDelta("r", "Hm"), TextDelta("1", " is")]
    await chat.say(TextDelta("1", "It"))
    if reason == "interrupted":
        await chat.do(c.Interrupt())
    await chat.end(c.FinishInterruption if reason == "interrupted" else c.Fail, pending=rest)
    await chat.check()
    rows = await read_journal(engine, chat.attempt_id)
    assert [decode_parts(row.parts) for row in rows] == [[TextDelta("1", "It")], rest]
    assert (await chat.attempt()).last_n == 2
    (left,) = await load_left(chat)
    assert left.blocks == finalize(assemble([TextDelta("1", "It"), *rest]), reason, rows[-1].at)


async def read_journal(engine: AsyncEngine, attempt_id: str) -> Sequence[Row[Any]]:
    async with begin_read(engine) as connection:
        found = select(journal).where(journal.c.attempt_id == attempt_id).order_by(journal.c.n)
        return (await connection.execute(found)).all()


async def test_a_finished_attempt_is_adopted_and_goes_on_where_its_journal_ends(chat: Driver) -> None:
    script = SCRIPTS["a tool that runs"]
    for row in script.rows:
        await chat.say(*row)
    before, started = await chat.attempt(), len(await chat.rows(attempts))
    await take_over(chat)
    await chat.check()
    after = await chat.attempt()
    assert (after.id, after.ended_at, after.epoch) == (before.id, None, before.epoch + 1)
    assert len(await chat.rows(attempts)) == started
    assert await load_left(chat) == []
    told = ToolResult(call_id="c2", name="ask", output="told")
    await chat.end(c.CommitStep, pending=[told])
    await chat.check()
    left = await load_left(chat)
    assert left == to_messages(finalize(assemble([*script.parts, told]), None, None))
    assert [message.role for message in left] == ["assistant", "tool"]
    assert (await chat.attempt()).last_n == len(script.rows) + 1


async def test_a_whole_attempt_that_its_worker_leaves_stays_open_and_what_was_not_flushed_is_kept(chat: Driver) -> None:
    script = SCRIPTS["a tool that runs"]
    for row in script.rows:
        await chat.say(*row)
    seq = (await chat.row()).seq
    told = ToolResult(call_id="c2", name="ask", output="told")
    await chat.end(c.Release, pending=[told])
    await chat.check()
    assert (await chat.attempt()).ended_at is None
    assert (await chat.row()).seq == seq, "nothing has ended, so nothing is told"
    await chat.do(c.Acquire(worker_id="live"))
    await chat.end(c.CommitStep)
    await chat.check()
    assert await load_left(chat) == to_messages(finalize(assemble([*script.parts, told]), None, None))


async def test_the_event_that_ends_an_attempt_is_the_first_of_its_transaction(chat: Driver) -> None:
    await chat.say(*SCRIPTS["half a call"].parts)
    seq = (await chat.row()).seq
    await stop_without_a_worker(chat)
    told = (await chat.list_events())[seq:]
    kinds = [kind for kind, _, _ in told]
    assert kinds == ["message", "message", "message", "status"], "the reply, its tool's answer, the notice"
    assert told[0][2] == {"attempt": chat.attempt_id, "last_n": 1}
    assert not any("last_n" in payload for _, _, payload in told[1:])


async def test_a_reset_tells_readers_which_preview_to_drop(chat: Driver) -> None:
    await chat.say(ReasoningDelta("r", "Hm"))
    await take_over(chat)
    kind, ref, payload = (await chat.list_events())[-1]
    assert (kind, ref) == ("reset", chat.attempt_id)
    assert (payload["attempt"], payload["last_n"]) == (chat.attempt_id, 1)


async def test_attempts_are_numbered_within_the_step_and_steps_within_the_turn(chat: Driver) -> None:
    numbers = [(1, 1)]
    for begin in (chat.start, chat.start):  # nothing was said: the step is tried again
        named = (await begin()).attempt
        assert named is not None
        numbers.append((named.step, named.number))
    await chat.say(TextDelta("1", "Well"))
    await take_over(chat)
    named = (await chat.start()).attempt
    assert named is not None
    numbers.append((named.step, named.number))
    assert numbers == [(1, 1), (1, 2), (1, 3), (2, 1)]
    rows = [row for row in await chat.rows(attempts, attempts.c.step, attempts.c.number) if row.turn_id == chat.turn_id]
    assert [(row.step, row.number) for row in rows] == numbers


async def test_a_reply_keeps_who_wrote_it_and_what_it_cost(chat: Driver) -> None:
    for row in SCRIPTS["a reply"].rows:
        await chat.say(*row)
    await chat.end(c.FinishTurn, response_id="resp_1")
    reply = (await chat.path())[-1]
    assert (reply.provider, reply.model, reply.response_id) == ("demo", "demo-1", "resp_1")
    (kept,) = [found for found in await chat.rows(messages) if found.id == reply.id]
    assert kept.usage == encode(USED) == (await chat.attempt()).usage


async def load_timings(chat: Driver) -> Timings:
    (reply,) = [
        row for row in await chat.rows(messages) if (row.attempt_id, row.role) == (chat.attempt_id, "assistant")
    ]
    return msgspec.json.decode(reply.timings, type=Timings)


async def test_a_reply_keeps_what_its_worker_knows_of_cost_and_time(chat: Driver) -> None:
    timings = Timings(started_at=SAID_AT, first_part_at=SAID_AT + timedelta(seconds=1), ended_at=SAID_AT)
    await chat.end(c.FinishTurn, pending=SCRIPTS["a step with its results"].parts, cost_nanousd=1200, timings=timings)
    assert await load_timings(chat) == timings
    rows = [row for row in await chat.rows(messages) if row.attempt_id == chat.attempt_id]  # not an earlier reply's
    kept = {row.role: (row.cost_nanousd, row.timings) for row in rows}
    assert kept["assistant"][0] == 1200
    assert kept["tool"] == (None, None), "only the reply costs anything"


async def test_without_its_worker_the_times_of_a_reply_are_those_of_its_attempt_and_journal(chat: Driver) -> None:
    for row in SCRIPTS["text"].rows:
        await chat.say(*row)
    await take_over(chat)
    started_at = (await chat.attempt()).started_at
    first, last = SAID_AT + timedelta(seconds=1), SAID_AT + timedelta(seconds=2)
    assert await load_timings(chat) == Timings(started_at=started_at, first_part_at=first, ended_at=last)


async def test_a_partial_reply_never_keeps_a_response_id(chat: Driver) -> None:
    await chat.say(TextDelta("1", "It"))
    await chat.end(c.Fail, response_id="resp_1")
    (left,) = [message for message in await chat.path() if message.partial]
    assert left.response_id is None


@pytest.mark.parametrize("way", ["crash", "hand-over", "failure", "retry"])
async def test_a_reply_that_goes_on_names_the_partial_one_that_it_carries_on(chat: Driver, way: str) -> None:
    await chat.say(TextDelta("1", "It is"))
    if way == "crash":
        await take_over(chat)
    elif way == "hand-over":
        await chat.end(c.Release)
        await chat.do(c.Acquire(worker_id="live"))
    elif way == "failure":
        await chat.end(c.CommitStep, failed=True)
    else:
        await chat.end(c.Fail)
        await chat.do(c.Retry())
        await chat.do(c.Acquire(worker_id="live"))
    partial_id = await chat.last_id("assistant")
    await chat.start()
    await chat.end(c.FinishTurn, pending=[TextDelta("1", " raining."), Finish()])
    await chat.check()
    reply = (await chat.path())[-1]
    assert (reply.text, reply.continues, reply.partial) == (" raining.", partial_id, False)
    instructions = [message.role for message in await chat.path() if message.visibility == "model"]
    assert instructions == ["user"]


async def test_a_stream_without_an_end_is_never_stored_as_complete(chat: Driver) -> None:
    await chat.say(TextDelta("1", "It is"))
    await chat.end(c.FinishTurn)
    reply = (await chat.path())[-1]
    assert (reply.partial, reply.reason) == (True, "failed")
