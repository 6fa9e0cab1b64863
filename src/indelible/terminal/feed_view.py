"""Following a chat, from its feed to a stage that shows it, until it rests or Ctrl-C stops it.

A follower has a position in the feed and continues from there, each time until nothing is running. So everything is
shown once, whoever wrote it, and a reply that a crash interrupted is shown as one reply. The first time it starts with
a snapshot: the last turns, and then the running reply so far. A running reply is shown part by part; the message that
it becomes has the same content, so only what is new in it is shown: the results of interrupted tool calls. The stage is
screen.py in a terminal, plain.py in a pipe.

The first Ctrl-C during a reply stops it, a durable command like any other: the worker saves the reply so far. The
second one does not wait until it has stopped. Ctrl-C arrives as a signal, which `receive_ctrl_c` turns into a callback
of the event loop: a signal handler would run between any two bytecodes, where nothing can be stopped safely.

Must stay true (tests/terminal/test_feed_view.py): wherever a reader joins, it is shown the same.
(tests/terminal/test_chat.py, tests/terminal/test_ask.py): after a stop the partial reply is saved; a second Ctrl-C
leaves, and the stop holds; it leaves even if the server that should store the stop does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from indelible import content
from indelible.api.events import BUSY, FeedEvent
from indelible.api.shapes import Accepted, LiveBlocks
from indelible.app.app import User
from indelible.app.chat import Chat
from indelible.clock import Clock
from indelible.feed import Cursors

_SHOWN_TURNS: Final = 3
_CONTINUED_AFTER: Final = frozenset({"crashed", "handed_over", "failed"})
_JOINED: Final = "joined"
"""The id of text that began before we joined: a snapshot does not have the id under which it continues."""
_CLIENT_LOG: Final = logging.getLogger("indelible.client")
_UNSENT_STOP_S: Final = 1.0
"""How long the second press waits for the stop to be stored: a server may be down."""


class Stage:
    """Where a chat is shown. Each has what it needs of this."""

    def show(self, part: content.Part) -> None:
        """A part of the reply."""

    def begin_attempt(self) -> None:
        """The next step of the reply begins, or another attempt at the same one."""

    def end_attempt(self, *, cut: bool) -> None:
        """What was shown of it stays. With `cut`, the next attempt continues in the middle of its last text."""

    def drop_attempt(self) -> None:
        """The attempt failed before it wrote anything, and is retried."""

    def quote(self, text: str) -> None:
        """A message of the user that is not on the screen yet."""

    def note(self, text: str) -> None:
        """A notice that stays."""

    def announce(self, text: str) -> None:
        """A notice that disappears when the reply continues."""


class _Snapshot(msgspec.Struct):
    """The fields used of a snapshot event."""

    status: str
    messages: list[content.Message]
    has_more: bool
    live: LiveBlocks | None
    retry: Any


class _MessageEvent(msgspec.Struct):
    """The fields used of a message event."""

    message: content.Message
    attempt: str | None
    queued: str | None


class FeedView:
    """One chat, and the position up to which it was shown. `status` is the chat's at that position."""

    def __init__(self, chat: Chat, *, clock: Clock, after: str | None = None, shown_turns: int = _SHOWN_TURNS) -> None:
        self.chat = chat
        self.status = "idle"
        self._clock = clock
        self._cursor = after
        self._shown_turns = shown_turns
        self._typed: set[str | None] = set()
        self._answered: set[str] = set()
        self._started: set[str] | None = None

    async def follow(self, stage: Stage, sent: Accepted | None = None) -> None:
        """Show what is new, until nothing is running; with `sent`, at least until that is answered."""
        with _announce_outages(stage):
            await self._follow(stage, sent)

    async def _follow(self, stage: Stage, sent: Accepted | None) -> None:
        enough_seq = 0
        cursors = Cursors(self.chat.id)
        if sent is not None:
            begun = cursors.read(sent.cursor)
            enough_seq = 0 if begun is None else begun.seq
            self._typed = {sent.queued, sent.message} - {None}
        while True:
            async with aclosing(self.chat.events(after=self._cursor)) as events:
                async for event in events:
                    self._cursor = event.cursor or self._cursor
                    if event.kind == "resync":
                        break
                    self._apply(event, stage)
                    if event.kind == "end" and event.data["reason"] != "slow":
                        return
                    position = cursors.read(self._cursor or "")
                    if self.status not in BUSY and position is not None and position.seq >= enough_seq:
                        return

    def _apply(self, event: FeedEvent, stage: Stage) -> None:
        match event.kind:
            case "snapshot":
                self._show_snapshot(msgspec.json.decode(event.json, type=_Snapshot), stage)
            case "message":
                self._show_message(msgspec.json.decode(event.json, type=_MessageEvent), stage)
            case "attempt":
                self._begin_attempt(stage)
            case "part":
                for part in event.parts:
                    self._show_part(part, stage)
            case "reset":
                stage.drop_attempt()
            case "retry":
                self._announce_retry(event.data, stage)
            case "error" if event.data.get("detail"):
                stage.note(f"{event.data.get('provider') or 'The provider'} says: {event.data['detail']}")
            case "status":
                self.status = event.data["status"]
            case "end" if event.data["reason"] == "deleted":
                stage.note("The chat was deleted.")
            case _:
                pass

    # --- joining ---

    def _show_snapshot(self, snapshot: _Snapshot, stage: Stage) -> None:
        self.status = snapshot.status
        shown = _get_last_turns(snapshot.messages, self._shown_turns)
        if len(shown) < len(snapshot.messages) or snapshot.has_more:
            stage.note("Earlier messages are kept, and not shown here.")
        for message in shown:
            if message.role == "assistant":
                self._begin_attempt(stage)
                is_interrupted = _is_continued(message)
                for part in to_parts(message.blocks, is_open=is_interrupted):
                    self._show_part(part, stage)
                if message.reason == "length":
                    stage.show(content.Finish(reason="length"))
                stage.end_attempt(cut=is_interrupted)
            else:
                self._show_rest(message, stage)
        if snapshot.live is not None:
            self._begin_attempt(stage)
            for part in to_parts(snapshot.live.blocks, is_open=True):
                self._show_part(part, stage)
            self._started = set()
        if snapshot.retry is not None:
            self._announce_retry(snapshot.retry, stage)

    # --- what happens ---

    def _begin_attempt(self, stage: Stage) -> None:
        self._answered.clear()
        self._started = None
        stage.begin_attempt()

    def _show_part(self, part: content.Part, stage: Stage) -> None:
        if isinstance(part, content.ToolResult):
            self._answered.add(part.call_id)
        stage.show(self._connect(part))

    def _connect(self, part: content.Part) -> content.Part:
        """Text that continues without a start since we joined started before: it continues where the snapshot ends."""
        if self._started is None:
            return part
        if isinstance(part, content.TextStart | content.ReasoningStart):
            self._started.add(part.id)
        elif (
            isinstance(part, content.TextDelta | content.TextEnd | content.ReasoningDelta | content.ReasoningEnd)
            and part.id not in self._started
        ):
            return msgspec.structs.replace(part, id=_JOINED)
        return part

    def _show_message(self, arrived: _MessageEvent, stage: Stage) -> None:
        message = arrived.message
        if arrived.attempt is not None:
            stage.end_attempt(cut=_is_continued(message))
        if message.role != "assistant" and not self._typed & {message.id, arrived.queued}:
            self._show_rest(message, stage)

    def _show_rest(self, message: content.Message, stage: Stage) -> None:
        """Show a message that no model wrote."""
        if message.role == "user":
            stage.quote(describe_blocks(message.blocks))
        elif message.role == "notice":
            stage.note(describe_blocks(message.blocks))
        for block in message.blocks:
            if isinstance(block, content.ToolResult) and block.call_id not in self._answered:
                stage.show(block)

    def _announce_retry(self, retry: dict[str, Any], stage: Stage) -> None:
        if retry.get("attempt") is not None:
            stage.drop_attempt()
        again_at = msgspec.convert(retry["retrying_at"], datetime)
        wait_s = max(0.0, (again_at - self._clock.now()).total_seconds())
        stage.announce(f"{retry['message']} Trying again in {wait_s:.0f} s.")


