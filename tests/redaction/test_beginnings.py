"""Where something may begin: no place is missed, whatever stands around it and wherever a window ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from indelible.redaction.beginnings import WINDOW_LETTERS
from indelible.redaction.json import SUSPICIOUS

STRINGS = sorted({string for strings in SUSPICIOUS.by_anchor.values() for string in strings})


def find_slowly(text: str) -> set[tuple[int, str]]:
    """Every place of every string; if one ends another, the longer one only."""
    lowered = text.replace("İ", ".").lower()
    found = {(place, string) for string in STRINGS for place in range(len(text)) if lowered.startswith(string, place)}
    ends = {(place + len(string), string) for place, string in found}
    return {
        (end - len(string), string)
        for end, string in ends
        if not any(end == other and longer != string and longer.endswith(string) for other, longer in ends)
    }


def test_strings_that_overlap_are_all_found() -> None:
    for one in STRINGS:
        for other in STRINGS:
            for shared in range(min(len(one), len(other)) + 1):
                if one.endswith(other[:shared]):
                    text = f"a{one}{other[shared:]}a".upper()
                    assert set(SUSPICIOUS.find(text)) == find_slowly(text), text


def test_strings_are_found_wherever_a_window_ends() -> None:
    for string in STRINGS:
        for place in range(WINDOW_LETTERS - len(string) - 1, WINDOW_LETTERS + 2):
            text = "." * place + string + "." * WINDOW_LETTERS
            found = list(SUSPICIOUS.find(text))
            assert found.count((place, string)) == 1
            assert all(string.endswith(other) for _, other in found)


texts = st.lists(st.sampled_from(STRINGS) | st.text(max_size=3) | st.sampled_from("kKİ\u212axjhgs-_\n"), max_size=8)


@given(texts.map("".join))
def test_what_is_found_is_what_a_plain_search_finds(text: str) -> None:
    found = list(SUSPICIOUS.find(text))
    assert set(found) == find_slowly(text)
    assert len(found) == len(set(found))
    assert SUSPICIOUS.are_in(text) == bool(found)


@given(st.lists(texts.map("".join), max_size=8))
def test_the_holders_are_the_texts_that_hold_one(texts: list[str]) -> None:
    assert sorted(SUSPICIOUS.find_holders(texts)) == [
        number for number, text in enumerate(texts) if SUSPICIOUS.are_in(text)
    ]
