"""Long lines are cut at the end of a word, once, and the note counts what is missing."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from indelible.redaction.shorten import MAX_LINE_LETTERS, shorten_line


def count_missing(line: str) -> int:
    note = re.search(r"\[… ([0-9,]+) letters are missing here …\]$", line)
    return int(note[1].replace(",", "")) if note else 0


def test_a_line_that_is_not_long_stays() -> None:
    assert shorten_line("") == ""
    assert shorten_line("a " * (MAX_LINE_LETTERS // 2)) == "a " * (MAX_LINE_LETTERS // 2)


@given(st.lists(st.integers(1, 3000), min_size=2, max_size=8), st.sampled_from(["a", "é", "密"]))
def test_a_long_line_keeps_whole_words(lengths: list[int], letter: str) -> None:
    words = [letter * length for length in lengths]
    line = " ".join(words)
    shortened = shorten_line(line)
    assert len(shortened) <= MAX_LINE_LETTERS
    assert shorten_line(shortened) == shortened
    if shortened != line:
        kept = shortened[: shortened.rindex("[…")].rstrip()
        assert len(kept) + count_missing(shortened) == len(line)
        assert kept.split() == words[: len(kept.split())]


def test_a_word_that_is_too_long_goes_and_of_an_address_its_last_part() -> None:
    assert shorten_line("canary" * 1000) == "[… 6,000 letters are missing here …]"
    address = "https://host/" + "part/" * 2000
    shortened = shorten_line(address)
    kept, _, _ = shortened.partition(" […")
    assert address.startswith(kept)
    assert kept.endswith("/part/")
    assert len(kept) + count_missing(shortened) == len(address)
