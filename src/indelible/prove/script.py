"""Messages with predictable replies.

A wish is a message that specifies the length and speed of its reply, whether the model thinks first, and how many tools
it calls in between: tools of the server, and of the client (`asks`). Its number is unique and determines the words;
each word contains its position in the reply. So a reader detects a lost, repeated or misdirected word at once, and the
model needs no memory to continue a reply: the words so far determine the next one. It also says how many files come
with it; the number determines them too (files.py).

Pure. model.py writes the replies; checks/ compares them with this.
"""

from __future__ import annotations

import random
import re
from typing import Final, Self

import msgspec

_TEXT: Final = (
    "Proof {number}: {words} words, {pace_ms} ms each, {tools} tools, {asks} asks, {thoughts} thoughts, {files} files."
)
_PATTERN: Final = re.compile(
    r"Proof (\d+): (\d+) words, (\d+) ms each, (\d+) tools, (\d+) asks, (\d+) thoughts, (\d+) files\."
)
VOCABULARY: Final = ("oak", "river", "stone", "lamp", "harbour", "cloud", "bread", "violin", "snow", "ladder")
_TOOLS_AT_MOST: Final = 3
_ASKS: Final = 0.25
_FILES: Final = 0.35
_FILES_AT_MOST: Final = 3


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """One message, and thereby its reply."""

    number: int
    words: int
    pace_ms: int
    tools: int = 0
    asks: int = 0
    thoughts: int = 0
    files: int = 0

    def to_text(self) -> str:
        return _TEXT.format(**msgspec.structs.asdict(self))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        found = _PATTERN.fullmatch(text)
        return None if found is None else cls._read(found)

    @classmethod
    def find_all(cls, text: str) -> list[tuple[int, Self]]:
        """The wishes in a text, and where each begins: a wire format can merge messages."""
        return [(found.start(), cls._read(found)) for found in _PATTERN.finditer(text)]

    @classmethod
    def _read(cls, found: re.Match[str]) -> Self:
        return cls(**dict(zip(cls.__struct_fields__, map(int, found.groups()), strict=True)))

    def list_words(self) -> list[str]:
        """The reply, word by word; joined they are its text."""
        chance = random.Random(self.number)  # noqa: S311  (it has to be reproducible)
        return [f"{chance.choice(VOCABULARY)}-{place} " for place in range(1, self.words + 1)]

    @property
    def words_before_tools(self) -> int:
        return self.words // 2 if self.tools or self.asks else self.words


def draw_wish(chance: random.Random, *, number: int, may_ask: bool = True, files: int = 0) -> Wish:
    """A random wish: some are short, some long, some need tools."""
    return Wish(
        number=number,
        words=chance.randint(6, 60),
        pace_ms=chance.choice((5, 10, 20)),
        tools=chance.randint(1, _TOOLS_AT_MOST) if chance.random() < 0.4 else 0,
        asks=int(chance.random() < _ASKS) if may_ask else 0,
        thoughts=chance.randint(1, 5) if chance.random() < 0.3 else 0,
        files=files,
    )


def draw_file_count(chance: random.Random) -> int:
    """How many files come with a wish. The chance is one of its own: what users say does not depend on it."""
    return chance.randint(1, _FILES_AT_MOST) if chance.random() < _FILES else 0


def find_reply(text: str) -> str | None:
    """The whole reply to a message; None if the message is not a wish."""
    wish = Wish.parse(text)
    return None if wish is None else "".join(wish.list_words())
