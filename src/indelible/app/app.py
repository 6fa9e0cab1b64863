"""An open database: its users, their chats, and the parts that other programs of ours are built on.

`App` is also its default user's handle, so that a program with one user needs no other. See compose.py for how it is
opened, user.py for what a user can do, and chat.py for what can be done with a chat.
"""

from __future__ import annotations

from collections.abc import Sequence

from indelible.app.user import User
from indelible.clock import Clock
from indelible.feed import Feed
from indelible.recording.storage.sql_records import SqlRecords
from indelible.service.local import LocalService, ServiceDependencies
from indelible.store.sql_store import SqlStore


class App(User):
    """What `indelible.open` gives: the chats of its default user, and every other user by name.

    `models` are the names of the models that may be asked for.
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
    ) -> None:
        self.store = store
        self.feed = feed
        self.records = SqlRecords(store.engine)
        self.clock = clock
        self.owner_id = owner_id
        self.models = models
        self._dependencies = ServiceDependencies(
            store=store, feed=feed, records=self.records, models=models, default_model=default_model
        )
        self.service = LocalService(self._dependencies, user_id=owner_id)
        super().__init__(self.service)

    def user(self, name: str) -> User:
        """The user of this name, who is created when there is none and something is first done in this name."""
        return User(LocalService(self._dependencies, user=name))
