"""One attempt: reading a model's stream, and forwarding its parts.

The reader runs in a task of its own. Only its reads may be cancelled; a publish that has begun is awaited, because a
part that is half published is neither kept nor lost. A stop cancels the pending read once, accepts its one result,
whatever that is, and closes the iterator. The scope names the cause; it is never inferred from that result.

A part is published first and then collected, so a saved step can never hold more than was
published. The silence guard costs one clock reading per part: a timer that finds that a
part arrived meanwhile rearms itself for the rest. Keep-alives rearm it too, but not forever, and a reply that does not
end is ended at its limit as if the model had reached its own (`length`).

Must stay true (tests/loop/test_stop_everywhere.py): collected parts == published parts, at every
await at which a stop may arrive. turn.py handles failed attempts.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from indelible.clock import Clock, Timer
from indelible.concurrency.scope import CancelScope, Cause
from indelible.concurrency.tasks import GracefulTask, wait_uncancelled
from indelible.content import File, Finish, KeepAlive, Part, StreamError, ToolResult, UsageUpdate, encode
from indelible.content.assemble import PartAssembler
from indelible.errors import Interrupted, ModelFailed, TestBroken
from indelible.logs import get_logger
from indelible.loop.normalize import Normalizer
from indelible.loop.thinking import SplitterState
from indelible.models.failures.classify import classify, silence, truncated
from indelible.models.failures.facts import trace_lineage
from indelible.models.protocol import Call, Model

_log: Final = get_logger(__name__)
_PARTS_PER_SAMPLE: Final = 16
_PARTS_BETWEEN_PAUSES: Final = 64
"""A model that never awaits must not starve other tasks, or a stop."""

_UNCOUNTED_CHARACTERS: Final = 64
"""What a picture, a result of the provider or another block counts beside its text: there may not be endlessly many."""

Publish = Callable[[Part], Awaitable[None] | None]


class ReplyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long a model may send nothing, or only keep-alives, how much it may send, and how long a stop may take."""

    silence_timeout_s: float
    keep_alive_timeout_s: float
    max_characters: int
    grace_s: float


class AdoptedAttempt:
    """One model call that another worker read to its finish: its parts are all that is known of it."""

    started_at: datetime | None = None
    first_part_s: float | None = None
    thinking_state: SplitterState | None = None

    def __init__(self, parts: Iterable[Part]) -> None:
        self.assembler = PartAssembler()
        for part in parts:
            self.assembler.add(part)


