"""Which part of a reply belongs to which piece of the screen.

Parts come in as they were said and become *pieces* (pieces.py), in the order in which they began. A reply that was cut
and goes on (after a crash, after a failure) is one reply: its text goes on in the piece in which it was cut, in the
middle of a word if need be. What the model thinks before it goes on is shown while it thinks, and is gone then.

Must stay true (tests/terminal/test_screen.py): wherever a reply is cut and however often, its text comes out as if
it had not been.

When pieces are drawn, and which of them for good, is screen.py.
"""

from __future__ import annotations

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
from indelible.terminal.markdown import disarm
from indelible.terminal.pieces import NotePiece, Piece, TextPiece, ThoughtPiece, ToolPiece


class Assembly:
    """The pieces that are not printed yet, oldest first."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._speech: dict[tuple[type, str], TextPiece | ThoughtPiece] = {}
        self._tools: dict[str, ToolPiece] = {}
        self._cut: TextPiece | None = None

    def add(self, piece: Piece) -> None:
        """Something that is not said by the model. Whatever was growing grows no more."""
        self.end()
        self.pieces.append(piece)

    def take(self, part: Part) -> None:
        match part:
            case TextStart() | TextDelta() | TextEnd():
                self._take_speech(TextPiece, part)
            case ReasoningStart() | ReasoningDelta() | ReasoningEnd():
                self._take_speech(ThoughtPiece, part)
            case Source():
                self._append(NotePiece(f"↗ {part.title or part.url or part.id}"))
            case StreamWarning():
                self._append(NotePiece(part.message))
            case Finish(reason="length"):
                self._append(NotePiece("The reply reached the model's length limit."))
            case _:
                self._take_tool(part)

    # --- attempts ---

    def begin_attempt(self) -> None:
        """What the last attempt left open is over, but for a text that was cut."""
        for piece in self.pieces:
            piece.finished = piece is not self._cut
        self._speech.clear()
        self._tools.clear()
        self._remove_fleeting()

    def end_attempt(self, *, cut: bool) -> None:
        """Nothing more is said in this attempt; its tools may still be answered."""
        last = self.pieces[-1] if self.pieces else None
        self._cut = last if cut and isinstance(last, TextPiece) and not last.finished else None
        for piece in self.pieces:
            if isinstance(piece, TextPiece | ThoughtPiece):
                piece.finished = piece is not self._cut
        self._speech.clear()
        self._remove_fleeting()

    def drop_attempt(self) -> None:
        """What was said in this attempt does not count: it was thinking alone. What is printed stays."""
        for piece in self._speech.values():
            if isinstance(piece, TextPiece):
                self._cut = piece
            else:
                self.pieces.remove(piece)
        self._speech.clear()

    def end(self) -> None:
        """Nothing that was growing grows on."""
        self._cut = None
        self.begin_attempt()

    # --- parts to pieces ---

    def _take_speech(
        self,
        kind: type[TextPiece | ThoughtPiece],
        part: TextStart | TextDelta | TextEnd | ReasoningStart | ReasoningDelta | ReasoningEnd,
    ) -> None:
        piece = self._speech.get((kind, part.id))
        if piece is None:
            piece = self._speech[kind, part.id] = self._begin_speech(kind)
        if isinstance(part, TextDelta | ReasoningDelta):
            piece.text += disarm(part.delta)
        elif isinstance(part, TextEnd | ReasoningEnd):
            piece.finished = True
            del self._speech[kind, part.id]
            self._remove_fleeting()

    def _begin_speech(self, kind: type[TextPiece | ThoughtPiece]) -> TextPiece | ThoughtPiece:
        piece = kind()
        if isinstance(piece, ThoughtPiece):
            piece.fleeting = self._cut is not None
        elif self._cut is not None:
            piece, self._cut = self._cut, None
            return piece
        self.pieces.append(piece)
        return piece

    def _remove_fleeting(self) -> None:
        self.pieces = [
            piece
            for piece in self.pieces
            if not (isinstance(piece, ThoughtPiece) and piece.fleeting and piece.finished)
        ]

    def _take_tool(self, part: Part) -> None:
        match part:
            case ToolInputStart():
                self._find_tool(part.id, part.name)
            case ToolInputDelta():
                self._find_tool(part.id).arguments += part.delta
            case ToolCall():
                tool = self._find_tool(part.id, part.name)
                tool.arguments, tool.state = part.arguments, "running" if part.started else "waiting"
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

    def _find_tool(self, id: str, name: str = "a tool") -> ToolPiece:
        if id not in self._tools:
            self._tools[id] = ToolPiece(name)
            self._append(self._tools[id])
        return self._tools[id]

    def _append(self, piece: Piece) -> None:
        """The reply goes on with something that is not speech: a text that was cut is then over."""
        if self._cut is not None:
            self._cut.finished, self._cut = True, None
        self.pieces.append(piece)
