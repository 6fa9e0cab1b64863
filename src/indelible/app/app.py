"""An open database: its users, their chats, and the components that the server and the terminal use.

`App` is also the handle of its default user, so a program with one user needs no other. compose.py opens it, user.py
has the methods of a user, chat.py those of a chat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from indelible.app.user import User
from indelible.clock import Clock
from indelible.feed import Feed
from indelible.recording.storage.sql_records import SqlRecords
from indelible.service.local import LocalService, ServiceDependencies
from indelible.store.sql_store import SqlStore


class App(User):
    """The result of `indelible.open`: the chats of its default user, and every other user by name.

    `models` are the names that a chat, a message or a retry may use.
    """

    def __init__(
        self,
        store: SqlStore,
        feed: Feed,
        *,
        clock: Clock,
        owner_id: str,
        models: Sequence[str] = (),
        default_model: str | None = None,
        check_model: Callable[[str], None] | None = None,
    ) -> None:
        self.store = store
        self.feed = feed
        self.records = SqlRecords(store.database)
        self.clock = clock
        self.owner_id = owner_id
        self.models = models
        self._dependencies = ServiceDependencies(
            store=store,
            feed=feed,
            records=self.records,
            limits=store.limits,
            models=models,
            default_model=default_model,
            check_model=check_model,
        )
        self.service = LocalService(self._dependencies, user_id=owner_id, is_admin=True)
        super().__init__(self.service)

    def user(self, name: str) -> User:
        """The user of this name. A new user is created on first use."""
        return User(LocalService(self._dependencies, user=name))
