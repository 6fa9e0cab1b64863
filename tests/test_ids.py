"""Ids: what they look like, that no two are equal, and that sorting them sorts by time."""

from __future__ import annotations

import re
import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from indelible.ids import ULID, derive_id, is_id, new_id, read_creation_ms

CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_an_id_is_its_prefix_and_a_ulid() -> None:
    for prefix in ("turn", "chat", "queue_row"):
        assert re.fullmatch(rf"{prefix}_[{CROCKFORD}]{{26}}", new_id(prefix))


def test_an_id_tells_the_millisecond_in_which_it_was_made() -> None:
    before_ms = now_ms()
    id_ = new_id("turn")

    assert before_ms <= read_creation_ms(id_) <= now_ms()


def test_no_two_ids_are_equal() -> None:
    ids = [new_id("turn") for _ in range(10_000)]

    assert len(set(ids)) == len(ids)


def test_ids_of_later_milliseconds_sort_later() -> None:
    ids = [new_id("turn")]
    while read_creation_ms(ids[-1]) < read_creation_ms(ids[0]) + 5:
        ids.append(new_id("turn"))

    by_time = [read_creation_ms(id_) for id_ in ids]
    assert [read_creation_ms(id_) for id_ in sorted(ids)] == sorted(by_time)


def test_of_one_process_a_later_id_sorts_later_whichever_thread_made_it() -> None:
    made: list[str] = []
    order = threading.Lock()

    def make() -> None:
        for _ in range(2_000):
            with order:
                made.append(new_id("turn"))

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(made) == 6_000
    assert made == sorted(set(made))


def test_chance_fills_the_rest() -> None:
    tails = [new_id("turn")[-12:] for _ in range(1000)]

    for position in range(12):
        assert len({tail[position] for tail in tails}) > 16


def test_a_derived_id_has_the_shape_of_the_others_and_stays_the_same_in_every_version() -> None:
    """Chats are stored under them: another one would lose the chat that a client has named."""
    assert derive_id("chat", bytes(range(16))) == "chat_fg3t06c1a82gg3r05016014000"
    assert derive_id("chat", bytes(16)) != derive_id("chat", bytes(15) + b"\x01")
    assert re.fullmatch(f"chat_{ULID}", derive_id("chat", b"\xff" * 16))


@given(st.text(max_size=300))
def test_what_no_database_would_accept_is_no_id(text: str) -> None:
    if is_id(text):
        text.encode("ascii")
        assert "\x00" not in text
        assert len(text) <= 200
    else:
        assert len(text) > 200 or not text.isascii() or not text.isprintable()
