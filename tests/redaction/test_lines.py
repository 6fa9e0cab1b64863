"""Lines that may hold something to hide: none is missed, whatever its envelope, and ordinary ones are passed."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indelible.redaction.beginnings import Beginnings
from indelible.redaction.lines import split_lines

EXAMPLES = int(os.environ.get("INDELIBLE_EXAMPLES", "300"))
BEGINNINGS = Beginnings({"k": ("sk-", "key"), "c": ("secret",)})

words = st.sampled_from(["a", "k", "e", "y", "s", "-", "S", "K", "secr", "et", "é", "İ", " ", '"', "word"])
middles = st.lists(words, max_size=6).map("".join)
ends = st.sampled_from(["\n", "\r\n", "\r", "\n\n"])
envelopes = st.tuples(
    st.sampled_from(["", "s", "k" * 50, "x" * 60, "y key" * 12]), st.sampled_from(["", "y", "z" * 70])
)


@st.composite
def streams(draw: st.DrawFn) -> str:
    """Lines in a few envelopes, with ends of all kinds."""
    chosen = draw(st.lists(envelopes, min_size=1, max_size=3))
    lines = []
    for _ in range(draw(st.integers(0, 12))):
        head, tail = draw(st.sampled_from(chosen))
        lines.append(head + draw(middles) + tail + draw(ends))
    return "".join(lines) + draw(middles)


def holds(line: str) -> bool:
    return any(beginning in line.lower() for beginning in ("sk-", "key", "secret"))


@settings(max_examples=EXAMPLES)
@given(text=streams())
def test_no_line_that_holds_a_beginning_is_missed_and_the_lines_are_the_text(text: str) -> None:
    found = list(split_lines(text, BEGINNINGS))
    assert "".join(line for line, _ in found) == text
    for line, is_suspicious in found:
        assert is_suspicious or not holds(line), line
        assert line.strip("\r\n") == line.rstrip("\r\n")
        assert "\n" not in line[:-2]


def make_event(text: str) -> str:
    event = {"id": "chatcmpl-0123456789", "object": "chunk", "choices": [{"index": 0, "delta": {"content": text}}]}
    return f"data: {json.dumps(event)}\n\n"


def list_suspicious(text: str) -> list[str]:
    return [line for line, is_suspicious in split_lines(text, BEGINNINGS) if is_suspicious]


@pytest.mark.parametrize("secret", ["sk-", "SECRET", "a key"])
@pytest.mark.parametrize("at", [0, 1, 2, 50, 99])
def test_the_one_suspicious_token_of_a_stream_is_found_and_no_other(secret: str, at: int) -> None:
    tokens = [f"word{number} " for number in range(100)]
    tokens[at] = f"word {secret}"
    found = list_suspicious("".join(map(make_event, tokens)))
    (line, *others) = [line for line in found if holds(line)]
    assert secret in line
    assert others == []
    assert len(found) == 1 or at == 0  # the first one lends its envelope to those that follow


def test_a_beginning_that_a_token_makes_together_with_its_envelope_is_found() -> None:
    lines = [f"{'x' * 60}se{middle}ret{'z' * 60}\n" for middle in ("_", "-", "c", "+")]
    assert list_suspicious("".join(lines)) == [lines[2]]


def test_the_same_line_again_is_what_it_was() -> None:
    plain, secret = "x" * 90 + "\n", "x" * 45 + "secret" + "x" * 45 + "\n"
    assert list_suspicious(plain * 5) == []
    assert list_suspicious(secret * 5) == [secret] * 5
    assert secret in list_suspicious(plain * 3 + secret + plain)


def test_letters_that_are_longer_in_lower_case_do_not_shift_what_is_found() -> None:
    assert list_suspicious("İ\nplain\nİİİİa secret\nplain\n") == ["İİİİa secret\n"]
