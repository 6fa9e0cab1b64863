"""A reply as it appears in a terminal.

What is shown becomes pieces (transcript.py). Whatever is finished at the top is printed for good; what is still growing
is drawn below it, in place, at most twelve times a second and never taller than the window. So the scrollback holds
the reply exactly once, however long it is and wherever it is stopped. An announcement is drawn at the bottom
until the reply continues, and leaves no trace.

Must stay true (tests/terminal/test_screen.py): at the end every word of the reply is on the screen
once; a burst of parts costs one frame.

feed_view.py decides what is shown, and when. plain.py writes a reply into a pipe.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.style import Style

from indelible.clock import Clock, Timer
from indelible.content import Part
from indelible.terminal.markdown import Line
from indelible.terminal.transcript import Transcript
from indelible.terminal.widgets import NoteWidget, QuoteWidget

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
