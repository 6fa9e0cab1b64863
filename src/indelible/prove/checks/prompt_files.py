"""The files in a prompt: behind every message its own, whole and in order, and none that belongs elsewhere.

Wire formats show a file as a block, as text beside the question or in the result of a tool, and Chat Completions shows
what a tool drew in a message of the user. All that is read here as one sequence of questions and files. A question says
how many files it has, and the name of each says whose it is, so a prompt can be judged by itself: a file of another
chat, or of another branch, has no question before it to belong to.

Must stay true (tests/prove/test_prompt_files.py): a missing, changed, doubled, exchanged or foreign file is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from indelible.content import Block, File, Text, ToolResult
from indelible.models.protocol import Call
from indelible.prove.files import Shown, find_in_file, find_in_text, is_drawn, list_files
from indelible.prove.script import Wish
from indelible.prove.servers.tools import DRAW, read_report


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
