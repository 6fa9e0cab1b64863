"""Thinking that a model writes inside its text: split off as the text streams.

One scanner serves live streams, stops, saves, titles and exports (rule 5.6). Thinking is moved, never deleted and never
shown as answer. Apart from that, only the marks and isolated blanks are removed: blanks before and after a block at the
start of the answer, and blanks in a block that holds nothing else. Text without marks does not change. It is released
as soon as it cannot be part of a mark, and what is held is bounded: a piece of a mark, a mark after an open back-tick,
leading blanks.

*Marks.* Models use three families. Tags: `<think>`, `<thinking>`, `<reasoning>`, `<reason>`, `<thought>`. Paired
tokens: `<|begin_of_thought|>`, often with a `<|begin_of_solution|>` pair around the answer. Channels: Harmony's
`<|channel|>analysis<|message|>…<|end|>` and Gemma's `<|channel>thought…<channel|>`. Case does not matter. `TRANSITIONS`
is the whole rule: in this section, this mark leads to that section; a mark without an entry is ordinary text. So a
stray closer is text, and thinking does not nest: models mention `<think>` while they think, and counting it would
swallow the answer. A tag's attributes must have values: `<reason for leaving>` is a placeholder in a letter. A Harmony
message to a tool (`to=functions.x`) is neither thinking nor markup: it stays unchanged.

*Thinking first.* Such a model starts in thinking, and everything up to the first closer is reasoning. If no closer ever
arrives, it stays reasoning: the text had to be published at once to be safe, nothing published is retracted, and such a
reply was most likely interrupted while thinking. The state is then still `Section.FIRST`.

*Code.* A mark in code is text. This reads the part of Markdown that it needs, and where its rules differ from
CommonMark's they end code sooner: a tag shown as text is a blemish, thinking shown as an answer is a leak.

  * a fence is three or more ` or ~ at the start of a line that is not indented code; the next line that starts with at
    least as many ends it, whatever follows on that line. With a back-tick in its info string it is not a fence;
  * a line indented by four or more is code at the start, after a blank line, and after such code;
  * back-ticks quote a tag if runs of the same length precede and follow it on its line, the second one ending at most
    `QUOTE_REACH_CHARS` after the tag. Only a tag after an open back-tick ever has to wait for more text.

The lines are those of the answer without the thinking. In thinking only the back-ticks count: a fence still open at the
closer was left open by mistake. Not parsed: quotes, list markers, backslash escapes.

Must stay true (tests/loop/test_thinking.py): the segments do not depend on the chunks of the text; no character is
lost; time is linear; a splitter started from another's state continues where that one ended, and exactly so if that one
held nothing back; no complete mark is the beginning of another one, and `may_become_mark` is true of every proper
beginning of a mark.
"""

from __future__ import annotations

import re
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

# --- marks: what each one does -------------------------------------------------------------

MAX_MARK_CHARS: Final = 256
"""No mark is longer: what is, is text."""


class Section(StrEnum):
    """The kind of the current text: a piece of the answer, or thinking that some mark will end."""

    ANSWER = "answer"
    AFTER_THOUGHT = "after_thought"
    SOLUTION = "solution"
    MESSAGE = "message"
    FIRST = "first"
    THINK = "think"
    THINKING = "thinking"
    REASONING = "reasoning"
    REASON = "reason"
    THOUGHT = "thought"
    PAIRED_THOUGHT = "paired_thought"
    ANALYSIS = "analysis"
    CHANNEL = "channel"

    @property
    def is_thinking(self) -> bool:
        return self not in _ANSWERS


