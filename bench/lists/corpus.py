"""Users, chats and messages whose words are as frequent as those of a language: the n-th has a share of 1/n (Zipf).

One user owns BENCH_CHATS chats of ten messages; a hundred others share a tenth as many, so that a search of theirs has
to leave out nearly everything. A message has 30 words of 30,000, which are made of syllables, so that many words share
a beginning. One word, `EARLY`, is frequent in the oldest tenth of the messages and was never used again: a walk from
the newest message on meets it late.

The same words come every time (a fixed seed), so runs can be compared.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate, product
from typing import Any, Final, NamedTuple

from indelible.content import Text, encode
from indelible.store.search_index import name_owner, number_second

CHATS: Final = int(os.environ.get("BENCH_CHATS", "100000"))
MESSAGES: Final = 10
"""Messages of a chat."""
OTHERS: Final = 100
"""Users besides the one who owns CHATS chats. Together they have a tenth as many."""
ALL: Final = CHATS + CHATS // 10
"""Chats in the database."""
_WORDS: Final = 30
_DISTINCT: Final = 30_000
_SINCE: Final = datetime(2023, 1, 1, tzinfo=UTC)
_BETWEEN: Final = timedelta(minutes=10)
EARLY: Final = "zeppelin"
_EARLY_SHARE: Final = 0.3
OWNER: Final = "user_bench"

Row = tuple[Any, ...]


class Message(NamedTuple):
    """A row of `messages`, and its row in the index: number, chat, message, owner, words."""

    row: Row
    entry: tuple[int, str, str, str, str]


def make_vocabulary() -> list[str]:
    """Words, the most frequent first."""
    syllables = [first + last for first, last in product("bdfghklmnprstv", "aeiou")]
    chance = random.Random(7)  # noqa: S311  (the same words every time)
    found: dict[str, None] = {}
    while len(found) < _DISTINCT:
        found["".join(chance.choices(syllables, k=chance.choice((1, 2, 2, 3, 3, 4))))] = None
    return list(found)


VOCABULARY: Final = make_vocabulary()
_WEIGHTS: Final = list(accumulate(1 / n for n in range(1, _DISTINCT + 1)))


def name_user(number: int) -> str:
    """The owner of all, or of a chat of one of the others."""
    return OWNER if number < CHATS else f"user_{number % OTHERS:03}"


def make_chats() -> Iterator[Row]:
    """Rows of `chats`; one in a thousand is unread. Chats of all users are spread over the same time."""
    for number, at in _spread():
        replied_seq = MESSAGES if number % 1000 == 0 else 0
        yield f"chat_{number:08}", name_user(number), "idle", f"Chat {number}", MESSAGES, replied_seq, at, at


CHAT_COLUMNS: Final = ("id", "owner_id", "status", "title", "seq", "replied_seq", "created_at", "updated_at")
MESSAGE_COLUMNS: Final = ("chat_id", "id", "role", "blocks", "created_at")


def make_messages() -> Iterator[Message]:
    """Messages in the order of time, so that their entries have the numbers that the store would give them."""
    chance = random.Random(1)  # noqa: S311  (the same words every time)
    for place, (number, at) in enumerate(_spread()):
        chat_id, owner_id = f"chat_{number:08}", name_user(number)
        is_early = place < ALL // 10
        for turn in range(MESSAGES):
            words = chance.choices(VOCABULARY, cum_weights=_WEIGHTS, k=_WORDS)
            if is_early and chance.random() < _EARLY_SHARE:
                words[chance.randrange(_WORDS)] = EARLY
            message_id = f"message_{number:08}_{turn}"
            row = (chat_id, message_id, "assistant" if turn % 2 else "user", encode([Text(" ".join(words))]), at)
            indexed = " ".join([name_owner(owner_id), *sorted(set(words))])
            yield Message(row, (number_second(at) + turn, chat_id, message_id, owner_id, indexed))


def _spread() -> Iterator[tuple[int, datetime]]:
    """The numbers of all chats in the order of time: after ten of the one user, one of the others."""
    others = iter(range(CHATS, ALL))
    for number in range(CHATS):
        yield number, _SINCE + number * _BETWEEN
        if number % 10 == 9 and (other := next(others, None)) is not None:
            yield other, _SINCE + number * _BETWEEN + _BETWEEN / 2
