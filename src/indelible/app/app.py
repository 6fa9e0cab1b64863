"""An open database: its users, their chats, and the components that the server and the terminal use.

`User` creates a chat, opens one, lists and searches them. A user of this process comes from `app.user(name)`, and the
user behind a server's token is the `Client` itself (client/client.py). Both are this class on another service, so a
program that has one of them works with either. `App` is also the handle of its default user, so a program with one
user needs no other. compose.py opens it, chat.py has the methods of a chat.

Must stay true (tests/app/test_same_script.py): the same script gives the same results with both.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Literal

from indelible.api.events import FeedEvent
from indelible.api.inputs import Content, CreateChat, DraftRequest, declare_tools, to_blocks
from indelible.api.operations import ChatApi
from indelible.api.shapes import NEW_CHAT, ChatSummary, ModelEntry, StoredFile, UsagePage
from indelible.app.archive import read_archive
from indelible.app.chat import Chat, collect_pages
from indelible.clock import Clock
from indelible.content import ToolSpec
from indelible.feed import Feed
from indelible.files.bytes import DatabaseBytes
from indelible.files.store import FileStore
from indelible.recording.storage import RecordStore
from indelible.service.access import Budget
from indelible.service.chats import FindWindow, LocalService, ServiceDependencies
from indelible.service.files import Upload, read_all
from indelible.store.accounts import AccountStore
from indelible.store.commands.begin import Place
from indelible.store.shares import ShareStore
from indelible.store.store import Store


class User:
    """The chats of one user. Another user's chat is `NotFound`."""

    def __init__(self, service: ChatApi) -> None:
        self._service = service

    async def create_chat(
        self,
        message: Content | None = None,
        *,
        model: str | None = None,
        system: str | None = None,
        title: str | None = None,
        parameters: dict[str, Any] | None = None,
        tools: Sequence[ToolSpec] | None = None,
    ) -> Chat:
        """Create a chat. With a message, the reply starts at once. `tools` are run by you: the reply waits for them."""
        body = CreateChat(
            message=None if message is None else to_blocks(message),
            model=model,
            system=system,
            title=title,
            parameters=parameters,
            tools=None if tools is None else declare_tools(tools),
        )
        created = await self._service.create_chat(body)
        return Chat(self._service, created.id)

    async def chat(self, chat_id: str) -> Chat:
        """An existing chat. Raises `NotFound` if this user has no chat with this id."""
        await self._service.check_chat(chat_id)
        return Chat(self._service, chat_id)

    async def chats(
        self,
        *,
        search: str | None = None,
        label: str | None = None,
        pinned: bool | None = None,
        archived: bool = False,
        unread: bool | None = None,
        limit: int | None = 50,
    ) -> list[ChatSummary]:
        """The user's chats, pinned first, then most recently updated first: at most `limit`, or all.

        With `search`, those whose title or messages have all of its words, newest match first; `match` has the place.
        """
        chosen: dict[str, Any] = {"label": label, "pinned": pinned, "archived": archived, "unread": unread}
        pages = await collect_pages(
            lambda cursor, size: self._service.list_chats(q=search, **chosen, limit=size, cursor=cursor), limit
        )
        return [chat for items in pages for chat in items]

    async def draft(self) -> str:
        """What you have typed for a chat that does not exist yet."""
        return (await self._service.lists.get_draft(NEW_CHAT)).text

    async def save_draft(self, text: str) -> None:
        """Keep what you have typed for a chat that does not exist yet; an empty text deletes it."""
        await self._service.lists.save_draft(NEW_CHAT, DraftRequest(text=text))

    async def import_chat(self, content: bytes) -> Chat:
        """Create a chat from an exported one (`chat.export()`). A file with a mistake is `Invalid`."""
        return Chat(self._service, (await self._service.lists.import_chat(content)).id)

    async def import_archive(self, path: str | Path) -> Chat:
        """Create a chat with its files from an archive (`chat.export_archive()`)."""
        return Chat(self._service, (await read_archive(self._service, Path(path))).id)

    async def usage(
        self, *, since: date | None = None, until: date | None = None, user: str | None = None, by_user: bool = False
    ) -> UsagePage:
        """What your chats used, by day and model: the last 30 days by default. Admins may ask for others."""
        by: Literal["user"] | None = "user" if by_user else None
        return await self._service.lists.get_usage(since=since, until=until, user=user, by=by)

    def events(self, chat_id: str | None = None, *, after: str | None = None) -> AsyncGenerator[FeedEvent, None]:
        """The live list: the newest chats, then every change; with `chat_id`, the feed of that chat woven in.

        It ends when the process is told to end (SIGTERM).
        """
        return self._service.readings.add_endless(self._service.lists.open_tab(chat_id, after=after))

    # --- files ---

    async def upload(self, source: str | Path | bytes, *, name: str | None = None) -> StoredFile:
        """Store a file: a path, or bytes with a name. Send it in a message: `chat.send(["What is this?", file])`.

        A file that no message uses is deleted after a day.
        """
        upload = Upload(source, name)
        size = await upload.find_size()
        return await self._service.files.upload(upload.open_chunks, name=upload.name, size=size)

    async def files(self, *, limit: int | None = 50) -> list[StoredFile]:
        """The user's files, newest first: at most `limit`, or all."""
        pages = await collect_pages(
            lambda cursor, size: self._service.files.list_files(limit=size, cursor=cursor), limit
        )
        return [file for items in pages for file in items]

    async def read_file(self, file_id: str) -> bytes:
        """All bytes of a file."""
        return await read_all(self._service.files, file_id)

    async def delete_file(self, file_id: str) -> None:
        """Delete a file that no chat uses. A file in a chat is deleted with the last chat that uses it."""
        await self._service.files.delete_file(file_id)

    # --- models ---

    async def list_models(self) -> list[ModelEntry]:
        """The model names that a chat, a message or a retry may use."""
        return (await self._service.list_models()).items


class App(User):
    """The result of `indelible.open`: the chats of its default user, and every other user by name.

    `models` are the names that a chat, a message or a retry may use. `accounts` and `shares` are the users' logins, and
    who else may read a chat. `budget` is what a user may spend in a day.
    """

    def __init__(
        self,
        store: Store,
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
        reserve: Callable[[str, str], Place | None] | None = None,
        stop_worker: Callable[[], None] | None = None,
    ) -> None:
        self.store = store
        self.feed = feed
        self.records = RecordStore(store.database)
        self.clock = clock
        self._stop_worker = stop_worker
        self.owner_id = owner_id
        self.models = models
        self.on_rights_changed: list[Callable[[], None]] = []
        self.accounts = AccountStore(store.database, clock=clock, on_changed=self._publish_rights)
        self.shares = ShareStore(
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
            reserve=reserve,
            files=files or FileStore(store.database, [DatabaseBytes(store.database)]),
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