@dataclass(slots=True)
class ChatSetup:
    """What a new chat gets, or a resumed one is given: None is the default, or what the chat has."""

    model: str | None = None
    system: str | None = None

    async def create_chat(self, user: User, *, clock: Clock) -> FeedView:
        """The view of a new chat, of which nothing has been shown."""
        chat = await user.create_chat(model=self.model, system=self.system)
        return FeedView(chat, clock=clock, after="start")

    async def apply_to(self, chat: Chat) -> None:
        if self.model is not None:
            await chat.update(model=self.model)
        if self.system is not None:
            await chat.update(system=self.system)


def to_parts(blocks: Sequence[content.Block], *, is_open: bool = False) -> Iterator[content.Part]:
    """Parts that give these blocks; with `is_open` the last one has not ended."""
    for number, block in enumerate(blocks, start=1):
        has_ended = not is_open or number < len(blocks)
        match block:
            case content.Text():
                yield content.TextStart(id=_JOINED)
                yield content.TextDelta(id=_JOINED, delta=block.text)
                if has_ended:
                    yield content.TextEnd(id=_JOINED)
            case content.Reasoning():
                yield content.ReasoningStart(id=_JOINED)
                yield content.ReasoningDelta(id=_JOINED, delta=block.text)
                if has_ended:
                    yield content.ReasoningEnd(id=_JOINED)
            case _:
                yield block


