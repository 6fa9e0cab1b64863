"""Whether a tag is inside code: the part of Markdown that this needs.

A `MarkdownPosition` is all the state that the text so far leaves, and `walk` continues from it, so text
can be read in pieces of any size. The rules are simpler than CommonMark's, and where they differ
they end code sooner: a tag shown as text is a blemish, thinking shown as an answer is a leak.

  * a fence is three or more ` or ~ at the start of a line that is not indented code; the next line
    that starts with at least as many ends it, whatever follows on that line.
    With a back-tick in its info string it is not a fence;
  * a line indented by four or more is code at the start, after a blank line, and after such code;
  * back-ticks quote a tag if runs of the same length precede and follow it on its line,
    the second one ending at most `QUOTE_REACH_CHARS` after the tag. So a single stray back-tick
    is just text, and only a tag after an open back-tick ever has to wait for more text.

In thinking only the back-ticks count (`Line.THOUGHT`): a fence still open at the closer
was left open by mistake, and an answer swallowed by it would be worse. Not parsed: quotes, list markers,
backslash escapes.

Must stay true (tests/loop/test_thinking.py): a position is a function of the text, not of its
chunks. splitter.py uses it.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

QUOTE_REACH_CHARS: Final = 256
_CODE_INDENT: Final = 4
_MAX_INDENT: Final = 256
_MIN_FENCE: Final = 3


class Line(StrEnum):
    """The kind of the current line, so far."""

    START = "start"
    TEXT = "text"
    CODE = "code"
    OPENING = "opening"
    THOUGHT = "thought"


class Fence(msgspec.Struct, frozen=True):
    char: str
    length: int


class MarkdownPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position of the next character.

    `ticks` are the lengths of the open back-tick runs on this line, all different.
    `run_char` is set while the last character may belong to an unfinished run; `run` is its length.
    """

    line: Line = Line.START
    indent: int = 0
    may_indent_code: bool = True
    fence: Fence | None = None
    ticks: tuple[int, ...] = ()
    run_char: str = ""
    run: int = 0


AT_START: Final = MarkdownPosition()
IN_THOUGHT: Final = MarkdownPosition(line=Line.THOUGHT)

_RUNS: Final = {"`": re.compile("`+"), "~": re.compile("~+")}
_BLANKS: Final = re.compile(r"[ \t\r]+")
_STOPS: Final = {
    Line.TEXT: re.compile(r"[\n`<]"),
    Line.THOUGHT: re.compile(r"[\n`<]"),
    Line.CODE: re.compile(r"\n"),
    Line.OPENING: re.compile(r"[\n`]"),
}


def walk(place: MarkdownPosition, text: str, pos: int) -> tuple[MarkdownPosition, int]:
    """Walk from `place` at `text[pos]` to the next `<` that is not in a code block, or to the end."""
    end = len(text)
    while pos < end:
        char = text[pos]
        if place.run_char:
            if char == place.run_char:
                start, pos = pos, _find_end(_RUNS[char], text, pos)
                place = replace(place, run=place.run + pos - start)
            else:
                place = _settle_run(place)
        elif place.line is Line.START:
            if char == "\n":
                place, pos = _end_line(place), pos + 1
            elif char in " \t\r":
                start, pos = pos, _find_end(_BLANKS, text, pos)
                place = replace(place, indent=_widen_indent(place.indent, text[start:pos]))
            else:
                place = _begin_line(place, char)
                if place.line is Line.START and not place.run_char:
                    return place, pos
        else:
            stop = _STOPS[place.line].search(text, pos)
            if stop is None:
                return place, end
            pos = stop.start()
            match text[pos]:
                case "\n":
                    place, pos = _end_line(place), pos + 1
                case "`":
                    place = _begin_run(place)
                case _:
                    return place, pos
    return place, end


def pass_angle(place: MarkdownPosition) -> MarkdownPosition:
    """The position after a `<` that turned out to be text."""
    return replace(place, line=Line.TEXT) if place.line is Line.START else place


def is_quoted(place: MarkdownPosition, text: str, end: int, *, final: bool) -> bool | None:
    """Whether the tag at `place` that ends at `end` is in back-ticks. None: the text so far does not show it.

    In thinking the closing back-ticks must follow at once: a stray one must not cost the answer.
    """
    if not place.ticks:
        return False
    if place.line is Line.THOUGHT:
        run = _RUNS["`"].match(text, end)
        if (end if run is None else run.end()) == len(text) and not final:
            return None
        return run is not None and run.end() - run.start() in place.ticks
    reach = end + QUOTE_REACH_CHARS
    newline = text.find("\n", end, reach)
    limit = newline if newline >= 0 else reach
    decided = final or limit <= len(text)
    for run in _RUNS["`"].finditer(text, end, limit):
        if run.end() == len(text) and not decided:
            return None
        if run.end() - run.start() in place.ticks:
            return True
    return False if decided else None


def _begin_line(place: MarkdownPosition, char: str) -> MarkdownPosition:
    fence = place.fence
    if fence is not None:
        return replace(place, run_char=char) if char == fence.char else replace(place, line=Line.CODE)
    if place.indent >= _CODE_INDENT and place.may_indent_code:
        return replace(place, line=Line.CODE)
    if char in _RUNS:
        return replace(place, run_char=char)
    return place if char == "<" else replace(place, line=Line.TEXT)


def _begin_run(place: MarkdownPosition) -> MarkdownPosition:
    fence = place.fence
    if place.line is not Line.OPENING or fence is None:
        return replace(place, run_char="`")
    if fence.char == "~":
        return replace(place, line=Line.CODE)
    return MarkdownPosition(line=Line.TEXT, ticks=(fence.length,), run_char="`")


def _settle_run(place: MarkdownPosition) -> MarkdownPosition:
    """The run is over: classify it."""
    fence, char, length = place.fence, place.run_char, place.run
    place = replace(place, run_char="", run=0)
    if place.line is Line.START:
        if fence is not None:
            return replace(place, line=Line.CODE, fence=None if length >= fence.length else fence)
        if length >= _MIN_FENCE:
            return replace(place, line=Line.OPENING, fence=Fence(char, length))
        place = replace(place, line=Line.TEXT)
    if char == "~":
        return place
    ticks = place.ticks
    return replace(place, ticks=ticks[: ticks.index(length)] if length in ticks else (*ticks, length))


def _end_line(place: MarkdownPosition) -> MarkdownPosition:
    match place.line:
        case Line.THOUGHT:
            return IN_THOUGHT
        case Line.TEXT:
            return MarkdownPosition(may_indent_code=False)
        case _:
            return MarkdownPosition(fence=place.fence)


def _find_end(pattern: re.Pattern[str], text: str, pos: int) -> int:
    match = pattern.match(text, pos)
    return pos if match is None else match.end()


def _widen_indent(indent: int, blanks: str) -> int:
    if indent >= _MAX_INDENT:
        return _MAX_INDENT
    return min(len((" " * indent + blanks.replace("\r", "")).expandtabs(_CODE_INDENT)), _MAX_INDENT)
