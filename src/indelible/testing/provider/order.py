"""A model's parts, put into the strict order that wire formats need.

A model may be loose: omit a start or an end, send a call in one piece, or in pieces and then whole, send a source after
the end of its text. A wire format may not. After this module, every delta belongs to a started block; a call is
started, continued and ended before it comes whole; a source comes while a text is open; and at the finish everything is
ended.

The end of a text is held back until the next part, so that a late source still finds its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from indelible.content import (
    Finish,
    Part,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Source,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
)

_HOME_OF_SOURCES: Final = "sources"


class PartOrder:
    """Orders the parts of one reply."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self._reasonings: dict[str, None] = {}
        self._calls: dict[str, list[str]] = {}
        self._ended_calls: set[str] = set()
        self._held: TextEnd | None = None

    def feed(self, part: Part) -> Sequence[Part]:
        """The parts to write for this part."""
        if self._held is None:
            if type(part) is TextDelta and part.id in self._texts:
                return (part,)
        elif not isinstance(part, Source):
            held, self._held = self._held, None
            return (held, *self.feed(part))
        match part:
            case TextStart() | TextDelta() | TextEnd():
                return self._feed_text(part)
            case ReasoningStart() | ReasoningDelta() | ReasoningEnd():
                return self._feed_reasoning(part)
            case ToolInputStart() | ToolInputDelta() | ToolInputEnd():
                return self._feed_input(part)
            case ToolCall():
                return self._feed_call(part)
            case Source():
                return self._feed_source(part)
            case Finish():
                return (*self._end_all(), part)
            case _:
                return (part,)

    def _feed_text(self, part: TextStart | TextDelta | TextEnd) -> Sequence[Part]:
        started = [] if part.id in self._texts else [TextStart(part.id)]
        self._texts[part.id] = None
        match part:
            case TextStart():
                return started
            case TextDelta():
                return (*started, part)
            case TextEnd():
                del self._texts[part.id]
                self._held = part
                return started

    def _feed_reasoning(self, part: ReasoningStart | ReasoningDelta | ReasoningEnd) -> Sequence[Part]:
        is_open = part.id in self._reasonings
        self._reasonings[part.id] = None
        if isinstance(part, ReasoningEnd):
            del self._reasonings[part.id]
        if isinstance(part, ReasoningStart):
            return () if is_open else (part,)
        return (part,) if is_open else (ReasoningStart(part.id), part)

    def _feed_input(self, part: ToolInputStart | ToolInputDelta | ToolInputEnd) -> Sequence[Part]:
        is_open = part.id in self._calls
        pieces = self._calls.setdefault(part.id, [])
        match part:
            case ToolInputStart():
                self._ended_calls.discard(part.id)
                return () if is_open else (part,)
            case ToolInputDelta():
                pieces.append(part.delta)
            case ToolInputEnd():
                del self._calls[part.id]
                self._ended_calls.add(part.id)
        return (part,) if is_open else (ToolInputStart(part.id, ""), part)

    def _feed_call(self, call: ToolCall) -> Sequence[Part]:
        """The whole call, after the deltas that were not yet sent."""
        if call.id in self._ended_calls:
            self._ended_calls.remove(call.id)
            return (call,)
        missing: list[Part] = []
        if call.id not in self._calls:
            missing.append(ToolInputStart(call.id, call.name, call.provider_executed, call.standalone))
        sent = "".join(self._calls.pop(call.id, ()))
        if len(call.arguments) > len(sent) and call.arguments.startswith(sent):
            missing.append(ToolInputDelta(call.id, call.arguments[len(sent) :]))
        return (*missing, ToolInputEnd(call.id), call)

    def _feed_source(self, source: Source) -> Sequence[Part]:
        if self._held is not None or self._texts:
            return (source,)
        self._held = TextEnd(_HOME_OF_SOURCES)
        return (TextStart(_HOME_OF_SOURCES), source)

    def _end_all(self) -> list[Part]:
        ends: list[Part] = [ReasoningEnd(id_) for id_ in self._reasonings]
        ends += [TextEnd(id_) for id_ in self._texts]
        ends += [ToolInputEnd(id_) for id_ in self._calls]
        self._reasonings.clear()
        self._texts.clear()
        self._calls.clear()
        return ends
