"""Every prompt that the provider received: what no model may be told.

    a stale instruction       "go on exactly where it ends" before another question, with no reply in between
    an unanswered call        or the text that takes the place of a missing result
    a result of another call  each result repeats the note of its call
    "not run" of a tool that did, "cancelled" of a call that the client answered
    a message without its files, or a file that belongs elsewhere (prompt_files.py)

Whether a tool ran is known at the end, from the notebook and from what the users submitted: so the inspector collects
what models were told, and `check_outputs` judges it. The provider itself refuses what the real one would refuse.

Must stay true (tests/prove/test_prompts.py): each of these is found, in whatever way a wire format merges texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from indelible.content import Text, ToolCall, ToolResult
from indelible.content.assemble import OUTCOME_UNKNOWN
from indelible.loop.prompt.build import NO_RESULT
from indelible.models.protocol import Call
from indelible.prove.checks.evidence import Fault
from indelible.prove.checks.prompt_files import find_file_faults
from indelible.prove.model import read_note
from indelible.prove.script import Wish
from indelible.prove.servers.tools import ASK, read_report
from indelible.store.commands.apply.texts import CONTINUE

_FAULTS_AT_MOST: Final = 100
_ANSWER: Final = "answer "
_STOPPED_WHILE_RUNNING: Final = "while this tool was running"


class PromptInspector:
    """`faults` are sentences. `outputs`, by note, is what models got for each call that has no real result."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.outputs: dict[str, str] = {}

    def inspect(self, call: Call) -> None:
        if len(self.faults) < _FAULTS_AT_MOST:
            found = [*_find_stale(call), *self._check_results(call), *find_file_faults(call)]
            self.faults += [fault for fault in found if fault not in self.faults]

    def _check_results(self, call: Call) -> Iterator[str]:
        open_calls: dict[str, ToolCall] = {}
        for message in call.messages:
            for block in message.blocks:
                if isinstance(block, ToolCall):
                    if block.id in open_calls:
                        yield f"a prompt has a call without a result: {block.name} {block.arguments}"
                    open_calls[block.id] = block
                elif isinstance(block, ToolResult):
                    asked = open_calls.pop(block.call_id, None)
                    if asked is None:
                        yield f"a prompt has a result without a call: {block.output!r}"
                    else:
                        yield from self._check_result(asked, str(block.output))
        for left in open_calls.values():
            yield f"a prompt has a call without a result: {left.name} {left.arguments}"

    def _check_result(self, call: ToolCall, output: str) -> Iterator[str]:
        note = read_note(call.arguments)
        if output == NO_RESULT:
            yield f"a prompt has a call without a result: {call.name} {call.arguments}"
        elif (reported := read_report(output) or _read_answer(output)) is not None:
            if reported != note:
                yield f"a prompt answers the call {note} with the result of another: {output!r}"
        elif note and not output.startswith(OUTCOME_UNKNOWN) and _STOPPED_WHILE_RUNNING not in output:
            self.outputs[note] = output


def check_outputs(outputs: Mapping[str, str], ran: Mapping[str, str], answered: set[str]) -> list[Fault]:
    """What models were told of calls that really ran. `ran` are the names of tools by note, `answered` are notes."""
    faults = []
    for note, output in outputs.items():
        if note in ran:
            faults.append(Fault(f"a model was told of {ran[note]} {note}, which ran: {output!r}"))
        elif note in answered:
            faults.append(Fault(f"a model was told of {ASK} {note}, which was answered: {output!r}"))
    return faults


def _read_answer(output: str) -> str | None:
    return output.removeprefix(_ANSWER) if output.startswith(_ANSWER) else None


def _find_stale(call: Call) -> Iterator[str]:
    """An instruction to continue, and then another question."""
    pending = False
    for message in call.messages:
        if message.role in ("assistant", "tool"):
            pending = False
            continue
        text = "".join(block.text for block in message.blocks if isinstance(block, Text))
        wishes = [at for at, _ in Wish.find_all(text)]
        if wishes and (pending or CONTINUE in text[: wishes[-1]]):
            yield f"a prompt has a stale instruction before a question: {text[-120:]!r}"
        last_wish = wishes[-1] if wishes else -1
        pending = CONTINUE in text[max(0, last_wish) :] or (pending and not wishes)
