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

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.segment import Segment, Segments
from rich.style import Style

from indelible import content
from indelible.clock import Clock, Timer
from indelible.terminal import widgets
from indelible.terminal.feed_view import Stage

if sys.platform != "win32":
    import termios

_FRAME_S: Final = 1 / 12
_Speech = (
    content.TextStart
    | content.TextDelta
    | content.TextEnd
    | content.ReasoningStart
    | content.ReasoningDelta
    | content.ReasoningEnd
)
_ELLIPSIS: Final[widgets.Line] = [Segment("…", Style(dim=True))]


class Screen(Stage):
    """A stage that is drawn: enter, show, leave."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._pieces: list[widgets.Widget] = []
        self._speech: dict[tuple[type, str], widgets.TextWidget | widgets.ThoughtWidget] = {}
        self._tools: dict[str, widgets.ToolWidget] = {}
        self._cut: widgets.TextWidget | None = None
        self._announced: widgets.Widget | None = None
        self._next_frame: Timer | None = None
        self._drawn_at_s = clock.monotonic()

    def __enter__(self) -> Self:
        self._live.start()
        self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        if self._next_frame is not None:
            self._next_frame.cancel()
        self._announced = self._cut = None
        self._finish_open()
        self._print_finished()
        self._live.update(_join([]))
        self._live.stop()

    # --- content of the next frame ---

    def show(self, part: content.Part) -> None:
        self._announced = None
        match part:
            case content.TextStart() | content.TextDelta() | content.TextEnd():
                self._add_speech(widgets.TextWidget, part)
            case content.ReasoningStart() | content.ReasoningDelta() | content.ReasoningEnd():
                self._add_speech(widgets.ThoughtWidget, part)
            case content.Source():
                self._append(widgets.make_note(f"↗ {part.title or part.url or part.id}"))
            case content.StreamWarning():
                self._append(widgets.make_note(part.message))
            case content.Finish(reason="length"):
                self._append(widgets.make_note("The reply reached the model's length limit."))
            case _:
                self._add_tool(part)
        self._draw_soon()

    def begin_attempt(self) -> None:
        self._announced = None
        self._finish_open()
        self._draw_soon()

    def end_attempt(self, *, cut: bool) -> None:
        """Tools may still get results."""
        last = self._pieces[-1] if self._pieces else None
        self._cut = last if cut and isinstance(last, widgets.TextWidget) and not last.finished else None
        for piece in self._pieces:
            if isinstance(piece, widgets.TextWidget | widgets.ThoughtWidget):
                piece.finished = piece is not self._cut
        self._speech.clear()
        self._remove_fleeting()
        self._draw_soon()

    def drop_attempt(self) -> None:
        """Discard its thinking. What is printed stays."""
        for piece in self._speech.values():
            if isinstance(piece, widgets.TextWidget):
                self._cut = piece
            else:
                self._pieces.remove(piece)
        self._speech.clear()
        self._draw_soon()

    def quote(self, text: str) -> None:
        self._add(widgets.make_quote(text))

    def note(self, text: str) -> None:
        self._add(widgets.make_note(text))

    def announce(self, text: str) -> None:
        self._announced = widgets.make_note(text)
        self._draw_soon()

    # --- parts to pieces ---

    def _add_speech(self, kind: type[widgets.TextWidget | widgets.ThoughtWidget], part: _Speech) -> None:
        piece = self._speech.get((kind, part.id))
        if piece is None:
            piece = self._speech[kind, part.id] = self._begin_speech(kind)
        if isinstance(part, content.TextDelta | content.ReasoningDelta):
            piece.text += widgets.disarm(part.delta)
        elif isinstance(part, content.TextEnd | content.ReasoningEnd):
            piece.finished = True
            del self._speech[kind, part.id]
            self._remove_fleeting()

    def _begin_speech(
        self, kind: type[widgets.TextWidget | widgets.ThoughtWidget]
    ) -> widgets.TextWidget | widgets.ThoughtWidget:
        piece = kind()
        if isinstance(piece, widgets.ThoughtWidget):
            piece.fleeting = self._cut is not None
        elif self._cut is not None:
            piece, self._cut = self._cut, None
            return piece
        self._pieces.append(piece)
        return piece

    def _remove_fleeting(self) -> None:
        self._pieces = [
            piece
            for piece in self._pieces
            if not (isinstance(piece, widgets.ThoughtWidget) and piece.fleeting and piece.finished)
        ]

    def _add_tool(self, part: content.Part) -> None:
        match part:
            case content.ToolInputStart():
                self._find_tool(part.id, part.name)
            case content.ToolInputDelta():
                self._find_tool(part.id).arguments += part.delta
            case content.ToolCall():
                tool = self._find_tool(part.id, part.name)
                tool.arguments, tool.state = part.arguments, _describe_state(part)
            case content.ToolStarted():
                self._find_tool(part.call_id, part.name).state = "running"
            case content.ToolProgress():
                self._find_tool(part.call_id).state = part.message
            case content.ToolResult():
                tool = self._find_tool(part.call_id, part.name)
                tool.result, tool.finished = part, True
                del self._tools[part.call_id]
            case _:
                pass

    def _find_tool(self, id: str, name: str = "a tool") -> widgets.ToolWidget:
        if id not in self._tools:
            self._tools[id] = widgets.ToolWidget(name)
            self._append(self._tools[id])
        return self._tools[id]

    def _append(self, piece: widgets.Widget) -> None:
        """The reply continues with something other than text: an interrupted text is finished."""
        if self._cut is not None:
            self._cut.finished, self._cut = True, None
        self._pieces.append(piece)

    def _add(self, piece: widgets.Widget) -> None:
        """Show something that the model did not write."""
        self._cut = None
        self._finish_open()
        self._pieces.append(piece)
        self._draw_soon()

    def _finish_open(self) -> None:
        """Finish all that still grows, except an interrupted text."""
        for piece in self._pieces:
            piece.finished = piece is not self._cut
        self._speech.clear()
        self._tools.clear()
        self._remove_fleeting()

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
        finished: list[widgets.Line] = []
        while self._pieces:
            if lines := self._pieces[0].pop_finished(self._console):
                finished += [*lines, []]
            if not self._pieces[0].finished:
                break
            del self._pieces[0]
        below = [] if self._announced is None else [self._announced]
        rendered = [piece.render(self._console) for piece in (*self._pieces, *below)]
        growing = [line for lines in rendered if lines for line in (*lines, [])]
        room = max(1, self._console.height - 2)
        with self._console:  # one write, so that the screen never shows an intermediate state
            self._live.update(_join([]), refresh=True)
            self._console.print(_join(finished), end="")
            self._live.update(_join(growing[:-1][-room:] or [_ELLIPSIS]), refresh=True)


def _join(lines: list[widgets.Line]) -> Segments:
    return Segments([segment for line in lines for segment in (*line, Segment.line())])


@contextmanager
def hush_echo(keyboard: TextIO | None) -> Iterator[None]:
    """During the block typed keys are neither echoed, which would shift what is drawn, nor dropped at Ctrl-C."""
    if sys.platform == "win32" or keyboard is None or not keyboard.isatty():
        yield
        return
    before = termios.tcgetattr(keyboard)
    hushed = before.copy()
    hushed[3] = hushed[3] & ~termios.ECHO | termios.NOFLSH
    termios.tcsetattr(keyboard, termios.TCSANOW, hushed)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSANOW, before)


def _describe_state(call: content.ToolCall) -> str:
    """The last progress message of a call, or whether it runs."""
    return call.progress.rpartition("\n")[2] or ("running" if call.started else "waiting")
