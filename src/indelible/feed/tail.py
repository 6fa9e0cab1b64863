"""What this process has just committed, for those who read here.

The journal says after each commit which rows are durable now (`committed`), and the worker says of which chat an
attempt is (`attach`). A row goes to the chat's watch if somebody in this process reads the chat; else nothing is done
with it. There is nothing to fill up here and nothing to wait for. Whoever misses a row finds it in the store.

Must stay true (tests/feed/test_tail.py): a row reaches exactly the watch of its own chat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from indelible.store.journal.append import JournalRow


class Tail:
    def __init__(self) -> None:
        self._chats: dict[str, str] = {}
        self._watches: dict[str, Callable[[JournalRow], None]] = {}

    # --- for whoever writes ---

    def attach(self, attempt_id: str, chat_id: str) -> None:
        """From now on rows of this attempt are this chat's."""
        self._chats[attempt_id] = chat_id

    def detach(self, attempt_id: str) -> None:
        self._chats.pop(attempt_id, None)

    def committed(self, rows: Sequence[JournalRow]) -> None:
        """These rows are durable: show them. For the journal's `on_committed`."""
        for row in rows:
            chat_id = self._chats.get(row.attempt_id)
            take = None if chat_id is None else self._watches.get(chat_id)
            if take is not None:
                take(row)

    def name_chats(self, rows: Iterable[JournalRow]) -> set[str]:
        """The chats that these rows are of, for telling other processes."""
        return {self._chats[row.attempt_id] for row in rows if row.attempt_id in self._chats}

    # --- for whoever reads ---

    def channel(self, chat_id: str, take: Callable[[JournalRow], None]) -> None:
        """Hand over every row of this chat from now on. One watch per chat."""
        self._watches[chat_id] = take

    def unwatch(self, chat_id: str) -> None:
        self._watches.pop(chat_id, None)
