"""From the parts of a stream to the blocks of a message.

`assemble` returns the raw blocks: exactly what has arrived. `finalize` turns them into blocks that can
be kept in a history: it ends open reasoning, drops empty blocks, and answers every open call.
`conclude` decides the rest: whether the reply is partial, and why. A saved step is always

    step.blocks == finalize(assemble(parts), reason, at)

whether the live worker saves it or another process that finds the parts in the journal after a crash. Both call
`conclude`, a pure function of the parts and of the reason for which the attempt ended, so the death of a worker cannot
change a reply. Because both need it, `conclude` is here, below the store, and not in the loop.

A reply is incomplete if its stream never finished, or was ended by its length limit or by the provider's content
filter, or if it was ended (`reason`) while one of its local calls had no result or only the result of a tool that was
itself stopped (`ToolResult.interrupted`): the turn is then not done, and Continue makes sense. An incomplete reply is
partial if any of it is visible; reasoning does not count as visible (S62).

Blocks are in stream order. Results of local tools come after them, in the order of their calls, whenever they settled;
results of provider-executed tools stay in place. `tool_started` only marks its call, so that `finalize` never reports a
started call as not run (P5). `tool_progress` is kept with its call while the tool runs, and with its result afterwards;
if the tool was interrupted, the result tells the model how far the tool had come. `usage_update` only counts.
`warning`, `error` and `keep_alive` leave no trace. Neighbouring deltas of one block may be merged without changing the
outcome: the journal does.

Must stay true (tests/content/test_assemble.py, tests/loop/test_stop_everywhere.py): the equation above at
every prefix of every stream; every local call has exactly one result after `finalize` with a reason.
tests/worker/test_same_journal.py ends the same journal live and after a crash and compares the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, NamedTuple

from msgspec.structs import replace

from indelible import content

UNANSWERED: Final[dict[content.PartialReason, str]] = {
    "interrupted": "Interrupted: the user stopped the reply before this call was run.",
    "crashed": "Not run: the server stopped before this call was run.",
    "handed_over": "Not run: the server was restarted before this call was run.",
    "failed": "Not run: the reply broke off before this call was run.",
    "edited": "Not run: the conversation was edited before this call was run.",
    "length": "Not run: the reply reached its length limit before it was complete.",
    "content_filter": "Not run: the provider's content filter ended the reply.",
    "max_steps": "Not run: the reply reached the maximum number of steps.",
}
"""The result that the model reads for a call that was never started."""

OUTCOME_UNKNOWN: Final = (
    "Outcome unknown: this call was started, but its result was lost. It may or may not have taken effect."
)
"""The result that the model reads for a call that was started and never settled."""


def answer_unrun(call: content.ToolCall, reason: content.ResultReason, output: str) -> content.ToolResult:
    """The result of a call that was never started; `output` tells the model."""
    return content.ToolResult(call_id=call.id, name=call.name, output=output, outcome="not_run", reason=reason)


def lose_result(call: content.ToolCall) -> content.ToolResult:
    """The result of a call that was started and never settled."""
    return content.ToolResult(call_id=call.id, name=call.name, output=OUTCOME_UNKNOWN, outcome="unknown", reason="lost")


PROGRESS_MAX_BYTES: Final = 16 * 1024
_LEFT_OUT: Final = "…"


def append_progress(output: str, progress: str) -> str:
    """The result of an interrupted call, with how far the tool had come."""
    return f"{output}\n\nIts progress until then:\n{progress}" if progress else output


class _OpenText:
    __slots__ = ("chunks", "metadata")

    def __init__(self) -> None:
        self.chunks: list[str] = []
        self.metadata: content.Metadata | None = None

    def build(self) -> content.Text:
        return content.Text(text="".join(self.chunks), metadata=self.metadata)


class _OpenReasoning:
    __slots__ = ("chunks", "ended_at", "metadata", "signature", "started_at")

    def __init__(self) -> None:
        self.chunks: list[str] = []
        self.signature: str | None = None
        self.metadata: content.Metadata | None = None
        self.started_at: datetime | None = None
        self.ended_at: datetime | None = None

    def note(self, part: content.ReasoningStart | content.ReasoningDelta | content.ReasoningEnd) -> None:
        """Provider metadata is replaced only by non-empty metadata."""
        self.signature = part.signature or self.signature
        self.metadata = part.metadata or self.metadata

    def build(self) -> content.Reasoning:
        return content.Reasoning(
            text="".join(self.chunks),
            signature=self.signature,
            started_at=self.started_at,
            ended_at=self.ended_at,
            metadata=self.metadata,
        )


class _OpenCall:
    __slots__ = ("chunks", "closed", "complete", "progress", "start", "started")

    def __init__(self, start: content.ToolInputStart) -> None:
        self.start = start
        self.chunks: list[str] = []
        self.closed = False
        self.started = False
        self.progress = ""
        self.complete: content.ToolCall | None = None

    def build(self) -> content.ToolCall:
        call = self.complete or content.ToolCall(
            id=self.start.id,
            name=self.start.name,
            arguments="".join(self.chunks),
            provider_executed=self.start.provider_executed,
            standalone=self.start.standalone,
        )
        return replace(call, started=self.started, progress=self.progress) if self.started or self.progress else call

    def note_progress(self, message: str) -> None:
        progress = f"{self.progress}\n{message}" if self.progress else message
        if len(progress) * 4 > PROGRESS_MAX_BYTES and len(data := progress.encode()) > PROGRESS_MAX_BYTES:
            kept = data[len(data) - PROGRESS_MAX_BYTES + len(_LEFT_OUT.encode()) :].decode(errors="ignore")
            progress = _LEFT_OUT + kept
        self.progress = progress


class PartAssembler:
    """Folds parts one by one, as they arrive."""

    def __init__(self) -> None:
        self.finish: content.Finish | None = None
        self._counted: content.Usage | None = None
        self._order: list[_OpenText | _OpenReasoning | _OpenCall | content.Block] = []
        self._texts: dict[str, _OpenText] = {}
        self._reasonings: dict[str, _OpenReasoning] = {}
        self._calls: dict[str, _OpenCall] = {}
        self._results: dict[str, content.ToolResult] = {}

    def add(self, part: content.Part) -> None:
        self._ADD[type(part)](self, part)

    # --- what has arrived ---

    @property
    def usage(self) -> content.Usage | None:
        """The tokens of the call, as far as the provider has reported them; None: unknown."""
        return (self.finish.usage if self.finish is not None else None) or self._counted

    def blocks(self) -> list[content.Block]:
        """The raw blocks so far."""
        streamed = [piece if isinstance(piece, content.Value) else piece.build() for piece in self._order]
        calls = [block.id for block in streamed if isinstance(block, content.ToolCall)]
        answered = [self._results[call_id] for call_id in calls if call_id in self._results]
        orphans = [result for call_id, result in self._results.items() if call_id not in calls]
        return [*streamed, *answered, *orphans]

    def local_calls(self) -> list[content.ToolCall]:
        """The calls that Indelible or its client must answer, in order."""
        calls = [call.build() for call in self._calls.values()]
        return [call for call in calls if not call.provider_executed]

    def is_whole(self, call: content.ToolCall) -> bool:
        """Whether the call's arguments are complete. A truncated call is never executed."""
        return self._calls[call.id].closed

    def has_result(self, call: content.ToolCall) -> bool:
        return call.id in self._results

    def result_of(self, call: content.ToolCall) -> content.ToolResult | None:
        return self._results.get(call.id)

    def has_unfinished_call(self) -> bool:
        """Whether a local call has no result yet, or only that of a stopped tool."""
        results = map(self.result_of, self.local_calls())
        return any(result is None or result.interrupted for result in results)

    # --- one method per kind of part ---

    def _text_start(self, part: content.TextStart) -> None:
        self._open_text(part.id)

    def _text_delta(self, part: content.TextDelta) -> None:
        text = self._texts.get(part.id)
        if text is None:
            text = self._open_text(part.id)
        text.chunks.append(part.delta)

    def _text_end(self, part: content.TextEnd) -> None:
        text = self._open_text(part.id)
        text.metadata = part.metadata or text.metadata
        del self._texts[part.id]

    def _open_text(self, id_: str) -> _OpenText:
        text = self._texts.get(id_)
        if text is None:
            text = self._texts[id_] = _OpenText()
            self._order.append(text)
        return text

    def _reasoning_start(self, part: content.ReasoningStart) -> None:
        reasoning = self._open_reasoning(part.id)
        reasoning.started_at = reasoning.started_at or part.at
        reasoning.note(part)

    def _reasoning_delta(self, part: content.ReasoningDelta) -> None:
        reasoning = self._open_reasoning(part.id)
        reasoning.chunks.append(part.delta)
        reasoning.note(part)

    def _reasoning_end(self, part: content.ReasoningEnd) -> None:
        reasoning = self._open_reasoning(part.id)
        reasoning.ended_at = part.at
        reasoning.note(part)
        del self._reasonings[part.id]

    def _open_reasoning(self, id_: str) -> _OpenReasoning:
        reasoning = self._reasonings.get(id_)
        if reasoning is None:
            reasoning = self._reasonings[id_] = _OpenReasoning()
            self._order.append(reasoning)
        return reasoning

    def _tool_input_start(self, part: content.ToolInputStart) -> None:
        call = self._open_call(part.id)
        if not call.start.name:
            call.start = part

    def _tool_input_delta(self, part: content.ToolInputDelta) -> None:
        self._open_call(part.id).chunks.append(part.delta)

    def _tool_input_end(self, part: content.ToolInputEnd) -> None:
        self._open_call(part.id).closed = True

    def _tool_call(self, part: content.ToolCall) -> None:
        call = self._open_call(part.id)
        call.complete = part
        call.closed = True

    def _open_call(self, id_: str) -> _OpenCall:
        call = self._calls.get(id_)
        if call is None:
            call = self._calls[id_] = _OpenCall(content.ToolInputStart(id=id_, name=""))
            self._order.append(call)
        return call

    def _usage_update(self, part: content.UsageUpdate) -> None:
        self._counted = part.usage

    def _tool_started(self, part: content.ToolStarted) -> None:
        if part.call_id in self._calls:
            self._calls[part.call_id].started = True

    def _tool_progress(self, part: content.ToolProgress) -> None:
        if part.call_id in self._calls:
            self._calls[part.call_id].note_progress(part.message)

    def _tool_result(self, part: content.ToolResult) -> None:
        if part.provider_executed:
            self._order.append(part)
        else:
            self._results.setdefault(part.call_id, part)

    def _whole(self, part: content.Source | content.File) -> None:
        self._order.append(part)

    def _finish(self, part: content.Finish) -> None:
        self.finish = part

    def _leave_no_trace(self, part: content.Part) -> None:
        pass

    _ADD: ClassVar[dict[type, Callable[[PartAssembler, Any], None]]] = {
        content.TextStart: _text_start,
        content.TextDelta: _text_delta,
        content.TextEnd: _text_end,
        content.ReasoningStart: _reasoning_start,
        content.ReasoningDelta: _reasoning_delta,
        content.ReasoningEnd: _reasoning_end,
        content.ToolInputStart: _tool_input_start,
        content.ToolInputDelta: _tool_input_delta,
        content.ToolInputEnd: _tool_input_end,
        content.ToolCall: _tool_call,
        content.ToolResult: _tool_result,
        content.Source: _whole,
        content.File: _whole,
        content.Finish: _finish,
        content.ToolStarted: _tool_started,
        content.ToolProgress: _tool_progress,
        content.UsageUpdate: _usage_update,
        content.StreamWarning: _leave_no_trace,
        content.StreamError: _leave_no_trace,
        content.KeepAlive: _leave_no_trace,
    }