_ANSWERS: Final = frozenset({Section.ANSWER, Section.AFTER_THOUGHT, Section.SOLUTION, Section.MESSAGE})
_TAGS: Final = (Section.THINKING, Section.THINK, Section.REASONING, Section.REASON, Section.THOUGHT)
_HEADERS: Final = {
    "<|channel|>analysis": Section.ANALYSIS,
    "<|channel|>commentary": Section.MESSAGE,
    "<|channel|>final": Section.MESSAGE,
}
_MESSAGE_ENDS: Final = {"<|end|>": Section.ANSWER, "<|return|>": Section.ANSWER}
_OPENERS: Final = {
    **{f"<{tag}>": tag for tag in _TAGS},
    "<|begin_of_thought|>": Section.PAIRED_THOUGHT,
    "<|channel>thought": Section.CHANNEL,
    **_HEADERS,
}
_CLOSERS: Final = {
    **{tag: {f"</{tag}>": Section.ANSWER} for tag in _TAGS},
    Section.PAIRED_THOUGHT: {"<|end_of_thought|>": Section.AFTER_THOUGHT},
    Section.CHANNEL: {"<channel|>": Section.ANSWER},
    Section.ANALYSIS: {**_MESSAGE_ENDS, **_HEADERS},
}
TRANSITIONS: Final[dict[Section, dict[str, Section]]] = {
    **_CLOSERS,
    Section.ANSWER: _OPENERS,
    Section.AFTER_THOUGHT: {**_OPENERS, "<|begin_of_solution|>": Section.SOLUTION},
    Section.SOLUTION: {**_OPENERS, "<|end_of_solution|>": Section.ANSWER},
    Section.MESSAGE: {**_OPENERS, **_MESSAGE_ENDS},
    Section.FIRST: {**_OPENERS, **{mark: to for closers in _CLOSERS.values() for mark, to in closers.items()}},
}


def find_target(section: Section, mark: str, *, at_start: bool) -> Section | None:
    """Where `mark` leads from `section`, or None if it is text there.

    A model that thinks first may still write its opener, but only `at_start`: later on it is ordinary thinking text.
    """
    target = TRANSITIONS[section].get(mark)
    is_late_opener = section is Section.FIRST and target is not None and target.is_thinking and not at_start
    return None if is_late_opener else target


# --- marks: how they are written -------------------------------------------------------------

_NAMES: Final = "|".join(_TAGS)
_VALUE: Final = r"""(?:"[^"]*"|'[^']*'|[^\s"'<>=`]++)"""
_UNFINISHED_VALUE: Final = r"""(?:"[^"]*|'[^']*|[^\s"'<>=`]*)"""
_ATTRIBUTES: Final = rf"(?:\s+[\w:.-]++\s*=\s*{_VALUE})*+"
_MARK: Final = re.compile(
    rf"<(?P<opens>{_NAMES}){_ATTRIBUTES}\s*>"
    rf"|</(?P<closes>{_NAMES})\s*>"
    r"|(?P<token><\|(?:(?:begin|end)_of_(?:thought|solution)|end|return)\|>|<\|channel>thought|<channel\|>)"
    r"|(?:<\|start\|>\s*assistant\s*)?<\|channel\|>\s*(?P<channel>analysis|commentary|final)\s*"
    r"(?:<\|constrain\|>\s*json\s*)?<\|message\|>",
    re.IGNORECASE | re.ASCII,
)
_UNFINISHED_TAG: Final = re.compile(
    rf"</(?:{_NAMES})\s*"
    rf"|<(?:{_NAMES}){_ATTRIBUTES}(?:\s+(?:[\w:.-]++\s*(?:=\s*{_UNFINISHED_VALUE})?)?)?",
    re.IGNORECASE | re.ASCII,
)
_SPELLINGS: Final = (
    *(mark for marks in TRANSITIONS.values() for mark in marks if mark not in _HEADERS),
    *(
        f"{start}{header}{constrain}<|message|>"
        for start in ("", "<|start|>assistant")
        for header in _HEADERS
        for constrain in ("", "<|constrain|>json")
    ),
)
_BEGINNINGS: Final = frozenset(mark[:length] for mark in _SPELLINGS for length in range(1, len(mark)))
_PLAIN_NAMES: Final = {"opens": "<{}>", "closes": "</{}>", "channel": "<|channel|>{}", "token": "{}"}


class Found(NamedTuple):
    mark: str
    end: int


def read_mark(text: str, start: int) -> Found | None:
    """The mark at `start`, under its plain name, and where it ends."""
    written = _MARK.match(text, start, start + MAX_MARK_CHARS)
    if written is None or written.lastgroup is None:
        return None
    return Found(_PLAIN_NAMES[written.lastgroup].format(written[written.lastgroup]).lower(), written.end())


def may_become_mark(text: str, start: int) -> bool:
    """Whether the text from `start` to the end could grow into a mark. False positives are possible, misses are not."""
    if len(text) - start >= MAX_MARK_CHARS:
        return False
    tail = text[start:]
    written = "".join(tail.split()) if "|>" in tail else tail
    return written.lower() in _BEGINNINGS or _UNFINISHED_TAG.fullmatch(tail) is not None


