"""The worker's side of the ledger: a tool call is on disk before the tool runs, and its result before anybody sees it.

Both go through the journal's flusher, each together with the part that tells of it, in one transaction under the
condition that the attempt is open and ours (store/journal/tool_ledger.py). The loop publishes those parts as well; as
they are in the journal already, they are not written twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from indelible.content import Part, ToolResult, ToolStarted
from indelible.metrics import NO_METRICS, Metrics
from indelible.store.journal.tool_ledger import RunKey, RunSettled, RunStarted
from indelible.store.journal.writer import JournalWriter
from indelible.tools.tool import ToolCallRecord


class JournalLedger:
    """The ledger of one attempt."""

    def __init__(
        self, writer: JournalWriter, turn_id: str, *, begun: Iterable[Part] = (), metrics: Metrics = NO_METRICS
    ) -> None:
        """`begun`: what an adopted attempt had said already."""
        self._writer = writer
        self._turn_id = turn_id
        self._begun = {part.call_id for part in begun if isinstance(part, ToolStarted)}
        self._metrics = metrics
        self._recorded: set[tuple[type[Part], str]] = set()

    async def starting(self, call: ToolCallRecord) -> None:
        if call.id in self._begun and not call.idempotent:
            self._metrics.tool_ran_twice()
        part = ToolStarted(call.id, call.name)
        self._recorded.add((ToolStarted, call.id))
        change = RunStarted(
            key=self._name(call),
            attempt_id=self._writer.attempt_id,
            call_id=call.id,
            name=call.name,
            arguments=call.arguments,
            idempotency_key=call.idempotency_key,
        )
        await self._writer.record(change, part)

    async def settled(self, call: ToolCallRecord, result: ToolResult) -> None:
        self._recorded.add((ToolResult, call.id))
        await self._writer.record(RunSettled(key=self._name(call), result=result), result)

    def has_recorded(self, part: Part) -> bool:
        """Whether this part is in the journal already."""
        return isinstance(part, ToolStarted | ToolResult) and (type(part), part.call_id) in self._recorded

    def _name(self, call: ToolCallRecord) -> RunKey:
        return RunKey(self._turn_id, call.step, call.index)