def assemble(parts: Iterable[content.Part]) -> list[content.Block]:
    """The raw blocks of these parts: open ends stay open."""
    assembler = PartAssembler()
    for part in parts:
        assembler.add(part)
    return assembler.blocks()


def finalize(
    blocks: Sequence[content.Block], reason: content.PartialReason | None, at: datetime | None
) -> list[content.Block]:
    """The blocks, ready to be saved: `reason` says why they were interrupted (None: they were not), `at` when.

    A complete step may leave calls open, for the client to answer; an interrupted one may not. A
    provider's own call without its result is kept only where that provider accepts it.
    """
    cut = reason is not None
    answers = {block.call_id: block for block in blocks if isinstance(block, content.ToolResult)}
    streamed: list[content.Block] = []
    started: set[str] = set()
    progress: dict[str, str] = {}
    for block in blocks:
        match block:
            case content.Text(text="", metadata=None):
                continue
            case content.Reasoning(text="") if not block.signed:
                continue
            case content.Reasoning(ended_at=None):
                streamed.append(replace(block, ended_at=at))
            case content.ToolCall(provider_executed=True) if cut and not block.standalone and block.id not in answers:
                continue
            case content.ToolResult(provider_executed=False):
                continue
            case content.ToolCall(started=True):
                started.add(block.id)
                progress[block.id] = block.progress
                streamed.append(replace(block, started=False, progress=""))
            case _:
                streamed.append(block)
    for call_id, seen in progress.items():
        if seen and call_id in answers:
            answers[call_id] = _with_progress(answers[call_id], seen)
    if reason is not None:
        for call in streamed:
            if isinstance(call, content.ToolCall) and not call.provider_executed and call.id not in answers:
                answer = lose_result(call) if call.id in started else answer_unrun(call, reason, UNANSWERED[reason])
                seen = progress.get(call.id, "")
                answers[call.id] = replace(answer, output=append_progress(answer.output, seen), progress=seen)
    calls = [block.id for block in streamed if isinstance(block, content.ToolCall)]
    local = {call_id: answer for call_id, answer in answers.items() if not answer.provider_executed}
    in_order = [local.pop(call_id) for call_id in calls if call_id in local]
    return [*streamed, *in_order, *local.values()]


