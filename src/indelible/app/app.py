"""An open database: its users, their chats, and the components that the server and the terminal use.

`App` is also the handle of its default user, so a program with one user needs no other. compose.py opens it, user.py
has the methods of a user, chat.py those of a chat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from indelible.app.user import User
from indelible.clock import Clock
from indelible.feed import Feed
from indelible.files.database_bytes import DatabaseBytes
from indelible.files.protocol import FileStore
from indelible.files.sql_files import SqlFiles
from indelible.recording.storage.sql_records import SqlRecords
from indelible.service.budget import Budget
from indelible.service.local import LocalService, ServiceDependencies
from indelible.service.tool_results import FindWindow
from indelible.store.accounts.sql_accounts import SqlAccounts
from indelible.store.accounts.sql_shares import SqlShares
from indelible.store.sql_store import SqlStore


class App(User):
    """The result of `indelible.open`: the chats of its default user, and every other user by name.

    `models` are the names that a chat, a message or a retry may use. `accounts` and `shares` are the users' logins, and
    who else may read a chat. `budget` is what a user may spend in a day.
    """

    def __init__(
        self,
        store: SqlStore,
        feed: Feed,
        *,
        clock: Clock,
        owner_id: str,
        files: FileStore | None = None,
        models: Sequence[str] = (),
        default_model: str | None = None,
        check_model: Callable[[str], None] | None = None,
        find_window: FindWindow | None = None,
        tools: frozenset[str] = frozenset(),
        budget: Budget | None = None,
        stop_worker: Callable[[], None] | None = None,
    ) -> None:
        self.store = store
        self.feed = feed
        self.records = SqlRecords(store.database)
        self.clock = clock
        self._stop_worker = stop_worker
        self.owner_id = owner_id
        self.models = models
        self.on_rights_changed: list[Callable[[], None]] = []
        self.accounts = SqlAccounts(store.database, clock=clock, on_changed=self._publish_rights)
        self.shares = SqlShares(
            store.database, clock=clock, lease_timeout_s=store.lease_timeout_s, on_changed=self._publish_rights
        )
        self._dependencies = ServiceDependencies(
            shares=self.shares,
            store=store,
            feed=feed,
            records=self.records,
            limits=store.limits,
            models=models,
            default_model=default_model,
            check_model=check_model,
            find_window=find_window,
            tools=tools,
            budget=budget,
            files=files or SqlFiles(store.database, [DatabaseBytes(store.database)]),
        )
        self.service = LocalService(self._dependencies, user_id=owner_id, is_admin=True)
        super().__init__(self.service)

    def leave(self) -> None:
        """Begin to shut down: the worker drains, and readers that can resume in another process end."""
        if self._stop_worker is not None:
            self._stop_worker()
        self.feed.leave()

    async def close_readings(self) -> None:
        """Close the loops over replies and feeds that were left."""
        await self._dependencies.readings.aclose()

    def service_of(self, user_id: str, *, is_admin: bool = False) -> LocalService:
        """The use cases of the user with this id."""
        return LocalService(self._dependencies, user_id=user_id, is_admin=is_admin)

    def _publish_rights(self, user_ids: Iterable[str]) -> None:
        """Tell this process at once, and the others by a hint, that somebody's rights were taken away."""
        for notify in self.on_rights_changed:
            notify()
        self.feed.notifier.notify_readers(user_ids)

    def user(self, name: str) -> User:
        """The user of this name. A new user is created by what is stored first: a chat, a file, a draft.

        Reading creates nobody. An impossible name is `Invalid` on first use.
        """
        return User(LocalService(self._dependencies, user=name))
