"""The pieces of a chat on the screen: text, thinking, tool calls, the user's messages, notes.

A piece grows until it is `finished`. It releases the lines that can be printed for good, each once,
and renders the rest. transcript.py maps parts to pieces; screen.py decides when to draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text as StyledText

from indelible.content import ResultOutcome, ToolResult
from indelible.terminal.markdown import Line, disarm, render_lines, render_markdown, split_finished, trim_blank

PROMPT: Final = "you › "
_MARGIN: Final = Segment("┆ ", Style(dim=True))


class Widget(Protocol):
    finished: bool

    def pop_finished(self, console: Console) -> list[Line]:
        """Release the lines that can be printed for good."""

    def render(self, console: Console) -> list[Line]:
        """The remaining lines."""


class TextWidget:
    """Markdown. Its blocks are released one by one."""

    def __init__(self) -> None:
        self.text = ""
        self.finished = False

    def pop_finished(self, console: Console) -> list[Line]:
        blocks, self.text = split_finished(self.text)
        if self.finished:
            blocks, self.text = [*blocks, self.text], ""
        return trim_blank([line for block in blocks for line in (*render_markdown(block, console), [])])

    def render(self, console: Console) -> list[Line]:
        return render_markdown(self.text, console)


class ThoughtWidget:
    """The model's thinking: dimmed, with a margin, so that it is not mistaken for the reply.

    A `fleeting` one is in the middle of a sentence, and is shown only while it grows.
    """

    def __init__(self) -> None:
        self.text = ""
        self.finished = False
        self.fleeting = False

    def pop_finished(self, console: Console) -> list[Line]:
        return self.render(console) if self.finished else []

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


class ToolWidget:
    """A tool call: one line with its progress."""

    def __init__(self, name: str) -> None:
        self.name = disarm(name)
        self.arguments = ""
        self.state = "writing"
        self.result: ToolResult | None = None
        self.finished = False

    def pop_finished(self, console: Console) -> list[Line]:
        return self.render(console) if self.finished else []

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


class QuoteWidget:
    """A message of the user that was not typed just now."""

    def __init__(self, text: str) -> None:
        self.finished = True
        self._text = disarm(text)

    def pop_finished(self, console: Console) -> list[Line]:
        return self.render(console)

    def render(self, console: Console) -> list[Line]:
        return render_lines(StyledText.assemble((PROMPT, "bold cyan"), self._text), console)


class NoteWidget:
    """A note about the reply."""

    def __init__(self, text: str) -> None:
        self.finished = True
        self._text = disarm(text)

    def pop_finished(self, console: Console) -> list[Line]:
        return self.render(console)

    def render(self, console: Console) -> list[Line]:
        return render_lines(StyledText(self._text, style="dim"), console)
