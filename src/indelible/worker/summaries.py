"""What a model writes besides replies: the title of a chat, and the summary that a requested compaction leaves.

A title is a convenience. It is generated beside the chat's first turn, by the model that replies, and delays nothing.
Until then the user's first words are the title (content/messages.py), and they stay if the model returns no usable one
or makes none, like the demo model. If the model fails, it is asked again beside the next turn. Thinking is not part of
a title: the answer is read like a reply (loop/prompt/compact.py).

A requested compaction is a turn that adds no reply and leaves a summary. The model is called and retried as for a
reply; readers see the wait. Its output is not streamed to readers, so there is no attempt and no journal: after a crash
it starts over (tests/worker/test_compaction_turns.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from indelible.clock import Clock
from indelible.concurrency.scope import CancelScope
from indelible.content import Message
from indelible.content.messages import find_first_words, tidy_title
from indelible.errors import ModelFailed
from indelible.logs import get_logger
from indelible.loop.attempt import ReplyLimits
from indelible.loop.host import Hooks, TurnEnd
from indelible.loop.prompt.compact import ask_once, summarise, to_transcript
from indelible.machine.commands import UpdateChat
from indelible.models.protocol import Model, traits_of
from indelible.models.retry import RetryPolicy, announce_retry
from indelible.store.payloads import ChatPatch
from indelible.store.queries.open_turn import OpenWork
from indelible.tools.output import cut_text
from indelible.worker.dependencies import RunLog, WorkerDependencies
from indelible.worker.turn_writer import TurnWriter

_log: Final = get_logger(__name__)
INSTRUCTION: Final = """\
You are given the beginning of a conversation. Give it a title of two to six words, in the language of the \
conversation, that its user will find it by. Answer with the title alone: no quotation marks, no full stop."""

_TRANSCRIPT_BYTES: Final = 4 * 1024
_SILENCE_TIMEOUT_S: Final = 30.0


async def make_title(
    model: Model, messages: Sequence[Message], *, scope: CancelScope, clock: Clock, limits: ReplyLimits, record: RunLog
) -> str | None:
    """A title for these messages; None if the model failed. The limits are those of a reply: a title has less time."""
    transcript = cut_text(to_transcript(messages), _TRANSCRIPT_BYTES).text
    limits = replace(limits, silence_timeout_s=_SILENCE_TIMEOUT_S, grace_s=0.0)
    record.begin_step(1)
    try:
        title = tidy_title(await ask_once(model, INSTRUCTION, transcript, scope=scope, clock=clock, limits=limits))
    except ModelFailed as failure:
        record.end("error", failure.message)
        return None
    return title or find_first_words(messages)


class Titles:
    """The titles that a worker's chats are being given. `may_begin` says whether another one may be begun."""

    def __init__(
        self, deps: WorkerDependencies, scope: CancelScope, *, worker_id: str, may_begin: Callable[[], bool]
    ) -> None:
        self._deps = deps
        self._scope = scope
        self._worker_id = worker_id
        self._may_begin = may_begin
        self._running: dict[str, asyncio.Task[None]] = {}

    def begin(self, group: asyncio.TaskGroup, work: OpenWork) -> None:
        """Generate a title beside the turn, if the chat has at most a provisional one and none is being generated."""
        if work.titled or not self._deps.settings.auto_titles or not self._may_begin() or work.chat_id in self._running:
            return
        titling = group.create_task(self._title(work), name=f"a title for {work.chat_id}")
        self._running[work.chat_id] = titling
        titling.add_done_callback(lambda _done: self._running.pop(work.chat_id))

    def cancel(self) -> None:
        for titling in self._running.values():
            titling.cancel()

    async def _title(self, work: OpenWork) -> None:
        """Give the chat a title. A failure is only logged: a chat works without a title."""
        try:
            title = await self._find_title(work)
            if title is not None:
                await self._deps.store.execute(work.chat_id, UpdateChat(only_untitled=True), ChatPatch(title=title))
        except Exception as error:
            _log.info("no title for %s: %r", work.chat_id, error)

    async def _find_title(self, work: OpenWork) -> str | None:
        deps, title = self._deps, None
        model = deps.find_model(work.model)
        if traits_of(model).makes_titles:
            with (
                CancelScope(self._scope) as scope,
                deps.record(work, kind="title", worker_id=self._worker_id) as record,
            ):
                limits = deps.limit_reply(model)
                title = await make_title(
                    model, work.messages, scope=scope, clock=deps.clock, limits=limits, record=record
                )
                record.end("completed")
        return find_first_words(work.messages) if title is None and not work.has_title else title


class TurnCompacted(TurnEnd, frozen=True, kw_only=True):
    """The end of a compaction. Without a summary there was nothing to leave out."""

    summary: Message | None


class Compaction:
    """One summary, however many tries it takes."""

    def __init__(
        self, deps: WorkerDependencies, model: Model, writer: TurnWriter, scope: CancelScope, policy: RetryPolicy
    ) -> None:
        self._deps = deps
        self._model = model
        self._writer = writer
        self._scope = scope
        self._policy = policy
        self._started_s = deps.clock.monotonic()
        self._failures = 0

    async def make(self, messages: Sequence[Message]) -> Message | None:
        """The summary, or None if nothing can be left out. Raises `ModelFailed` when the retries are exhausted."""
        while True:
            self._writer.log.begin_step(1)
            try:
                return await summarise(
                    self._model,
                    messages,
                    scope=self._scope,
                    clock=self._deps.clock,
                    context_limit=self._model.context_limit,
                    limits=self._deps.limit_reply(self._model),
                )
            except ModelFailed as failure:
                await self._wait_for_retry(failure)

    async def _wait_for_retry(self, failure: ModelFailed) -> None:
        clock = self._deps.clock
        self._failures += 1
        delay_s = self._policy.decide_retry(
            failed_attempts=self._failures,
            elapsed_s=clock.monotonic() - self._started_s,
            failure=failure,
            chance=self._deps.chance(),
        )
        if delay_s is None:
            raise failure
        event = announce_retry(failure, attempt=self._failures, delay_s=delay_s, now=clock.now())
        await self._writer.schedule_retry(event)
        await Hooks(self._scope, clock=clock, grace_s=0.0).call_cancellable(clock.sleep, delay_s)