class Attempt:
    """One model call. `assembler` holds its published parts, however it ends."""

    def __init__(
        self,
        model: Model,
        call: Call,
        *,
        scope: CancelScope,
        normalizer: Normalizer,
        publish: Publish,
        limits: ReplyLimits,
        clock: Clock,
    ) -> None:
        self.assembler = PartAssembler()
        self.started_at: Final[datetime] = clock.now()
        self.first_part_s: float | None = None
        self.waits_s: list[float] = []
        self._model = model
        self._call = call
        self._turn_scope = scope
        self._normalizer = normalizer
        self._publish = publish
        self._limits = limits
        self._characters_left = limits.max_characters
        self._clock = clock
        self._reading = False
        self._stopping = False
        self._opened_s = self._read_since_s = self._last_part_s = clock.monotonic()
        self._silence: Timer | None = None
        self._answer: BaseException | StreamError | None = None

    @property
    def thinking_state(self) -> SplitterState | None:
        """Whether the text broke off inside thinking: an attempt that continues it starts inside thinking."""
        return self._normalizer.thinking_state

    async def run(self) -> None:
        """Read to the finish. Raises `ModelFailed`, the error of the turn's scope, or what `publish` raised."""
        with CancelScope(self._turn_scope) as self._scope:
            self._task = GracefulTask(
                self._read(),
                name=f"reading {self._model.provider}:{self._model.name}",
                grace_s=self._limits.grace_s,
                clock=self._clock,
            )
            forget = self._scope.on_cancel(self._stop)
            self._silence = self._clock.call_later(self._limits.silence_timeout_s, self._check_silence)
            try:
                await self._task.wait(self._turn_scope)
            except asyncio.CancelledError:
                await self._forward_rest()
                raise
            finally:
                self._silence.cancel()
                forget()
            if not self._task.abandoned:
                self._raise_error()
            cause = self._scope.cause
            await self._forward_rest()
            self._turn_scope.check()
            if self.assembler.finish is None:
                raise self._read_failure(cause)

    def _raise_error(self) -> None:
        """Raise the reader's error. A part that was refused because of a stop is none: held parts are still due."""
        try:
            self._task.task.result()
        except Interrupted:
            if not self._turn_scope.interrupted:
                raise

    async def _forward_rest(self) -> None:
        """Publish the held parts, unless another worker holds the chat."""
        held_back = () if self._scope.cause is Cause.LEASE_LOST else self._normalizer.release()
        if held_back:
            forwarding = asyncio.ensure_future(self._forward_each(held_back))
            await wait_uncancelled(forwarding, self._turn_scope)
            forwarding.result()

    def _read_failure(self, cause: Cause | None) -> ModelFailed:
        provider = self._model.provider
        if cause is Cause.SILENT:
            return silence(provider, self._limits.silence_timeout_s)
        if self._answer is None:
            return truncated(provider)
        is_chained = self._call.options.previous_response_id is not None
        failure = classify(self._answer, provider=provider, now=self._clock.now(), is_chained=is_chained)
        if isinstance(self._answer, BaseException) and failure not in trace_lineage(self._answer):
            failure.__cause__ = self._answer
            if failure.kind == "unknown":
                _log.error("the model %s:%s raised an error", provider, self._model.name, exc_info=self._answer)
        return failure

    # --- in the reader's task ---

    async def _read(self) -> None:
        stream: AsyncIterator[Part] | None = None
        try:
            stream = None if self._stopping else await self._open()
            if stream is not None:
                await self._forward_all(stream)
        finally:
            self._task.start_deadline()
            await self._close(stream)

    async def _open(self) -> AsyncIterator[Part] | None:
        self._read_since_s = self._clock.monotonic()
        self._reading = True
        try:
            opened: Any = self._model.stream(self._call)
            if inspect.isawaitable(opened):
                opened = await opened
            stream: AsyncIterator[Part] = aiter(opened)
        except TestBroken:
            raise
        except BaseException as error:  # a model may raise anything, and it ends nothing but its turn
            self._answer = error
            return None
        finally:
            self._reading = False
        return stream

    async def _forward_all(self, stream: AsyncIterator[Part]) -> None:
        """The hot path: one iteration per part."""
        read = stream.__anext__
        feed = self._normalizer.feed
        monotonic = self._clock.monotonic
        assembler = self.assembler
        blocks: set[str] = set()
        handed_on = 0
        while assembler.finish is None and not self._stopping:
            self._read_since_s = monotonic()
            self._reading = True
            try:
                part = await read()
                self._reading = False
                if not self._may_forward():
                    return
                ready = self._note_alive() if type(part) is KeepAlive else feed(part)
            except StopAsyncIteration:
                return
            except TestBroken:
                raise
            except BaseException as error:
                self._answer = error
                return
            finally:
                self._reading = False
            if ready:
                self._last_part_s = self._read_since_s
            if self.first_part_s is None and ready and type(part) is not UsageUpdate:
                self.first_part_s = monotonic() - self._opened_s
            elif handed_on % _PARTS_PER_SAMPLE == 1:
                self.waits_s.append(monotonic() - self._read_since_s)
            if type(part) is StreamError:
                self._answer = part
                return
            await self._forward_each(ready)
            delta = getattr(part, "delta", None)
            self._characters_left -= _count_characters(part) if delta is None else len(delta)
            if delta is not None and (id_ := getattr(part, "id", "")) not in blocks:
                self._characters_left -= _UNCOUNTED_CHARACTERS if blocks else 0
                blocks.add(id_)
            if self._characters_left < 0 and assembler.finish is None:
                await self._forward_each(feed(Finish("length")))
            handed_on += 1
            if not handed_on % _PARTS_BETWEEN_PAUSES:
                await asyncio.sleep(0)

    def _note_alive(self) -> tuple[Part, ...]:
        """A model may think for a long time, but not forever."""
        if self._clock.monotonic() - self._last_part_s > self._limits.keep_alive_timeout_s:
            self._scope.cancel(Cause.SILENT)
        return ()

    async def _forward_each(self, parts: Sequence[Part]) -> None:
        for part in parts:
            published = self._publish(part)
            if published is not None and inspect.isawaitable(published):
                await published
            self.assembler.add(part)

    async def _close(self, stream: Any) -> None:
        close = getattr(stream, "aclose", None)
        if close is None:
            return
        try:
            await close()
        except TestBroken:
            raise
        except BaseException as error:
            _log.debug("closing %s failed: %r", self._model.provider, error)

    # --- cancellation ---

    def _stop(self) -> None:
        self._stopping = True
        if asyncio.current_task() is self._task.task:
            asyncio.get_running_loop().call_soon(self._cut_read)
        else:
            self._cut_read()

    def _cut_read(self) -> None:
        if self._reading:
            self._task.cancel()

    def _may_forward(self) -> bool:
        """Whether a part may be published. The result of a cancelled read may, and uses up its grace time."""
        if self._stopping:
            self._task.stop_deadline()
            return not self._task.abandoned and self._scope.cause is not Cause.LEASE_LOST
        return True

    def _check_silence(self) -> None:
        rest_s = self._limits.silence_timeout_s
        if self._reading:
            rest_s -= self._clock.monotonic() - self._read_since_s
        if rest_s <= 0:
            self._scope.cancel(Cause.SILENT)
        else:
            self._silence = self._clock.call_later(rest_s, self._check_silence)


def _count_characters(part: Part) -> int:
    """What a part that is no delta takes of the reply's limit. What a provider's own tools return is not the reply."""
    return _UNCOUNTED_CHARACTERS if isinstance(part, File | ToolResult) else len(encode(part))
