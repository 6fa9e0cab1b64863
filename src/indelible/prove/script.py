"""Messages with predictable replies, and files with predictable bytes.

A wish is a message that specifies the length and speed of its reply, whether the model thinks first, and how many tools
it calls in between: tools of the server, and of the client (`asks`). Its number is unique and determines the words;
each word contains its position in the reply. So a reader detects a lost, repeated or misdirected word at once, and the
model needs no memory to continue a reply: the words so far determine the next one.

A key determines everything about a file in the same way: `NUMBER.PLACE` is a file of that wish; a note of a call,
`NUMBER-COUNT`, is what a tool drew for it. So whoever meets a file, in a message, a prompt or a download, knows at once
whose it is and whether it is whole. There are three kinds, one for each thing that a model can get (docs/files.md): a
text, a picture, and something of several chunks of which a model is told only the name. They are small otherwise,
because every prompt of a chat has the files of its whole history.

Pure. model.py writes the replies, user.py uploads the files, checks.py compares with this.
"""

from __future__ import annotations

import random
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, Self

import msgspec

from indelible.content import File

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


Kind = Literal["text", "picture", "other"]
_KINDS: Final[tuple[Kind, ...]] = ("text", "picture", "other")
_WEIGHTS: Final = (5, 4, 1)
_SUFFIXES: Final[dict[Kind, str]] = {"text": "txt", "picture": "png", "other": "bin"}

_TYPES: Final[dict[Kind, str]] = {
    "text": "text/plain",
    "picture": "image/png",
    "other": "application/octet-stream",
}

_OTHER_BYTES: Final = (300_000, 600_000)
"""More than a chunk (`CHUNK_BYTES`), so that an upload can die between two of them."""

_NO_TEXT: Final = b"\x00\x01"
_IN_TEXT: Final = re.compile(r"(?:Proof file |\[The attached file proof-)(\d+[.-]\d+)")
_IN_BYTES: Final = re.compile(rb"Proof file (\d+[.-]\d+):")
_NAME: Final = re.compile(r"proof-(\d+[.-]\d+)\.(?:txt|png|bin)")
_NAMED_ONLY: Final = "[The attached file {name} ({media_type}, {size:,} bytes): its content cannot be shown to you.]"


class ProofFile(msgspec.Struct, frozen=True):
    """One file. `data` is generated each time: it is cheap, and a proof has many."""

    key: str
    kind: Kind

    @property
    def name(self) -> str:
        return f"proof-{self.key}.{_SUFFIXES[self.kind]}"

    @property
    def media_type(self) -> str:
        return _TYPES[self.kind]

    @property
    def size(self) -> int:
        """In bytes. Of a large file it is known without making the file."""
        return self._make_chance().randint(*_OTHER_BYTES) if self.kind == "other" else len(self.data)

    @property
    def data(self) -> bytes:
        chance = self._make_chance()
        if self.kind == "other":
            return _NO_TEXT + chance.randbytes(chance.randint(*_OTHER_BYTES) - len(_NO_TEXT))
        words = " ".join(chance.choices(VOCABULARY, k=chance.randint(3, 30)))
        text = f"Proof file {self.key}: {words}. The end of {self.key}."
        return text.encode() if self.kind == "text" else _draw_png(text)

    def _make_chance(self) -> random.Random:
        return random.Random(self.key)  # noqa: S311  (it has to be reproducible)

    def to_prompt_text(self) -> str | None:
        """How a prompt shows it as text; None if it is shown as a picture."""
        if self.kind == "picture":
            return None
        if self.kind == "text":
            return self.data.decode()
        return _NAMED_ONLY.format(name=self.name, media_type=self.media_type, size=self.size)


def make_file(key: str) -> ProofFile:
    """The file of a key. Tools draw pictures; of the others the key decides the kind."""
    chance = random.Random(f"kind of {key}")  # noqa: S311  (it has to be reproducible)
    return ProofFile(key, "picture" if is_drawn(key) else chance.choices(_KINDS, _WEIGHTS)[0])


def is_drawn(key: str) -> bool:
    """Whether this is the key of a tool's file, which is the note of its call."""
    return "-" in key


def list_files(wish: Wish) -> list[ProofFile]:
    """The files of a message, in order."""
    return [make_file(f"{wish.number}.{place}") for place in range(1, wish.files + 1)]


def find_key(name: str) -> str | None:
    """The key of the file with this name; None if it is none of a proof."""
    found = _NAME.fullmatch(name)
    return None if found is None else found[1]


class Shown(NamedTuple):
    """A file in a prompt. `key` is None if it is none of a proof; `is_whole`: it is shown as it should be."""

    key: str | None
    is_whole: bool
    at: int = 0


def find_in_text(text: str) -> Iterator[Shown]:
    """The files that a text shows or names, and where."""
    for found in _IN_TEXT.finditer(text):
        expected = make_file(found[1]).to_prompt_text()
        yield Shown(found[1], expected is not None and text.startswith(expected, found.start()), found.start())


def find_in_file(file: File) -> Shown:
    """Whose file it is, and whether it has the bytes and the type of the key."""
    found = _IN_BYTES.search(file.data or b"")
    if found is None:
        return Shown(None, is_whole=False)
    expected = make_file(found[1].decode())
    return Shown(expected.key, file.data == expected.data and file.media_type == expected.media_type)


def _draw_png(text: str) -> bytes:
    """A picture of one pixel, with a text beside it."""
    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"tEXt", b"Comment\x00" + text.encode()), (b"IDAT", zlib.compress(b"\x00\x80")))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_write_chunk(*chunk) for chunk in (*chunks, (b"IEND", b"")))


def _write_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
