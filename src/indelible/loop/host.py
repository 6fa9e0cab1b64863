"""What a turn needs from its runner: one object, `TurnHost`, whose methods do nothing by default.

The loop knows no database and no readers. All its output goes to its host, and all further input comes
from there. Subclass `TurnHost` and override what you need; each method may be plain or async.

There are two kinds of methods, and cancellation treats them differently (hooks.py):

  * those that write (`publish`, `record`, `keep_file`, `persist_step`, `open_attempt`, `schedule_retry`,
    `keep_summary`, `forget_responses`) always run to their end, even if a stop or a shutdown arrives meanwhile: half a
    write is worse than none. An error that they raise ends the turn with `TurnFailed`; `Interrupted`, with
    `TurnInterrupted`; a `Lost`, with `TurnLeaseLost`;
  * those that return data (`prepare_messages`, `prepare_tools`, `reload_messages`) may be interrupted by a stop.

A part is either published or recorded, never both. `record` is for the two parts of a tool call, its start and
its result: a host with a ledger writes the ledger and the part together, so that after a crash it knows which
tool never started, which may have run, and which did (rule 1.3). By default a recorded part is simply published.

Must stay true (tests/loop/test_stop_everywhere.py, tests/tools/test_tool_run.py): each part reaches the host once; a
tool does not start before `record` of its start has returned. The host does not receive the last step of a turn:
`run` returns it in the turn's end (result.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence

from indelible.content import File, Message, Part, ToolResult, ToolSpec, ToolStarted
from indelible.loop.result import FinishedStep
from indelible.models.retry import RetryEvent
from indelible.tools.tool import ToolCallRecord
from indelible.tools.toolset import AnyTool

Messages = Sequence[Message]


class TurnHost:
    """See the module header. Every method is optional."""

    def publish(self, part: Part) -> Awaitable[None] | None:
        """A part has arrived. Called once per part, in order; a slow host slows the reading down."""

    def record(self, part: ToolStarted | ToolResult, call: ToolCallRecord) -> Awaitable[None] | None:  # noqa: ARG002
        """A tool is about to start, or has a result: save that, and publish the part.

        Several tools may be recorded at the same time, so that a ledger can commit them together.
        """
        return self.publish(part)

    def keep_file(self, file: File) -> Awaitable[File | str]:
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

    def keep_summary(self, summary: Message) -> Awaitable[None] | None:
        """Older messages were replaced by this summary, which follows them from now on."""

    def forget_responses(self) -> Awaitable[None] | None:
        """The provider may have lost its stored responses: chain to none of them again (rule 4.4)."""

    def prepare_messages(self, messages: list[Message]) -> Messages | Awaitable[Messages]:
        """Change the messages for the model, once per step."""
        return messages

    def prepare_tools(self, tools: list[ToolSpec]) -> Iterable[AnyTool] | Awaitable[Iterable[AnyTool]]:
        """Change the advertised tools, once per step. A tool or a typed function that is added can be called.

        The spec of a tool that nothing can run is a `TypeError`, before the model is asked.
        """
        return tools

    def reload_messages(self) -> Messages | Awaitable[Messages | None] | None:
        """The whole history, for a turn that leaves its response chain; None if it cannot be loaded."""
        return None

    def report_unsaved(self, error: BaseException) -> Awaitable[None] | None:
        """The save after an interrupt failed. The turn has ended nevertheless: the user asked for that."""