def _with_progress(answer: content.ToolResult, progress: str) -> content.ToolResult:
    output = append_progress(answer.output, progress) if answer.interrupted else answer.output
    return replace(answer, output=output, progress=progress)


_LIMITS: Final[dict[content.FinishReason, content.PartialReason]] = {
    "length": "length",
    "content_filter": "content_filter",
}


class Conclusion(NamedTuple):
    """The result of an attempt. `whole`: it is complete. `partial`: it is incomplete and has visible output."""

    blocks: list[content.Block]
    whole: bool
    partial: bool
    reason: content.PartialReason | None


def conclude(assembler: PartAssembler, reason: content.PartialReason | None, at: datetime | None) -> Conclusion:
    """Decide what is kept of a reply, whether it is partial, and why. The same rule for every way to end.

    `reason` is why the attempt ended, None if it ended as complete; `at` is when.
    """
    finish = assembler.finish
    limit = None if finish is None else _LIMITS.get(finish.reason)
    if reason is None:  # an attempt that ended as complete, though its stream never finished, has failed
        reason = "failed" if finish is None else limit
    cut = finish is None or limit is not None or (reason is not None and assembler.has_unfinished_call())
    blocks = finalize(assembler.blocks(), reason, at)
    return Conclusion(blocks, whole=not cut, partial=cut and content.has_visible(blocks), reason=reason)


def to_messages(blocks: Sequence[content.Block], **fields: Any) -> list[content.Message]:
    """Finalized blocks as messages of the history: the assistant's, then the tools' if there are results."""
    spoken = [block for block in blocks if not _is_local_result(block)]
    results = [block for block in blocks if _is_local_result(block)]
    messages = []
    if spoken:
        messages.append(content.Message(role="assistant", blocks=spoken, **fields))
    if results:
        messages.append(content.Message(role="tool", blocks=results))
    return messages


def _is_local_result(block: content.Block) -> bool:
    return isinstance(block, content.ToolResult) and not block.provider_executed