def describe_blocks(blocks: Sequence[content.Block]) -> str:
    """The user's message as text; a file is shown by its name."""
    texts = [block.text for block in blocks if isinstance(block, content.Text)]
    files = [f"[{block.name or block.media_type}]" for block in blocks if isinstance(block, content.File)]
    return "\n".join((*texts, *files))


def _get_last_turns(messages: Sequence[content.Message], count: int) -> Sequence[content.Message]:
    starts = [number for number, message in enumerate(messages) if message.role == "user"]
    return messages[starts[-count] :] if len(starts) >= count else messages


def _is_continued(message: content.Message) -> bool:
    """Whether the model's next text continues the text that this message ends with."""
    if (
        not message.partial
        or message.reason not in _CONTINUED_AFTER
        or not isinstance(message.blocks[-1], content.Text)
    ):
        return False
    return not any(isinstance(block, content.ToolCall) and not block.provider_executed for block in message.blocks)


class _Announcer(logging.Handler):
    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def emit(self, record: logging.LogRecord) -> None:
        self._stage.announce(record.getMessage())


@contextmanager
def _announce_outages(stage: Stage) -> Iterator[None]:
    """A client whose server is away says so in its log, and goes on trying."""
    announcer, before = _Announcer(stage), _CLIENT_LOG.level
    _CLIENT_LOG.addHandler(announcer)
    _CLIENT_LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        _CLIENT_LOG.removeHandler(announcer)
        _CLIENT_LOG.setLevel(before)


# --- Ctrl-C ---


class Presses:
    """Ctrl-C during one reply: the first press, and the second."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def add(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


async def follow_until_stopped(follow: Coroutine[Any, Any, None], chat: Chat, presses: Presses) -> bool:
    """Follow a reply to its end; the first press stops it. False if the second one came before the end."""
    following = asyncio.create_task(follow)
    stopping = asyncio.create_task(_stop(chat, presses))
    leaving = asyncio.create_task(presses.second.wait())
    tasks = {following, stopping, leaving}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            await asyncio.wait({stopping}, timeout=_UNSENT_STOP_S)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    if not following.cancelled():
        following.result()
        return True
    if not stopping.cancelled() and leaving.cancelled():
        stopping.result()
    return False


async def _stop(chat: Chat, presses: Presses) -> None:
    await presses.first.wait()
    await chat.interrupt(wait=False)
    await presses.second.wait()


@contextmanager
def receive_ctrl_c(react: Callable[[], None]) -> Iterator[None]:
    """During the block SIGINT calls `react` in the event loop, and does nothing else."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, react)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
