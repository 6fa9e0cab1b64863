"""What a turn needs from its runner, and what it hands over: `TurnHost`, calling its methods, and the ends of a turn.

The loop knows no database and no readers. All its output goes to its host, and all further input comes
from there. Subclass `TurnHost` and override what you need; each method does nothing by default, and may be plain or
async.

There are two kinds of methods, and cancellation treats them differently:

  * those that write (`publish`, `record`, `keep_file`, `persist_step`, `open_attempt`, `schedule_retry`,
    `keep_summary`, `forget_responses`) always run to their end, even if a stop or a shutdown arrives meanwhile
    (`call_shielded`): half a write is worse than none. An error that they raise ends the turn with `TurnFailed`;
    `Interrupted`, with `TurnInterrupted`; a `Lost`, with `TurnLeaseLost`;
  * those that return data (`prepare_messages`, `prepare_tools`, `reload_messages`) may be interrupted by a stop at any
    moment (`call_cancellable`).

A part is either published or recorded, never both. `record` is for the two parts of a tool call, its start and
its result: a host with a ledger writes the ledger and the part together, so that after a crash it knows which
tool never started, which may have run, and which did (rule 1.3). By default a recorded part is simply published.

A turn has exactly one end, and each kind of end is a class of its own, so that a runner turns it into exactly one
command with one `match`. `step` is the last step, not saved yet: the end of a turn and its last step
belong in one transaction. After a shutdown or a lost lease there is none to save, because the next holder continues
from the journal.

    TurnCompleted       the model has answered, or the turn reached a limit (`reason`)
    TurnAwaitingClient  the client has to answer `calls` first
    TurnInterrupted     the user stopped it
    TurnFailed          the model failed for good, or the host raised `error`
    TurnShutDown        the process is shutting down: save nothing, another worker continues
    TurnLeaseLost       another worker holds the chat: write nothing

Saving the last step, with the one retry that a stop may require, is step.py.

Must stay true (tests/loop/test_stop_everywhere.py, tests/tools/test_tool_run.py): each part reaches the host once; a
tool does not start before `record` of its start has returned; a cancellation during a shielded call is raised after it.
The host does not receive the last step of a turn: `run` returns it in the turn's end.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from indelible import content
from indelible.clock import Clock
from indelible.concurrency.scope import CancelScope
from indelible.concurrency.tasks import GracefulTask, wait_uncancelled
from indelible.content.assemble import PartAssembler, conclude, to_messages
from indelible.models.retry import RetryEvent
from indelible.tools.tool import ToolCallRecord
from indelible.tools.toolset import AnyTool

Messages = Sequence[content.Message]


class TurnHost:
    """See the module header. Every method is optional."""

    def publish(self, part: content.Part) -> Awaitable[None] | None:
        """A part has arrived. Called once per part, in order; a slow host slows the reading down."""

    def record(self, part: content.ToolStarted | content.ToolResult, call: ToolCallRecord) -> Awaitable[None] | None:  # noqa: ARG002
        """A tool is about to start, or has a result: save that, and publish the part.

        Several tools may be recorded at the same time, so that a ledger can commit them together.
        """
        return self.publish(part)

    def keep_file(self, file: content.File) -> Awaitable[content.File | str]:
        """Store a file that a tool returned: give it back by reference (`file_id`), or say why it was not stored.

        Unless this is overridden, a tool's pictures and files are only described in its result.
        """
        raise TypeError(f"{type(self).__name__} keeps no files, such as {file.name}.")

    def persist_step(self, step: FinishedStep) -> Messages | Awaitable[Messages | None] | None:
        """Save a step that another step follows. Returned messages are added before the next model call.

        Raise `Interrupted` if the user has stopped the turn meanwhile: it then ends with this step unsaved.
        """

    def open_attempt(self, step: int, number: int) -> Awaitable[None] | None:
        """The model is about to be called, for the `number`-th time in this step."""

    def schedule_retry(self, event: RetryEvent) -> Awaitable[None] | None:
        """An attempt failed; another follows after a wait."""

    def keep_summary(self, summary: content.Message) -> Awaitable[None] | None:
        """Older messages were replaced by this summary, which follows them from now on."""

    def forget_responses(self) -> Awaitable[None] | None:
        """The provider may have lost its stored responses: chain to none of them again (rule 4.4)."""

    def prepare_messages(self, messages: list[content.Message]) -> Messages | Awaitable[Messages]:
        """Change the messages for the model, once per step."""
        return messages

    def prepare_tools(self, tools: list[content.ToolSpec]) -> Iterable[AnyTool] | Awaitable[Iterable[AnyTool]]:
        """Change the advertised tools, once per step. A tool or a typed function that is added can be called.

        The spec of a tool that nothing can run is a `TypeError`, before the model is asked.
        """
        return tools

    def reload_messages(self) -> Messages | Awaitable[Messages | None] | None:
        """The whole history, for a turn that leaves its response chain; None if it cannot be loaded."""
        return None

    def report_unsaved(self, error: BaseException) -> Awaitable[None] | None:
        """The save after an interrupt failed. The turn has ended nevertheless: the user asked for that."""


Hook = Callable[..., Any]
"""A method or function, plain or async."""


async def call_shielded(scope: CancelScope, hook: Hook, *arguments: Any) -> Any:
    """Call something that must complete. Returns its result, or raises its error."""
    answer = hook(*arguments)
    if not inspect.isawaitable(answer):
        return answer
    task = asyncio.create_task(_as_coroutine(answer))
    await wait_uncancelled(task, scope)
    return task.result()


class Hooks:
    """Calls on behalf of one turn, whose scope says whether it was stopped."""

    def __init__(self, scope: CancelScope, *, clock: Clock, grace_s: float) -> None:
        self._scope = scope
        self._clock = clock
        self._grace_s = grace_s

    async def call_shielded(self, hook: Hook, *arguments: Any) -> Any:
        """Call something that must complete. Returns its result, or raises its error."""
        return await call_shielded(self._scope, hook, *arguments)

    async def call_cancellable(self, hook: Hook, *arguments: Any) -> Any:
        """Call something that a stop may cancel; then the cause of the scope is raised."""
        self._scope.check()
        answer = hook(*arguments)
        if not inspect.isawaitable(answer):
            return answer
        name = getattr(hook, "__name__", "hook")
        task = GracefulTask(_as_coroutine(answer), name=name, grace_s=self._grace_s, clock=self._clock)
        forget = self._scope.on_cancel(task.cancel)
        try:
            await task.wait(self._scope)
        finally:
            forget()
        self._scope.check()
        return task.task.result()

    @property
    def cancelled(self) -> bool:
        return self._scope.cancelled


def _as_coroutine(answer: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    """Do not wrap a coroutine: an early cancellation of the task would leave it unawaited."""
    return answer if inspect.iscoroutine(answer) else _await(answer)


async def _await(answer: Awaitable[Any]) -> Any:
    return await answer


TurnReason = Literal["stop", "length", "content_filter", "max_steps", "stop_after", "client_tools"]


class FinishedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step, ready to be saved: `blocks == finalize(assemble(parts), reason, ended_at)`.

    `index` counts from 1 in the turn. `last` says that the turn ends with this step, `awaiting` names
    the calls that the client has to answer before it can continue. `reason` says why the step was interrupted, and
    `partial` that it has visible output: thinking alone is not a partial reply.
    `provider_response_id` is set only for a complete step that the provider was asked to store. `assembler` holds
    the model's stream: a stop before the step is saved concludes it again.
    """

    index: int
    blocks: list[content.Block]
    last: bool = False
    awaiting: list[content.ToolCall] = []
    partial: bool = False
    reason: content.PartialReason | None = None
    finish_reason: content.FinishReason | None = None
    usage: content.Usage | None = None
    context_limit: int | None = None
    provider: str | None = None
    model: str | None = None
    provider_response_id: str | None = None
    attempt: int = 1
    started_at: datetime | None = None
    first_part_s: float | None = None
    ended_at: datetime | None = None
    assembler: PartAssembler | None = None

    def messages(self) -> list[content.Message]:
        """The step as history holds it: [assistant], or [assistant, tool]."""
        return to_messages(
            self.blocks,
            partial=self.partial,
            reason=self.reason,
            provider=self.provider,
            model=self.model,
            response_id=self.provider_response_id,
        )

    def interrupt(self) -> FinishedStep:
        """The same step after a stop that came before its save: calls that will get no result are answered."""
        if self.assembler is None:
            return replace(self, reason="interrupted")
        concluded = conclude(self.assembler, "interrupted", self.ended_at)
        return replace(
            self,
            blocks=concluded.blocks,
            last=True,
            awaiting=[],
            partial=concluded.partial,
            reason=concluded.reason,
            provider_response_id=self.provider_response_id if concluded.whole else None,
        )


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended. `messages` are those it added, `steps` its steps, including the unsaved `step`."""

    messages: list[content.Message] = []
    steps: list[FinishedStep] = []
    step: FinishedStep | None = None

    @property
    def usage(self) -> content.Usage:
        """The tokens of all steps, as far as they are known."""
        return sum((step.usage for step in self.steps if step.usage is not None), content.Usage())


class TurnCompleted(TurnEnd, frozen=True, kw_only=True):
    reason: TurnReason


class TurnAwaitingClient(TurnEnd, frozen=True, kw_only=True):
    calls: list[content.ToolCall]
    reason: TurnReason = "client_tools"


class TurnInterrupted(TurnEnd, frozen=True, kw_only=True):
    """`tried`: one save has already failed because the stop came first. Only one more is tried."""

    tried: bool = False


class TurnFailed(TurnEnd, frozen=True, kw_only=True):
    error: Exception


class TurnShutDown(TurnEnd, frozen=True, kw_only=True):
    pass


class TurnLeaseLost(TurnEnd, frozen=True, kw_only=True):
    error: Exception
