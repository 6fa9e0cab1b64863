"""A reply as it appears in a terminal.

Parts come in as the loop publishes them and become *pieces* (pieces.py), in the order in which they
began. Whatever is finished at the top is printed for good; what is still growing is drawn below it,
in place, at most twelve times a second and never taller than the window. So the scrollback holds the
reply exactly once, however long it is and wherever it is stopped.

Must stay true (tests/terminal/test_screen.py): at the end every word of the reply is on the screen
once; a burst of parts costs one frame.

A reply that goes into a pipe is plain.py.
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
from indelible.terminal.markdown import Line, disarm
from indelible.terminal.pieces import NotePiece, Piece, TextPiece, ThoughtPiece, ToolPiece

_FRAME_S: Final = 1 / 12
_WAITING: Final[Line] = [Segment("…", Style(dim=True))]


class Screen:
    """Shows one reply: enter, `show` its parts, leave."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._pieces: list[Piece] = []
        self._speech: dict[tuple[type, str], TextPiece | ThoughtPiece] = {}
        self._tools: dict[str, ToolPiece] = {}
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
        self._finish_all()
        self._print_finished()
        self._live.update(_Lines([]))
        self._live.stop()

    def show(self, part: Part) -> None:
        """Take a part. It is on the screen with the next frame."""
        self._take(part)
        if self._next_frame is None:
            wait_s = self._drawn_at_s + _FRAME_S - self._clock.monotonic()
            self._next_frame = self._clock.call_later(max(0.0, wait_s), self._draw)

    def note(self, text: str) -> None:
        """Say something about the reply. Whatever was growing grows no more."""
        self._finish_all()
        self._pieces.append(NotePiece(text))
        self._print_finished()

    # --- parts to pieces ---

    def _take(self, part: Part) -> None:
        match part:
            case TextStart() | TextDelta() | TextEnd():
                self._take_speech(TextPiece, part)
            case ReasoningStart() | ReasoningDelta() | ReasoningEnd():
                self._take_speech(ThoughtPiece, part)
            case Source():
                self._pieces.append(NotePiece(f"↗ {part.title or part.url or part.id}"))
            case StreamWarning():
                self._pieces.append(NotePiece(part.message))
            case Finish(reason="length"):
                self._pieces.append(NotePiece("The reply reached the model's length limit."))
            case _:
                self._take_tool(part)

    def _take_speech(
        self,
        kind: type[TextPiece | ThoughtPiece],
        part: TextStart | TextDelta | TextEnd | ReasoningStart | ReasoningDelta | ReasoningEnd,
    ) -> None:
        piece = self._speech.get((kind, part.id))
        if piece is None:
            piece = self._speech[kind, part.id] = kind()
            self._pieces.append(piece)
        if isinstance(part, TextDelta | ReasoningDelta):
            piece.text += disarm(part.delta)
        elif isinstance(part, TextEnd | ReasoningEnd):
            piece.finished = True
            del self._speech[kind, part.id]

    def _take_tool(self, part: Part) -> None:
        match part:
            case ToolInputStart():
                self._find_tool(part.id, part.name)
            case ToolInputDelta():
                self._find_tool(part.id).arguments += part.delta
            case ToolCall():
                tool = self._find_tool(part.id, part.name)
                tool.arguments, tool.state = part.arguments, "waiting"
            case ToolStarted():
                self._find_tool(part.call_id, part.name).state = "running"
            case ToolProgress():
                self._find_tool(part.call_id).state = part.text
            case ToolResult():
                tool = self._find_tool(part.call_id, part.name)
                tool.result, tool.finished = part, True
                del self._tools[part.call_id]
            case _:
                pass

    def _find_tool(self, id: str, name: str = "a tool") -> ToolPiece:
        if id not in self._tools:
            self._tools[id] = ToolPiece(name)
            self._pieces.append(self._tools[id])
        return self._tools[id]

    def _finish_all(self) -> None:
        for piece in self._pieces:
            piece.finished = True
        self._speech.clear()
        self._tools.clear()

    # --- pieces to lines ---

    def _draw(self) -> None:
        self._next_frame = None
        self._drawn_at_s = self._clock.monotonic()
        self._print_finished()

    def _print_finished(self) -> None:
        """Print what is finished, with a blank line after each piece, and draw the rest below it."""
        finished: list[Line] = []
        while self._pieces:
            lines = self._pieces[0].take_finished(self._console)
            if lines:
                finished += [*lines, []]
            if not self._pieces[0].finished:
                break
            del self._pieces[0]
        growing = [line for piece in self._pieces for line in (*piece.render(self._console), [])]
        room = max(1, self._console.height - 2)
        with self._console:  # one write, so that nobody sees the screen in between
            self._live.update(_Lines([]), refresh=True)
            self._console.print(_Lines(finished), end="")
            self._live.update(_Lines(growing[:-1][-room:] or [_WAITING]), refresh=True)


class _Lines:
    """Lines that are rendered already."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self._lines:
            yield from line
            yield Segment.line()
