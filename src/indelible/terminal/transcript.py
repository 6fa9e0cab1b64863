"""Which part of a reply belongs to which piece of the screen.

Parts arrive in order and become *pieces* (widgets.py), in the order in which they began. A reply that continues after a
crash or a failure is one reply: its text continues in the same piece, in the middle of a word if need be. Thinking
before the continuation is shown only while it lasts.

Must stay true (tests/terminal/test_screen.py): wherever a reply is interrupted and however often, its text is shown as
if it had not been.

screen.py decides when pieces are drawn, and which are printed for good.
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
from indelible.terminal.widgets import NoteWidget, TextWidget, ThoughtWidget, ToolWidget, Widget


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
