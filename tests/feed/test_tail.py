"""The tail: a row goes to the watch of its own chat, and nowhere else."""

from __future__ import annotations

from indelible.feed import Tail
from indelible.store.journal.append import JournalRow

ONE = JournalRow("attempt_1", 1, 1, b"[]")
TWO = JournalRow("attempt_2", 1, 1, b"[]")


def test_a_row_reaches_exactly_the_watch_of_its_chat() -> None:
    tail = Tail()
    first: list[JournalRow] = []
    second: list[JournalRow] = []
    tail.channel("chat_1", first.append)
    tail.channel("chat_2", second.append)
    tail.attach("attempt_1", "chat_1")
    tail.attach("attempt_2", "chat_2")

    tail.committed([ONE, TWO])

    assert (first, second) == ([ONE], [TWO])


def test_rows_of_chats_that_nobody_reads_go_nowhere() -> None:
    tail = Tail()
    seen: list[JournalRow] = []
    tail.channel("chat_1", seen.append)
    tail.attach("attempt_2", "chat_2")

    tail.committed([ONE, TWO])  # the one is attached to no chat, the other's chat has no reader

    assert seen == []


def test_what_is_detached_or_unwatched_is_told_no_more() -> None:
    tail = Tail()
    seen: list[JournalRow] = []
    tail.channel("chat_1", seen.append)
    tail.attach("attempt_1", "chat_1")
    tail.committed([ONE])

    tail.detach("attempt_1")
    tail.committed([ONE])
    tail.attach("attempt_1", "chat_1")
    tail.unwatch("chat_1")
    tail.committed([ONE])

    assert seen == [ONE]


def test_the_chats_of_rows_are_named_for_other_processes() -> None:
    tail = Tail()
    tail.attach("attempt_1", "chat_1")

    assert tail.name_chats([ONE, TWO]) == {"chat_1"}
