"""The words of texts and queries, and the piece of a text that was found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indelible.store.search_index import MAX_WORD, SNIPPET, make_snippet, parse_query, split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Rain in OSLO, rain!", ["in", "oslo", "rain"]),
        ("Ärger mit Bäumen", ["arger", "baumen", "mit"]),
        ("Straße", ["strasse"]),
        ("ﬁne ½", ["1", "2", "fine"]),
        ("天気 is 良い", ["is", "い", "天", "気", "良"]),
        ("snake_case a-b it's 3.14", ["14", "3", "a", "b", "case", "it", "s", "snake"]),
        ("“…” \0 \ud800 \ue000", []),
        ("x" * 100, ["x" * MAX_WORD]),
    ],
)
def test_a_text_has_these_words(text: str, words: list[str]) -> None:
    assert split_words(text) == words


@given(st.text())
def test_a_text_is_found_by_each_of_its_words_and_by_each_beginning_of_one(text: str) -> None:
    words = split_words(text)
    for word in words:
        assert word.split() == [word], "one word for every tokenizer"
        assert split_words(word) == [word], "folding it again changes nothing"
        query = parse_query(word[:1])
        assert query is not None
        assert any(query.matches(each) for each in words)
    query = parse_query(text)
    assert (query is None) == (not words)


@given(st.text(), st.text(min_size=1, max_size=5))
def test_the_marked_ranges_of_a_snippet_are_words_of_the_query(text: str, asked: str) -> None:
    query = parse_query(asked)
    if query is None:
        return
    snippet = make_snippet(text, query)
    assert len(snippet.text) <= SNIPPET + 1
    for start, end in snippet.ranges:
        assert any(query.matches(word) for word in split_words(snippet.text[start:end]))
    if any(query.matches(word) for word in split_words(text)) and len(text) < 100:
        assert snippet.ranges


def test_a_snippet_begins_before_the_first_word_that_was_found_and_is_one_line() -> None:
    query = parse_query("in OSL")
    assert query is not None
    text = "word " * 100 + "Rain\nin\tOslo and more " + "tail " * 100
    snippet = make_snippet(text, query)
    assert "Rain in Oslo and more" in snippet.text
    assert [snippet.text[start:end] for start, end in snippet.ranges] == ["in", "Oslo"]
    assert snippet.text.startswith("…")
    assert snippet.text.endswith("…")
