"""A reply as it appears in a terminal.

Parts arrive in order and become *pieces* (widgets.py), in the order in which they began. Whatever is finished at the
top is printed for good; what is still growing is drawn below it, in place, at most twelve times a second and never
taller than the window. So the scrollback holds the reply exactly once, however long it is and wherever it is stopped.
An announcement is drawn at the bottom until the reply continues, and leaves no trace.

A reply that continues after a crash or a failure is one reply: its text continues in the same piece, in the middle of a
word if need be. Thinking before the continuation is shown only while it lasts.

Must stay true (tests/terminal/test_screen.py): at the end every word of the reply is on the screen once, as if it had
not been interrupted, wherever it is and however often; a burst of parts costs one frame.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.style import Style

from indelible.clock import Clock, Timer
from indelible.content import (
    Finish,
    Part,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Source,
    StreamWarning,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputStart,
    ToolProgress,
    ToolResult,
    ToolStarted,
)
from indelible.terminal.widgets import (
    Line,
    NoteWidget,
    QuoteWidget,
    TextWidget,
    ThoughtWidget,
    ToolWidget,
    Widget,
    disarm,
)

_FRAME_S: Final = 1 / 12
_ELLIPSIS: Final[Line] = [Segment("…", Style(dim=True))]


class Screen:
    """A stage (feed_view.py) that is drawn: enter, show, leave."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._transcript = Transcript()
        self._announced: NoteWidget | None = None
        self._next_frame: Timer | None = None
        self._drawn_at_s = clock.monotonic()

    def __enter__(self) -> Self:
        self._live.start()
        self._draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._next_frame is not None:
            self._next_frame.cancel()
        self._announced = None
        self._transcript.end()
        self._print_finished()
        self._live.update(_Lines([]))
        self._live.stop()

    # --- content of the next frame ---

    def show(self, part: Part) -> None:
        self._announced = None
        self._transcript.add_part(part)
        self._draw_soon()

    def begin_attempt(self) -> None:
        self._announced = None
        self._transcript.begin_attempt()
        self._draw_soon()

    def end_attempt(self, *, cut: bool) -> None:
        self._transcript.end_attempt(cut=cut)
        self._draw_soon()

    def drop_attempt(self) -> None:
        self._transcript.drop_attempt()
        self._draw_soon()

    def quote(self, text: str) -> None:
        self._transcript.add(QuoteWidget(text))
        self._draw_soon()

    def note(self, text: str) -> None:
        self._transcript.add(NoteWidget(text))
        self._draw_soon()

    def announce(self, text: str) -> None:
        self._announced = NoteWidget(text)
        self._draw_soon()

    # --- frames ---

    def _draw_soon(self) -> None:
        if self._next_frame is None:
            wait_s = self._drawn_at_s + _FRAME_S - self._clock.monotonic()
            self._next_frame = self._clock.call_later(max(0.0, wait_s), self._draw)

    def _draw(self) -> None:
        self._next_frame = None
        self._drawn_at_s = self._clock.monotonic()
        self._print_finished()

    def _print_finished(self) -> None:
        """Print what is finished, with a blank line after each piece, and draw the rest below it."""
        finished: list[Line] = []
        widgets = self._transcript.widgets
        while widgets:
            lines = widgets[0].pop_finished(self._console)
            if lines:
                finished += [*lines, []]
            if not widgets[0].finished:
                break
            del widgets[0]
        below = [] if self._announced is None else [self._announced]
        rendered = [widget.render(self._console) for widget in (*widgets, *below)]
        growing = [line for lines in rendered if lines for line in (*lines, [])]
        room = max(1, self._console.height - 2)
        with self._console:  # one write, so that the screen never shows an intermediate state
            self._live.update(_Lines([]), refresh=True)
            self._console.print(_Lines(finished), end="")
            self._live.update(_Lines(growing[:-1][-room:] or [_ELLIPSIS]), refresh=True)


