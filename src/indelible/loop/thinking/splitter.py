"""Splitting off the thinking that a model writes inside its text, as the text streams.

One scanner serves live streams, stops, saves, titles and exports (rule 5.6). Thinking is moved,
never deleted and never shown as answer. Apart from that, only the marks (tags.py) and isolated
blanks are removed: blanks before and after a block at the start of the answer, and blanks in a
block that holds nothing else. Text without marks does not change.

Text is released as soon as it cannot be part of a mark. The held text is bounded: a piece of a mark,
a mark after an open back-tick (markdown.py limits how long), leading blanks. The line
structure that decides what is code is that of the answer without the thinking.

A model that *thinks first* starts in thinking, and everything up to the first closer is reasoning.
If no closer ever arrives, it stays reasoning: the text had to be published at once to be safe, nothing published is
retracted, and such a reply was most likely interrupted while thinking. The state is then still `Section.FIRST`, for a
caller that wants to inform the user.

Must stay true (tests/loop/test_thinking.py): the segments do not depend on the chunks of the text; no
character is lost; time is linear; a splitter started from another's state continues where that one
ended, and exactly so if that one held nothing back.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from indelible.loop.thinking.markdown import AT_START, IN_THOUGHT, Line, MarkdownPosition, is_quoted, pass_angle, walk
from indelible.loop.thinking.tags import Section, find_target, may_become_mark, read_mark

_find_special: Final = re.compile(r"[<`\n]").search
_find_nonblank: Final = re.compile(r"\S").search


class Segment(NamedTuple):
    """A piece of the model's text."""

    thinking: bool
    text: str


class Lead(StrEnum):
    """How blanks are treated now: they wait for a first word, are dropped, or are text."""

    HOLD = "hold"
    DROP = "drop"
    KEEP = "keep"


class SplitterState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a splitter, which a continuing attempt starts with. Has a JSON form."""

    section: Section = Section.ANSWER
    lead: Lead = Lead.HOLD
    answered: bool = False
    place: MarkdownPosition = AT_START
    answer_place: MarkdownPosition = AT_START

    @property
    def thinking(self) -> bool:
        return self.section.is_thinking


_ANSWERS_FIRST: Final = SplitterState()
_THINKS_FIRST: Final = SplitterState(section=Section.FIRST, place=IN_THOUGHT)


class ThinkingSplitter:
    """Feed it text as it arrives; see the module header. A given `state` overrides `thinks_first`."""

    def __init__(self, *, thinks_first: bool = False, state: SplitterState | None = None) -> None:
        start = state or (_THINKS_FIRST if thinks_first else _ANSWERS_FIRST)
        self._section = start.section
        self._lead = start.lead
        self._answered = start.answered
        self._place = start.place
        self._answer_place = start.answer_place
        self._held = ""
        self._blanks: list[str] = []
        self._ready: list[Segment] = []
        self._pieces: list[str] = []
        self._pieces_are_thinking = False
        self._thinking = start.section.is_thinking
        self._is_plain = self._passes_plain_text()

    @property
    def thinking(self) -> bool:
        """Whether the model is thinking now; it changes as soon as a block has ended."""
        return self._thinking

    @property
    def holding(self) -> bool:
        """Whether some text has not been released yet."""
        return bool(self._held or self._blanks)

    @property
    def state(self) -> SplitterState:
        """Where the next attempt continues. Read it after `finish`."""
        return SplitterState(self._section, self._lead, self._answered, self._place, self._answer_place)

    def feed(self, text: str) -> list[Segment]:
        """The segments to release now. Neighbours are of different kinds; none is empty."""
        if self._is_plain and text and _find_special(text) is None:
            return [Segment(self._thinking, text)]
        return self._scan(text, final=False)

    def finish(self) -> list[Segment]:
        """Release the held text unchanged, because the text is over."""
        return self._scan("", final=True)

    def _scan(self, text: str, *, final: bool) -> list[Segment]:
        text = self._held + text
        begin = pos = 0
        while True:
            if self._lead is Lead.DROP and begin == pos:
                word = _find_nonblank(text, pos)
                begin = pos = len(text) if word is None else word.start()
            self._place, pos = walk(self._place, text, pos)
            if pos == len(text):
                break
            found = read_mark(text, pos)
            if found is None:
                if not final and may_become_mark(text, pos):
                    break
            else:
                self._emit(text[begin:pos])
                begin = pos
                target = find_target(self._section, found.mark, at_start=self._lead is Lead.HOLD)
                if target is not None:
                    quoted = is_quoted(self._place, text, found.end, final=final)
                    if quoted is None:
                        break
                    if not quoted:
                        self._enter(target)
                        begin = pos = found.end
                        continue
            self._place = pass_angle(self._place)
            pos += 1
        self._emit(text[begin:pos])
        self._held = text[pos:]
        if final:
            self._release_blanks()
        self._is_plain = self._passes_plain_text()
        return self._drain_ready()

    def _emit(self, text: str) -> None:
        if not text:
            return
        if self._lead is Lead.KEEP:
            self._release([text])
        elif text.isspace():
            self._blanks.append(text)
        else:
            self._lead = Lead.KEEP
            self._answered = self._answered or not self._thinking
            self._release([*self._blanks, text])
            self._blanks.clear()

    def _enter(self, section: Section) -> None:
        """Enter another section; the mark between them is removed."""
        self._blanks.clear()
        if not self._thinking:
            self._answer_place = self._place if self._answered else AT_START
        if not section.is_thinking:
            self._place = self._answer_place
            self._lead = Lead.KEEP if self._answered else Lead.DROP
        elif not self._thinking:
            self._place = IN_THOUGHT
            self._lead = Lead.HOLD
        self._section = section
        self._thinking = section.is_thinking

    def _release(self, pieces: list[str]) -> None:
        if self._pieces_are_thinking is not self._thinking:
            self._close_segment()
            self._pieces_are_thinking = self._thinking
        self._pieces += pieces

    def _release_blanks(self) -> None:
        """Blanks are an answer if there is no other text; they are never thinking."""
        if not self._thinking:
            self._release(self._blanks)
        self._blanks.clear()

    def _close_segment(self) -> None:
        if self._pieces:
            self._ready.append(Segment(self._pieces_are_thinking, "".join(self._pieces)))
            self._pieces = []

    def _drain_ready(self) -> list[Segment]:
        self._close_segment()
        ready, self._ready = self._ready, []
        return ready

    def _passes_plain_text(self) -> bool:
        """Whether text without a `<`, a back-tick or a newline can be released unchanged."""
        mid_line = self._place.line in (Line.TEXT, Line.CODE, Line.THOUGHT) and not self._place.run_char
        return mid_line and self._lead is Lead.KEEP and not self._held
