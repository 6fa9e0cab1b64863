"""The provider of a proof: the model behind all three wire formats, and what no model may be told.

It runs in the process that is never killed. The servers use it like any other provider: by a model name with an
address, over real HTTP. So a kill hits a server in the middle of a stream, and its next request is built from the
store. A history that the real provider would refuse is refused here too, and fails the turn. A long proof makes many
requests, each with its chat's whole history: they are inspected, counted and not kept. Found are

    a stale instruction       "go on exactly where it ends" before another question, with no reply in between
    an unanswered call        or the text that takes the place of a missing result
    a result of another call  each result repeats the note of its call
    "not run" of a tool that did, "cancelled" of a call that the client answered
    a file                    that is missing, changed, doubled or belongs elsewhere: wire formats show files as blocks,
                              as text or in results, and all is read as one sequence of questions and files

Whether a tool ran is known at the end: so `PromptInspector` collects what models were told, `check_outputs` judges it.
Must stay true (tests/prove/test_prompts.py, test_prompt_files.py): each is found, however a format merges texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final, Self, get_args

from msgspec.structs import replace

from indelible.content import Block, File, Text, ToolCall, ToolResult
from indelible.loop.prompt.build import NO_RESULT
from indelible.models.protocol import Call
from indelible.prove.evidence import Fault
from indelible.prove.model import ProofModel, read_note
from indelible.prove.script import Shown, Wish, find_in_file, find_in_text, is_drawn, list_files
from indelible.prove.servers import Orders
from indelible.prove.tools import ASK, DRAW, read_report
from indelible.store.commands.change import CONTINUE
from indelible.testing.provider import SimulatedProvider, WireName

WIRES: Final[tuple[WireName, ...]] = get_args(WireName)


class ProofProvider:
    """`models` are its model names, one for each wire format. `prompts` has what was wrong with those it received."""

    def __init__(self) -> None:
        self._simulated = SimulatedProvider(ProofModel(on_call=self._receive))
        self._calls: Counter[str] = Counter()
        self.prompts = PromptInspector()

    async def __aenter__(self) -> Self:
        await self._simulated.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._simulated.aclose()

    @property
    def models(self) -> list[str]:
        return [f"{wire}:{ProofModel.name}-{wire}@{self._simulated.base_url(wire)}" for wire in WIRES]

    @property
    def calls(self) -> dict[str, int]:
        """The number of model calls, by wire format."""
        self._count()
        return dict(self._calls)

    @property
    def drops(self) -> int:
        """How many of them were interrupted by the caller."""
        return self._simulated.drops

    def instruct(self, orders: Orders) -> Orders:
        """The same orders for a server that may call this provider by any of its names."""
        first, *others = self.models
        return replace(orders, settings={**orders.settings, "model": first, "models": others})

    def _receive(self, call: Call) -> None:
        self.prompts.inspect(call)
        self._count()

    def _count(self) -> None:
        self._calls.update(seen.wire for seen in self._simulated.requests)
        self._simulated.requests.clear()


# --- what no model may be told ---


_FAULTS_AT_MOST: Final = 100
_ANSWER: Final = "answer "


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
        elif note:
            self.outputs[note] = output


def check_outputs(
    outputs: Mapping[str, str], ran: Mapping[str, str], answered: set[str], unknown: Collection[str] = ()
) -> list[Fault]:
    """What models were told of calls that really ran. `ran` are the names of tools by note, `answered` are notes.

    `unknown` are the outputs of the stored results whose outcome is unknown: those may be told of any call.
    """
    faults = []
    for note, output in outputs.items():
        if output in unknown:
            continue
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


# --- files in a prompt ---


def find_file_faults(call: Call) -> Iterator[str]:
    """What is wrong with the files of this prompt, in sentences."""
    asked: Wish | None = None
    found: list[str] = []
    drawn: Counter[str] = Counter()
    for item in _list_items(call):
        if isinstance(item, Wish):
            yield from _compare(asked, found)
            asked, found = item, []
        elif not item.is_whole:
            yield f"a prompt has the file {item.key}, and its content is not what was uploaded"
        elif item.key is not None and is_drawn(item.key):
            drawn[item.key] += 1
        elif item.key is not None:
            found.append(item.key)
    yield from _compare(asked, found)
    yield from _compare_drawn(drawn, Counter(_list_drawings(call)))


def _compare(asked: Wish | None, found: list[str]) -> Iterator[str]:
    """Whether these are the files of this question."""
    expected = [] if asked is None else [file.key for file in list_files(asked)]
    if found == expected:
        return
    number = "none" if asked is None else asked.number
    for key in Counter(expected) - Counter(found):
        yield f"a prompt has the question {number} without its file {key}"
    for key in Counter(found) - Counter(expected):
        yield f"a prompt has the file {key} behind the question {number}, to which it does not belong"
    if sorted(found) == sorted(expected):
        yield f"a prompt has the files of the question {number} in another order: {found}"


def _compare_drawn(shown: Counter[str], expected: Counter[str]) -> Iterator[str]:
    for note in expected - shown:
        yield f"a prompt has the result of {DRAW} {note} without its picture"
    for note in shown - expected:
        yield f"a prompt has the picture {note}, and no result of {DRAW} that it belongs to"


def _list_items(call: Call) -> Iterator[Wish | Shown]:
    """The questions and the files of a prompt, in order."""
    for message in call.messages:
        if message.role != "assistant":
            for block in message.blocks:
                yield from _read_block(block)


def _read_block(block: Block) -> Iterator[Wish | Shown]:
    if isinstance(block, File):
        yield find_in_file(block)
    elif isinstance(block, ToolResult):
        for file in block.files:
            yield find_in_file(file)
    elif isinstance(block, Text):
        questions: list[tuple[int, Wish | Shown]] = list(Wish.find_all(block.text))
        shown: list[tuple[int, Wish | Shown]] = [(file.at, file) for file in find_in_text(block.text)]
        for _, item in sorted([*questions, *shown], key=lambda placed: placed[0]):
            yield item


def _list_drawings(call: Call) -> Iterator[str]:
    """The notes of the drawings whose result is in the prompt."""
    for message in call.messages:
        for block in message.blocks:
            if isinstance(block, ToolResult) and block.name == DRAW:
                note = read_report(str(block.output))
                if note is not None:
                    yield note
