"""The marks that models put around thinking, and what each one does.

Models use three families. Tags: `<think>`, `<thinking>`, `<reasoning>`, `<reason>`,
`<thought>`. Paired tokens: `<|begin_of_thought|>`, often with a `<|begin_of_solution|>` pair
around the answer. Channels: Harmony's `<|channel|>analysis<|message|>…<|end|>` and Gemma's
`<|channel>thought…<channel|>`. Case does not matter. `TRANSITIONS` is the whole rule: in this section, this
mark leads to that section; a mark without an entry is ordinary text. So a stray closer is text,
and thinking does not nest: models mention `<think>` while they think, and counting it would
swallow the answer.

A tag's attributes must have values. `<think budget="3">` is a mark; `<reason for leaving>` is a
placeholder in a letter. A Harmony message to a tool (`to=functions.x`) is neither thinking nor
markup: it stays unchanged. No mark is longer than `MAX_MARK_CHARS`: longer ones are text.

Must stay true (tests/loop/test_thinking.py): no complete mark is the beginning of another one,
and `may_become_mark` is true of every proper beginning of a mark.

The scanner that reads the marks is splitter.py.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

MAX_MARK_CHARS: Final = 256


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

# --- the effect of a mark --------------------------------------------------------------------

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

    A model that thinks first may still write its opener, but only `at_start`: later on it is
    ordinary thinking text.
    """
    target = TRANSITIONS[section].get(mark)
    if section is Section.FIRST and target is not None and target.is_thinking and not at_start:
        return None
    return target


# --- the spelling of a mark ---------------------------------------------------------------

_NAMES: Final = "|".join(_TAGS)
_VALUE: Final = r"""(?:"[^"]*"|'[^']*'|[^\s"'<>=`]++)"""
_UNFINISHED_VALUE: Final = r"""(?:"[^"]*|'[^']*|[^\s"'<>=`]*)"""
_ATTRIBUTES: Final = rf"(?:\s+[\w:.-]++\s*=\s*{_VALUE})*+"
_FLAGS: Final = re.IGNORECASE | re.ASCII

_MARK: Final = re.compile(
    rf"<(?P<opens>{_NAMES}){_ATTRIBUTES}\s*>"
    rf"|</(?P<closes>{_NAMES})\s*>"
    r"|(?P<token><\|(?:(?:begin|end)_of_(?:thought|solution)|end|return)\|>|<\|channel>thought|<channel\|>)"
    r"|(?:<\|start\|>\s*assistant\s*)?<\|channel\|>\s*(?P<channel>analysis|commentary|final)\s*"
    r"(?:<\|constrain\|>\s*json\s*)?<\|message\|>",
    _FLAGS,
)
_UNFINISHED_TAG: Final = re.compile(
    rf"</(?:{_NAMES})\s*"
    rf"|<(?:{_NAMES}){_ATTRIBUTES}(?:\s+(?:[\w:.-]++\s*(?:=\s*{_UNFINISHED_VALUE})?)?)?",
    _FLAGS,
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


class Found(NamedTuple):
    mark: str
    end: int


def read_mark(text: str, start: int) -> Found | None:
    """The mark at `start`, under its plain name, and where it ends."""
    spelled = _MARK.match(text, start, start + MAX_MARK_CHARS)
    if spelled is None:
        return None
    match spelled.lastgroup:
        case "opens":
            mark = f"<{spelled['opens']}>"
        case "closes":
            mark = f"</{spelled['closes']}>"
        case "channel":
            mark = f"<|channel|>{spelled['channel']}"
        case _:
            mark = spelled[0]
    return Found(mark.lower(), spelled.end())


def may_become_mark(text: str, start: int) -> bool:
    """Whether the text from `start` to the end could grow into a mark. False positives are possible, misses are not."""
    if len(text) - start >= MAX_MARK_CHARS:
        return False
    tail = text[start:]
    spelling = "".join(tail.split()) if "|>" in tail else tail
    return spelling.lower() in _BEGINNINGS or _UNFINISHED_TAG.fullmatch(tail) is not None
