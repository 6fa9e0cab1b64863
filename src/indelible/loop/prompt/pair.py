"""Pairing: every local call is answered once, right after the message that made it.

Histories have holes: a crash between call and result, a client that submits results after the next
message, results of two replies in one row, ids that every step reuses. Providers accept
none of that. So this module matches each result with its call, and puts the answers to a message
right after it:

  * a result belongs to the nearest message above it that has a call of that id; if that message
    has several, they are answered in their order;
  * a second result for a call is dropped, the first one stands;
  * a call without a result gets an error that says so;
  * a result without a call becomes text in place: in a tool row, text of a user message,
    which is the only role that every provider accepts anywhere.

Results of one row stay together, in their order: a row of results is one entry,
moved up if other messages came between. Ids become legal here (call_ids.py), on both sides at once.

Must stay true (tests/loop/test_any_history.py): testing/legality.py, which shares no code with this, agrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec
from msgspec.structs import replace

from indelible.content import Block, Reasoning, Role, Source, ToolCall, ToolResult
from indelible.loop.prompt.call_ids import CallIds
from indelible.loop.prompt.clean import describe_orphan, drop_idle_reasoning

NO_RESULT: Final = "No result: the call was not completed."


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the prompt under construction."""

    role: Role
    blocks: list[Block]
    partial: bool = False


class _AskedCall:
    """A local call, and the result found for it at `(row, position)`."""

    __slots__ = ("answer", "asked_in", "call", "found_at")

    def __init__(self, call: ToolCall, *, asked_in: int) -> None:
        self.call = call
        self.asked_in = asked_in
        self.answer: ToolResult | None = None
        self.found_at = (0, 0)

    def build_answer(self) -> ToolResult:
        answer = self.answer or ToolResult(call_id="", name="", output=NO_RESULT, is_error=True)
        return replace(answer, call_id=self.call.id, name=self.call.name)


class _OpenCalls:
    """For each call id in the history, the calls of the nearest message that uses it."""

    def __init__(self) -> None:
        self._nearest: dict[str, list[_AskedCall]] = {}

    def add(self, call: _AskedCall, *, id: str) -> None:
        same_id = self._nearest.setdefault(id, [])
        if same_id and same_id[0].asked_in != call.asked_in:
            same_id.clear()
        same_id.append(call)

    def settle(self, result: ToolResult, *, found_at: tuple[int, int]) -> bool:
        """Whether this result answers a call, even one that already has a result."""
        same_id = self._nearest.get(result.call_id, [])
        for call in same_id:
            if call.answer is None:
                call.answer, call.found_at = result, found_at
                break
        return bool(same_id)


def pair_calls(entries: Sequence[Entry], *, ids: CallIds) -> list[Entry]:
    """The entries with every call answered, and no result anywhere else."""
    spoken: list[list[Block]] = [[] for _ in entries]
    asked: list[list[_AskedCall]] = [[] for _ in entries]
    open_calls = _OpenCalls()
    for row, entry in enumerate(entries):
        for position, block in enumerate(entry.blocks):
            match block:
                case ToolCall(provider_executed=False):
                    call = _AskedCall(replace(block, id=ids.give(block.id)), asked_in=row)
                    open_calls.add(call, id=block.id)
                    asked[row].append(call)
                    spoken[row].append(call.call)
                case ToolResult(provider_executed=False):
                    if not open_calls.settle(block, found_at=(row, position)):
                        spoken[row].append(describe_orphan(block))
                case _:
                    spoken[row].append(block)

    paired: list[Entry] = []
    for entry, blocks, calls in zip(entries, spoken, asked, strict=True):
        if _has_content(blocks):
            role: Role = "user" if entry.role == "tool" else entry.role
            paired.append(Entry(role=role, blocks=drop_idle_reasoning(blocks), partial=entry.partial))
        paired.extend(_build_answers(calls))
    return paired


def _build_answers(calls: Sequence[_AskedCall]) -> Iterator[Entry]:
    """One tool entry per row of results. Errors for calls without a result join the last of them."""
    answered = sorted((call for call in calls if call.answer), key=lambda call: call.found_at)
    rows: list[list[Block]] = [
        [call.build_answer() for call in group] for _, group in groupby(answered, key=lambda call: call.found_at[0])
    ]
    missing = [call.build_answer() for call in calls if not call.answer]
    if missing and not rows:
        rows.append([])
    for row in rows[-1:]:
        row.extend(missing)
    return (Entry(role="tool", blocks=row) for row in rows)


def _has_content(blocks: Sequence[Block]) -> bool:
    """Reasoning and sources alone are no message: no provider accepts one."""
    return any(not isinstance(block, Reasoning | Source) for block in blocks)
