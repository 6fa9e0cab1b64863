"""The pieces of a chat on the screen: text, thinking, tool calls, the user's messages, notes.

A piece grows until it is `finished`. It releases the lines that can be printed for good, each once, and renders the
rest; screen.py decides when. Text of users and models is foreign: what could control the terminal is disarmed.

Text is Markdown that is still being written. Markdown is a language of lines: once a top-level block (paragraph, list,
table, fence…) has been followed by the first whole line of another one, nothing that comes later can change it. So a
growing text is split there. What is finished is printed for good, exactly once, and scrolls away like any other output;
only the last block is drawn again and again. A reply may be as long as it likes: the cost of a frame is that of its
last block.

Must stay true (tests/terminal/test_growing_markdown.py): the finished blocks and the rest are the text, and a block
that was once finished stays the same whatever is added.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from markdown_it import MarkdownIt
from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.segment import Segment
from rich.style import Style
from rich.text import Text as StyledText

from indelible.content import ResultOutcome, ToolResult

Line = list[Segment]
PROMPT: Final = "you › "
_MARGIN: Final = Segment("┆ ", Style(dim=True))
_WIDEST_COLUMN: Final = 100
_PARSER: Final = MarkdownIt().enable("table")
_LINE: Final = re.compile(r"[^\n]*\n")
_MARKS: Final = (0x061C, 0x200E, 0x200F)
"""Arabic and Hebrew are written with them."""
_TURNING: Final = (*_MARKS, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Unicode's Bidi_Control: they change the order in which text is shown, so that a command reads as another one."""
# Characters that control a terminal (escape sequences, bells) are shown as a replacement character.
_HARMLESS: Final = dict.fromkeys((*range(32), *range(127, 160), *_TURNING), "\N{REPLACEMENT CHARACTER}") | {
    ord("\n"): "\n",
    ord("\t"): "\t",
    ord("\r"): None,
}
_HARMLESS_DATA: Final = {code: shown for code, shown in _HARMLESS.items() if code not in _MARKS}


class Widget(ABC):
    finished = False

    def pop_finished(self, console: Console) -> list[Line]:
        """Release the lines that can be printed for good."""
        return self.render(console) if self.finished else []

    @abstractmethod
    def render(self, console: Console) -> list[Line]:
        """The remaining lines."""


class TextWidget(Widget):
    """Markdown. Its blocks are released one by one."""

    def __init__(self) -> None:
        self.text = ""

    def pop_finished(self, console: Console) -> list[Line]:
        blocks, self.text = split_finished(self.text)
        if self.finished:
            blocks, self.text = [*blocks, self.text], ""
        return trim_blank([line for block in blocks for line in (*render_markdown(block, console), [])])

    def render(self, console: Console) -> list[Line]:
        return render_markdown(self.text, console)


class ThoughtWidget(Widget):
    """The model's thinking: dimmed, with a margin, so that it is not mistaken for the reply.

    A `fleeting` one is in the middle of a sentence, and is shown only while it grows.
    """

    def __init__(self) -> None:
        self.text = ""
        self.fleeting = False

    def render(self, console: Console) -> list[Line]:
        thought = StyledText(self.text.strip(), style="dim italic")
        return [[_MARGIN, *line] for line in trim_blank(render_lines(thought, console, indent=_MARGIN.cell_length))]


_OUTCOMES: Final[dict[ResultOutcome, tuple[str, str, str]]] = {
    "ran": ("✓", "", "green"),
    "failed": ("✗", "", "red"),
    "not_run": ("–", " · not run", "yellow"),
    "unknown": ("?", " · outcome unknown", "yellow"),
}
"""The sign, the words and the colour of a result; the first two need no words."""


class ToolWidget(Widget):
    """A tool call: one line with its progress."""

    def __init__(self, name: str) -> None:
        self.name = disarm(name)
        self.arguments = ""
        self.state = "writing"
        self.result: ToolResult | None = None

    def render(self, console: Console) -> list[Line]:
        line = StyledText(no_wrap=True, overflow="ellipsis")
        for text, style in self._describe():
            line.append(disarm(text).replace("\n", " "), style=style)
        return render_lines(line, console)

    def _describe(self) -> Iterator[tuple[str, str]]:
        call = f"{self.name} {self.arguments}".rstrip()
        if self.result is None:
            yield "■ " if self.finished else "⚙ ", "yellow"
            yield call, "dim"
            yield f" · {'stopped' if self.finished else self.state}", "dim"
        else:
            sign, words, colour = _OUTCOMES[self.result.outcome]
            yield f"{sign} ", colour
            yield call, "dim"
            yield f"{words} → {self.result.output}", colour


class _FixedWidget(Widget):
    """Text that does not grow."""

    finished = True

    def __init__(self, text: StyledText) -> None:
        self._text = text

    def render(self, console: Console) -> list[Line]:
        return render_lines(self._text, console)


def make_quote(text: str) -> Widget:
    """A message of the user that was not typed just now."""
    return _FixedWidget(StyledText.assemble((PROMPT, "bold cyan"), disarm(text)))


def make_note(text: str) -> Widget:
    """A note about the reply."""
    return _FixedWidget(StyledText(disarm(text), style="dim"))


def disarm(text: str) -> str:
    """The text without characters that control a terminal, or the direction of text."""
    return text.translate(_HARMLESS)


def disarm_data(text: str) -> str:
    """The same for a pipe or a file. It keeps the marks of languages: they belong to the text, and turn little."""
    return text.translate(_HARMLESS_DATA)


def split_finished(source: str) -> tuple[list[str], str]:
    """The blocks that can no longer change, and the rest."""
    lines = _LINE.findall(source)
    tokens = _PARSER.parse("".join(lines))
    starts = [token.map[0] for token in tokens if token.level == 0 and token.map and token.nesting >= 0]
    blocks = ["".join(lines[start:end]) for start, end in pairwise([0, *starts[1:]])]
    return blocks, source[sum(map(len, blocks)) :]


def render_markdown(source: str, console: Console) -> list[Line]:
    """The lines of a piece of markdown, without blank ones around it."""
    return trim_blank(render_lines(Markdown(source, code_theme="ansi_dark"), console))


def render_lines(renderable: RenderableType, console: Console, *, indent: int = 0) -> list[Line]:
    options = console.options.update(width=min(console.width, _WIDEST_COLUMN) - indent)
    return console.render_lines(renderable, options, pad=False)


def trim_blank(lines: list[Line]) -> list[Line]:
    kept = [number for number, line in enumerate(lines) if "".join(segment.text for segment in line).strip()]
    return lines[kept[0] : kept[-1] + 1] if kept else []
