"""One rule for every end: a live worker and another process make the same rows of the same journal.

A live worker is stopped in each phase of rule 1.5, and its journal is read back. The same journal is then given to a
worker that died, and the chat is ended without it: by the stop itself, or by a second worker that takes the chat
over while it is being stopped. The rows must be equal, `partial` and `reason` included. A retry wait has no open
journal; there a worker is killed in the same place instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from tests.support.app_harness import AppHarness, DroppingNotifier, LongSleeps, WatchedStore, make_settings
from tests.support.stored import load_journal
from tests.worker.dead_worker import DeadWorker

from indelible.app.chat import Chat
from indelible.content import Block, Part, Reasoning, Text, ToolCall, ToolResult, decode_blocks
from indelible.errors import ModelFailed
from indelible.ids import new_id
from indelible.machine.commands import AwaitAction, Command, CommitStep, FinishTurn, Interrupt
from indelible.models.protocol import Call
from indelible.store.queries.chat_view import ChatView
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script

FAR_AWAY: dict[str, Any] = {"poll_interval_s": 600, "heartbeat_interval_s": 4}
FAILS = ModelFailed("It is overloaded.", kind="overloaded", retry_after_s=30.0)
TEXT = parts.text_delta("1", "Let me see.")
CALLS: tuple[Part, ...] = (parts.tool_call("c1", "quick_one", "{}"), parts.tool_call("c2", "slow_one", "{}"))


async def quick_one() -> str:
    return "done at once"


async def slow_one() -> None:
    await asyncio.get_running_loop().create_future()


async def ask() -> str:
    """Ask the user; the client does that."""
    raise NotImplementedError


async def finish_when_stopped(call: Call) -> AsyncIterator[Part]:
    """The answer to the stopped read is the finish: the stream is done, and no tool has started."""
    for part in (TEXT, *CALLS):
        yield part
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        yield parts.finish("tool_calls")


def is_open(view: ChatView) -> bool:
    return view.live is not None


def shows(kind: type[Block]) -> Callable[[ChatView], bool]:
    return lambda view: view.live is not None and any(isinstance(block, kind) for block in view.live.blocks)


class Phase(NamedTuple):
    """`stop`: when to press Stop, or the command of the worker that the stop comes right before."""

    script: Script | Callable[[Call], AsyncIterator[Part]]
    stop: Callable[[ChatView], bool] | type[Command]
    partial: bool | None
    provider: str = "scripted"
    concurrency: int = 16


PHASES: dict[str, Phase] = {
    "before the first part": Phase([parts.hang()], is_open, partial=None),
    "in text": Phase([TEXT, parts.hang()], shows(Text), partial=True),
    "in reasoning": Phase([parts.reasoning_delta("r", "Hm"), parts.hang()], shows(Reasoning), partial=False),
    "in reasoning after text": Phase(
        [TEXT, parts.reasoning_delta("r", "Hm"), parts.hang()], shows(Reasoning), partial=True
    ),
    "in tool arguments": Phase(
        [parts.tool_input_start("c1", "quick_one"), parts.tool_input_delta("c1", '{"q": "os'), parts.hang()],
        shows(ToolCall),
        partial=True,
    ),
    "in a provider's work that needs its result": Phase(
        [TEXT, parts.tool_call("s1", "web_search", "{}", provider_executed=True), parts.hang()],
        shows(ToolCall),
        partial=True,
        provider="anthropic",
    ),
    "in a provider's work that may stand alone": Phase(
        [parts.tool_call("s1", "web_search", "{}", provider_executed=True), parts.hang()],
        shows(ToolCall),
        partial=True,
        provider="openai",
    ),
    "stream done, no tool started": Phase(finish_when_stopped, shows(ToolCall), partial=True),
    "tools running, one settled": Phase([TEXT, *CALLS, parts.finish("tool_calls")], shows(ToolResult), partial=True),
    "a tool running, one not begun": Phase(
        [*reversed(CALLS), parts.finish("tool_calls")],
        lambda view: view.live is not None and any(getattr(block, "started", False) for block in view.live.blocks),
        partial=True,
        concurrency=1,
    ),
    "between the tools and the commit": Phase([TEXT, CALLS[0], parts.finish("tool_calls")], CommitStep, partial=False),
    "between the text and the commit": Phase([TEXT, parts.finish()], FinishTurn, partial=False),
    "between a length limit and the commit": Phase([TEXT, parts.finish("length")], FinishTurn, partial=True),
    "when the client was to be asked": Phase(
        [TEXT, parts.tool_call("c1", "ask", "{}"), parts.finish("tool_calls")], AwaitAction, partial=True
    ),
}


class Rows(NamedTuple):
    """What a turn left in the database, without the times and the names that no two chats share."""

    messages: list[tuple[Any, ...]]
    outcomes: list[str]
    status: str


async def read_rows(harness: AppHarness, chat: Chat) -> Rows:
    stored = await harness.load(chat)
    by_parent = {row.parent_id: row for row in stored.messages}
    columns = ("role", "partial", "reason", "visibility", "provider", "model", "response_id")
    messages: list[tuple[Any, ...]] = []
    row = by_parent.get(None)
    while row is not None:
        blocks = [without_times(block) for block in decode_blocks(row.blocks)]
        messages.append((*(getattr(row, column) for column in columns), blocks))
        row = by_parent.get(row.id)
    assert len(messages) == len(stored.messages)
    return Rows(messages, [row.outcome for row in stored.turns], str(stored.chat.status))


def without_times(block: Block) -> Block:
    """A reasoning that was ended has an end; when it was is the journal's business."""
    if not isinstance(block, Reasoning):
        return block
    assert block.ended_at is not None
    return replace(block, started_at=None, ended_at=None)


