"""Splitting a growing text: nothing lost, nothing taken back."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from indelible.terminal.widgets import disarm, split_finished

LINES = [
    "", "words", "  more words", "    indented", "# heading", "#", "- item", "1. one", "2. two", "* * *", "---", "===",
    "```", "```python", "> quote", "| a | b |", "| - | - |", "<div>", "[a]: /url", "\u2028",
]  # fmt: skip
BIDI = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
sources = st.lists(st.sampled_from(LINES), max_size=14).map("\n".join)


def test_a_block_is_finished_when_the_next_one_has_a_whole_line() -> None:
    assert split_finished("One.\n\nTwo") == ([], "One.\n\nTwo")
    assert split_finished("One.\n\nTwo\n") == (["One.\n\n"], "Two\n")


def test_a_line_that_may_still_become_something_else_finishes_nothing() -> None:
    assert split_finished("One\n#") == ([], "One\n#")
    assert split_finished("One\n#hash\n") == ([], "One\n#hash\n")


def test_a_fence_is_one_block_until_it_is_closed() -> None:
    code = "```python\n# not a heading\n\nx = 1\n"
    assert split_finished(code) == ([], code)
    assert split_finished(f"{code}```\nAfter\n") == ([f"{code}```\n"], "After\n")


@given(source=sources)
def test_blocks_and_rest_are_the_text(source: str) -> None:
    blocks, rest = split_finished(source)
    assert "".join(blocks) + rest == source
    assert all(blocks)


@given(source=sources, data=st.data())
def test_what_was_finished_stays_so_however_the_text_comes(source: str, data: st.DataObject) -> None:
    at_once, _ = split_finished(source)
    finished: list[str] = []
    rest = ""
    while source:
        size = data.draw(st.integers(1, len(source)))
        blocks, rest = split_finished(rest + source[:size])
        finished += blocks
        source = source[size:]
    assert finished == at_once


def test_every_character_that_turns_the_direction_of_text_is_visible() -> None:
    turning = [character for character in map(chr, range(0x110000)) if unicodedata.bidirectional(character) in BIDI]
    assert disarm("rm \u202etxt.evil\u202c") == "rm \ufffdtxt.evil\ufffd"
    assert len(turning) == 9
    for character in (*turning, "\u200e", "\u200f", "\u061c"):
        assert disarm(character) == "\ufffd", hex(ord(character))
    assert disarm("שלום, عالم 👩‍👩‍👧") == "שלום, عالم 👩‍👩‍👧"


def test_what_could_drive_the_terminal_is_disarmed() -> None:
    assert disarm("a\x1b[2Jb\x07\x9b1mc\r\n\td") == "a\ufffd[2Jb\ufffd\ufffd1mc\n\td"