# --- code --------------------------------------------------------------------------------------

QUOTE_REACH_CHARS: Final = 256
_CODE_INDENT: Final = 4
_MAX_INDENT: Final = 256
_MIN_FENCE: Final = 3
Line = Literal["start", "text", "code", "opening", "thought"]
"""The kind of the current line, so far. `opening` may still turn out to be no fence."""


class MarkdownPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position of the next character: all the state that the text so far leaves.

    `fence` is the run that opened the fence, or empty. `ticks` are the lengths of the open back-tick runs on this
    line, all different. `run_char` is set while the last character may belong to an unfinished run of `run` characters.
    """

    line: Line = "start"
    indent: int = 0
    may_indent_code: bool = True
    fence: str = ""
    ticks: tuple[int, ...] = ()
    run_char: str = ""
    run: int = 0


_AT_START: Final = MarkdownPosition()
_IN_THOUGHT: Final = MarkdownPosition(line="thought")
_RUNS: Final = {"`": re.compile("`*"), "~": re.compile("~*")}
_TICKS: Final = re.compile("`+")
_BLANKS: Final = re.compile(r"[ \t\r]*")
_find_special: Final = re.compile(r"[<`\n]").search
_STOPS: Final = {"code": re.compile(r"\n").search, "opening": re.compile(r"[\n`]").search}


def _walk(place: MarkdownPosition, text: str, pos: int) -> tuple[MarkdownPosition, int]:
    """Walk from `place` at `text[pos]` to the next `<` that is not in a code block, or to the end."""
    while pos < len(text):
        if place.run_char:
            end = _find_end(_RUNS[place.run_char], text, pos)
            place = replace(place, run=place.run + end - pos) if end > pos else _settle_run(place)
            pos = end
        elif text[pos] == "\n":
            place, pos = _end_line(place), pos + 1
        elif place.line == "start":
            end = _find_end(_BLANKS, text, pos)
            if end > pos:
                blanks = " " * place.indent + text[pos:end].replace("\r", "")
                place = replace(place, indent=min(len(blanks.expandtabs(_CODE_INDENT)), _MAX_INDENT))
                pos = end
                continue
            place = _begin_line(place, text[pos])
            if place.line == "start" and not place.run_char:
                break
        else:
            stop = _STOPS.get(place.line, _find_special)(text, pos)
            if stop is None:
                return place, len(text)
            pos = stop.start()
            if text[pos] == "<":
                break
            if text[pos] == "`" and place.line == "opening":  # it was no fence
                place = MarkdownPosition(line="text", ticks=(len(place.fence),))
            if text[pos] == "`":
                place = replace(place, run_char="`")
    return place, pos


def _find_end(pattern: re.Pattern[str], text: str, pos: int) -> int:
    found = pattern.match(text, pos)
    return pos if found is None else found.end()


def _begin_line(place: MarkdownPosition, char: str) -> MarkdownPosition:
    is_indented = place.indent >= _CODE_INDENT and place.may_indent_code
    if char == place.fence[:1] or (char in _RUNS and not place.fence and not is_indented):
        return replace(place, run_char=char)
    if place.fence or is_indented:
        return replace(place, line="code")
    return place if char == "<" else replace(place, line="text")


def _settle_run(place: MarkdownPosition) -> MarkdownPosition:
    """The run is over: classify it."""
    fence, char, length = place.fence, place.run_char, place.run
    place = replace(place, run_char="", run=0)
    if place.line == "start":
        if fence:
            return replace(place, line="code", fence="" if length >= len(fence) else fence)
        if length >= _MIN_FENCE:
            return replace(place, line="opening" if char == "`" else "code", fence=char * length)
        place = replace(place, line="text")
    if char == "~":
        return place
    ticks = place.ticks
    return replace(place, ticks=ticks[: ticks.index(length)] if length in ticks else (*ticks, length))


def _end_line(place: MarkdownPosition) -> MarkdownPosition:
    if place.line == "thought":
        return _IN_THOUGHT
    return MarkdownPosition(may_indent_code=False) if place.line == "text" else MarkdownPosition(fence=place.fence)


def _is_quoted(place: MarkdownPosition, text: str, end: int, *, final: bool) -> bool | None:
    """Whether the tag at `place` that ends at `end` is in back-ticks. None: the text so far does not show it.

    In thinking the closing back-ticks must follow at once: a stray one must not cost the answer.
    """
    if not place.ticks:
        return False
    if place.line == "thought":
        ticks_end = _find_end(_TICKS, text, end)
        return None if ticks_end == len(text) and not final else ticks_end - end in place.ticks
    rest, newline, _ = text[end : end + QUOTE_REACH_CHARS].partition("\n")
    is_all_there = final or newline != "" or len(rest) == QUOTE_REACH_CHARS
    for run in _TICKS.finditer(rest):
        if run.end() == len(rest) and not is_all_there:
            return None
        if run.end() - run.start() in place.ticks:
            return True
    return False if is_all_there else None


# --- splitting -----------------------------------------------------------------------------------

Lead = Literal["hold", "drop", "keep"]
"""How blanks are treated now: they wait for a first word, are dropped, or are text."""
_find_nonblank: Final = re.compile(r"\S").search


class Segment(NamedTuple):
    """A piece of the model's text."""

    thinking: bool
    text: str