async def stop_live(harness: AppHarness, phase: Phase) -> Chat:
    """A worker answers and is stopped in this phase; it ends the turn itself."""
    chat = await harness.app.create_chat("Answer")

    async def stop_before(command: Command) -> None:
        if type(command) is phase.stop:
            await harness.store.execute(chat.id, Interrupt())

    running = await harness.start_worker(
        ScriptedModel([phase.script], provider=phase.provider),
        tools=[quick_one, slow_one],
        client_tools=[ask],
        store=WatchedStore(harness.store, before=stop_before),
        notifier=DroppingNotifier() if isinstance(phase.stop, type) else None,
        settings=make_settings(
            tool_concurrency=phase.concurrency, **(FAR_AWAY if isinstance(phase.stop, type) else {})
        ),
    )
    if not isinstance(phase.stop, type):
        await harness.wait_until(chat, phase.stop)
        await chat.interrupt()
    await harness.wait_for_end(chat)
    await harness.stop_worker(running)
    return chat


async def leave(harness: AppHarness, chat: Chat, journal: Sequence[Sequence[Part]], *, provider: str) -> str:
    """A worker that is alive takes the chat and writes this journal; its name."""
    worker_id = new_id("worker")
    await harness.store.beat(worker_id)
    (taken,) = await harness.store.acquire(worker_id, limit=1)
    assert taken.chat_id == chat.id
    dead = await DeadWorker(harness, chat, taken).start_attempt(provider=provider)
    for row in journal:
        await dead.write(*row)
    return worker_id


async def stop_the_dead(harness: AppHarness, chat: Chat, worker_id: str) -> None:
    await harness.store.retire(worker_id)
    await harness.store.execute(chat.id, Interrupt())


async def take_over_in_the_stop(harness: AppHarness, chat: Chat, worker_id: str) -> None:
    await harness.store.execute(chat.id, Interrupt())
    await harness.store.retire(worker_id)
    running = await harness.start_worker(ScriptedModel([]))
    await harness.wait_for_end(chat)
    await harness.stop_worker(running)


ENDINGS: dict[str, Callable[[AppHarness, Chat, str], Awaitable[None]]] = {
    "the stop ends it": stop_the_dead,
    "another worker ends it": take_over_in_the_stop,
}


@pytest.mark.parametrize("name", PHASES)
async def test_a_stop_leaves_the_same_rows_whether_its_worker_lives_or_not(harness: AppHarness, name: str) -> None:
    phase = PHASES[name]
    live = await stop_live(harness, phase)
    expected = await read_rows(harness, live)
    replies = [row for row in expected.messages if row[0] == "assistant"]
    assert [(row[1], row[2]) for row in replies] == ([] if phase.partial is None else [(phase.partial, "interrupted")])
    (attempt,) = (await harness.load(live)).attempts
    journal = [entry.parts for entry in await load_journal(harness.store, attempt.chat_id, attempt.id)]
    for ending, end in ENDINGS.items():
        twin = await harness.app.create_chat("Answer")
        worker_id = await leave(harness, twin, journal, provider=phase.provider)
        await end(harness, twin, worker_id)
        assert await read_rows(harness, twin) == expected, ending


@pytest.mark.parametrize("shown", [[], [parts.reasoning_delta("r", "Hm")], [TEXT]], ids=["nothing", "thinking", "text"])
async def test_a_stop_in_a_retry_wait_leaves_the_same_rows_whether_its_worker_lives_or_not(
    harness: AppHarness, shown: list[Part]
) -> None:
    clock = LongSleeps()
    running = await harness.start_worker(ScriptedModel([[*shown, FAILS]]), clock=clock)
    live = await harness.app.create_chat("Answer")
    await clock.waiting.wait()
    await live.interrupt()
    await harness.wait_for_end(live)
    await harness.stop_worker(running)
    clock = LongSleeps()
    dying = await harness.start_worker(ScriptedModel([[*shown, FAILS]]), clock=clock)
    twin = await harness.app.create_chat("Answer")
    await clock.waiting.wait()
    await harness.kill_worker(dying)
    await stop_the_dead(harness, twin, dying.worker.id)
    assert await read_rows(harness, twin) == await read_rows(harness, live)
