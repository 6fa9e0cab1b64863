"""Cursors: every position comes back, nothing else does, and they fit into a URL and a header."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indelible.api.events import BEGINNING, Position
from indelible.feed.events import START, Cursors
from indelible.ids import new_id

numbers = st.integers(0, 2**63 - 1)
positions = st.builds(Position, numbers, st.one_of(st.none(), st.builds(new_id, st.just("attempt"))), numbers)
CHAT = Cursors("chat_1")
SAFE = set(string.ascii_letters + string.digits + "-_")


@given(positions)
def test_a_position_comes_back_from_its_cursor(position: Position) -> None:
    cursor = CHAT.write(position)

    assert CHAT.read(cursor) == position
    assert set(cursor) <= SAFE
    assert len(cursor) < 120


@given(positions)
def test_the_cursor_of_another_chat_is_none(position: Position) -> None:
    assert Cursors("chat_2").read(CHAT.write(position)) is None


@given(positions, st.data())
def test_a_cursor_with_one_character_changed_is_another_position_or_none(
    position: Position, data: st.DataObject
) -> None:
    cursor = CHAT.write(position)
    place = data.draw(st.integers(0, len(cursor) - 1))
    changed = cursor[:place] + data.draw(st.sampled_from(sorted(SAFE - {cursor[place]}))) + cursor[place + 1 :]

    read = CHAT.read(changed)

    assert read != position
    assert read is None or CHAT.write(read) == changed


@given(st.one_of(st.text(), st.text(alphabet=sorted(SAFE))))
def test_whatever_we_did_not_write_is_none(text: str) -> None:
    read = CHAT.read(text)

    assert read is None or text == START or CHAT.write(read) == text


@pytest.mark.parametrize("position", [Position(-1), Position(1, "a", -1), Position(2**63), Position(0, "a", 2**63)])
def test_a_number_that_no_database_has_is_none(position: Position) -> None:
    assert CHAT.read(CHAT.write(position)) is None


@pytest.mark.parametrize("text", ["", "=", "A" * 10_000, "é", "\0", CHAT.write(Position(3)) + "="])
def test_text_that_is_no_cursor_is_none(text: str) -> None:
    assert CHAT.read(text) is None


def test_the_start_is_before_everything() -> None:
    assert CHAT.read(START) == BEGINNING