class SplitterState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a splitter, which a continuing attempt starts with. Has a JSON form."""

    section: Section = Section.ANSWER
    lead: Lead = "hold"
    answered: bool = False
    place: MarkdownPosition = _AT_START
    answer_place: MarkdownPosition = _AT_START


_ANSWERS_FIRST: Final = SplitterState()
_THINKS_FIRST: Final = SplitterState(section=Section.FIRST, place=_IN_THOUGHT)


class ThinkingSplitter:
    """Feed it text as it arrives; see the module header. A given `state` overrides `thinks_first`."""

    def __init__(self, *, thinks_first: bool = False, state: SplitterState | None = None) -> None:
        start = state or (_THINKS_FIRST if thinks_first else _ANSWERS_FIRST)
        self._section, self._lead, self._answered = start.section, start.lead, start.answered
        self._place, self._answer_place = start.place, start.answer_place
        self._held = ""
        self._blanks: list[str] = []
        self._ready: list[Segment] = []
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
            if self._lead == "drop" and begin == pos:
                word = _find_nonblank(text, pos)
                begin = pos = len(text) if word is None else word.start()
            self._place, pos = _walk(self._place, text, pos)
            if pos == len(text):
                break
            found = read_mark(text, pos)
            if found is None:
                if not final and may_become_mark(text, pos):
                    break
            else:
                self._emit(text[begin:pos])
                begin = pos
                target = find_target(self._section, found.mark, at_start=self._lead == "hold")
                quoted = target is None or _is_quoted(self._place, text, found.end, final=final)
                if quoted is None:
                    break
                if target is not None and not quoted:
                    self._enter(target)
                    begin = pos = found.end
                    continue
            if self._place.line == "start":  # the `<` is text
                self._place = replace(self._place, line="text")
            pos += 1
        self._emit(text[begin:pos])
        self._held = text[pos:]
        if final:
            self._release_blanks()
        self._is_plain = self._passes_plain_text()
        ready, self._ready = self._ready, []
        if len(ready) < 2:
            return ready
        return [
            Segment(thinking, "".join(text for _, text in together))
            for thinking, together in groupby(ready, key=itemgetter(0))
        ]

    def _emit(self, text: str) -> None:
        if not text:
            return
        if self._lead != "keep":
            self._blanks.append(text)
            if text.isspace():
                return
            self._lead = "keep"
            self._answered = self._answered or not self._thinking
            text = "".join(self._blanks)
            self._blanks.clear()
        self._ready.append(Segment(self._thinking, text))

    def _enter(self, section: Section) -> None:
        """Enter another section; the mark between them is removed."""
        self._blanks.clear()
        if not self._thinking:
            self._answer_place = self._place if self._answered else _AT_START
        if not section.is_thinking:
            self._place = self._answer_place
            self._lead = "keep" if self._answered else "drop"
        elif not self._thinking:
            self._place = _IN_THOUGHT
            self._lead = "hold"
        self._section = section
        self._thinking = section.is_thinking

    def _release_blanks(self) -> None:
        """Blanks are an answer if there is no other text; they are never thinking."""
        if self._blanks and not self._thinking:
            self._ready.append(Segment(thinking=False, text="".join(self._blanks)))
        self._blanks.clear()

    def _passes_plain_text(self) -> bool:
        """Whether text without a `<`, a back-tick or a newline can be released unchanged."""
        mid_line = self._place.line in ("text", "code", "thought") and not self._place.run_char
        return mid_line and self._lead == "keep" and not self._held