class _Lines:
    """Lines that were rendered before."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self._lines:
            yield from line
            yield Segment.line()


class Transcript:
    """The pieces that are not printed yet, oldest first."""

    def __init__(self) -> None:
        self.widgets: list[Widget] = []
        self._speech: dict[tuple[type, str], TextWidget | ThoughtWidget] = {}
        self._tools: dict[str, ToolWidget] = {}
        self._cut: TextWidget | None = None

    def add(self, widget: Widget) -> None:
        """Show something that the model did not write. All growing pieces are finished."""
        self.end()
        self.widgets.append(widget)

    def add_part(self, part: Part) -> None:
        match part:
            case TextStart() | TextDelta() | TextEnd():
                self._add_speech(TextWidget, part)
            case ReasoningStart() | ReasoningDelta() | ReasoningEnd():
                self._add_speech(ThoughtWidget, part)
            case Source():
                self._append(NoteWidget(f"↗ {part.title or part.url or part.id}"))
            case StreamWarning():
                self._append(NoteWidget(part.message))
            case Finish(reason="length"):
                self._append(NoteWidget("The reply reached the model's length limit."))
            case _:
                self._add_tool(part)

    # --- attempts ---

    def begin_attempt(self) -> None:
        """Finish what the last attempt left open, except an interrupted text."""
        for widget in self.widgets:
            widget.finished = widget is not self._cut
        self._speech.clear()
        self._tools.clear()
        self._remove_fleeting()

    def end_attempt(self, *, cut: bool) -> None:
        """The attempt writes nothing more; its tools may still get results."""
        last = self.widgets[-1] if self.widgets else None
        self._cut = last if cut and isinstance(last, TextWidget) and not last.finished else None
        for widget in self.widgets:
            if isinstance(widget, TextWidget | ThoughtWidget):
                widget.finished = widget is not self._cut
        self._speech.clear()
        self._remove_fleeting()

    def drop_attempt(self) -> None:
        """Discard the attempt, which had only thinking. What is printed stays."""
        for widget in self._speech.values():
            if isinstance(widget, TextWidget):
                self._cut = widget
            else:
                self.widgets.remove(widget)
        self._speech.clear()

    def end(self) -> None:
        """Finish all growing pieces."""
        self._cut = None
        self.begin_attempt()

    # --- parts to pieces ---

    def _add_speech(
        self,
        kind: type[TextWidget | ThoughtWidget],
        part: TextStart | TextDelta | TextEnd | ReasoningStart | ReasoningDelta | ReasoningEnd,
    ) -> None:
        widget = self._speech.get((kind, part.id))
        if widget is None:
            widget = self._speech[kind, part.id] = self._begin_speech(kind)
        if isinstance(part, TextDelta | ReasoningDelta):
            widget.text += disarm(part.delta)
        elif isinstance(part, TextEnd | ReasoningEnd):
            widget.finished = True
            del self._speech[kind, part.id]
            self._remove_fleeting()

    def _begin_speech(self, kind: type[TextWidget | ThoughtWidget]) -> TextWidget | ThoughtWidget:
        widget = kind()
        if isinstance(widget, ThoughtWidget):
            widget.fleeting = self._cut is not None
        elif self._cut is not None:
            widget, self._cut = self._cut, None
            return widget
        self.widgets.append(widget)
        return widget

    def _remove_fleeting(self) -> None:
        self.widgets = [
            widget
            for widget in self.widgets
            if not (isinstance(widget, ThoughtWidget) and widget.fleeting and widget.finished)
        ]

    def _add_tool(self, part: Part) -> None:
        match part:
            case ToolInputStart():
                self._find_tool(part.id, part.name)
            case ToolInputDelta():
                self._find_tool(part.id).arguments += part.delta
            case ToolCall():
                tool = self._find_tool(part.id, part.name)
                tool.arguments, tool.state = part.arguments, _describe_state(part)
            case ToolStarted():
                self._find_tool(part.call_id, part.name).state = "running"
            case ToolProgress():
                self._find_tool(part.call_id).state = part.message
            case ToolResult():
                tool = self._find_tool(part.call_id, part.name)
                tool.result, tool.finished = part, True
                del self._tools[part.call_id]
            case _:
                pass

    def _find_tool(self, id: str, name: str = "a tool") -> ToolWidget:
        if id not in self._tools:
            self._tools[id] = ToolWidget(name)
            self._append(self._tools[id])
        return self._tools[id]

    def _append(self, widget: Widget) -> None:
        """The reply continues with something other than text: an interrupted text is finished."""
        if self._cut is not None:
            self._cut.finished, self._cut = True, None
        self.widgets.append(widget)


def _describe_state(call: ToolCall) -> str:
    """The last progress message of a call, or whether it runs."""
    return call.progress.rpartition("\n")[2] or ("running" if call.started else "waiting")
