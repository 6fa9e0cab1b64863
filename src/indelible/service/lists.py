"""The use cases beside a conversation: read marks, drafts, usage, chats as files, the live list.

A read asks for the chat's owner first, as in chats.py: an owner never changes. A write carries the user's id into its
transaction. `key` is set for a request that may be repeated.

A chat as Markdown is for people: the active branch, as they see it. Text is written as it is, because models write
Markdown. Titles and other names are one line, whatever they hold, so that none can pretend to be a message. Tool calls
and their results are fenced, with a fence longer than any in them; reasoning and what only a model sees is left out. It
cannot be imported; JSON can.

Must stay true (tests/service/test_list_service.py): no use case reads or changes anything of another user; everything
that people see of the active branch is in the Markdown, in order.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec.structs import replace

from indelible.api.events import FeedEvent
from indelible.api.inputs import ALL_OF_IT, DraftRequest, ReadRequest, check_body
from indelible.api.shapes import NEW_CHAT, ChatPage, CreatedChat, Draft, ExportFormat, UsageDay, UsagePage, UsageTotal
from indelible.content import Block, File, ResultOutcome, Source, Text, ToolCall, ToolResult, encode
from indelible.errors import Invalid, NotPermitted, TooLarge
from indelible.feed import ListReader, Reader
from indelible.models.protocol import check_parameters
from indelible.service import answers
from indelible.service.access import Access
from indelible.service.guests import show_event, show_file
from indelible.store.outcome import IdempotencyKey
from indelible.store.queries.listing import ChatFilter
from indelible.store.transfer import ChatFile, FileMessage, parse_file

if TYPE_CHECKING:
    from indelible.service.chats import ServiceDependencies


def add_up(days: list[UsageDay]) -> UsageTotal:
    known = [day.cost for day in days if day.cost is not None]
    return UsageTotal(
        input_tokens=sum(day.input_tokens for day in days),
        output_tokens=sum(day.output_tokens for day in days),
        cost=sum(known) if known or not days else None,
        turns=sum(day.turns for day in days),
    )


_USAGE_DAYS: Final = 30


class LocalLists:
    """The lists of one user, whose id `get_user_id` finds."""

    def __init__(
        self,
        dependencies: ServiceDependencies,
        get_user_id: Callable[..., Awaitable[str]],
        key: IdempotencyKey | None = None,
        *,
        access: Access,
        is_admin: bool = False,
    ) -> None:
        self._dependencies = dependencies
        self._access = access
        self._store = dependencies.store
        self._get_user_id = get_user_id
        self._key = key
        self._is_admin = is_admin

    async def list_chats(
        self, wanted: ChatFilter, *, search: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> ChatPage:
        if answers.check_search(search):
            return await self._search(search or "", wanted, limit, cursor)
        place = None if cursor is None else answers.read_list_cursor(cursor)
        is_backward = place is not None and place.backward
        found = await self._store.list_chats(await self._get_user_id(), wanted=wanted, after=place, limit=limit + 1)
        items, has_more = answers.split_either(found, limit, is_backward=is_backward)
        if not items:
            return ChatPage(items=[], next=None)
        has_next, has_previous = (True, has_more) if is_backward else (has_more, place is not None)
        return ChatPage(
            items=items,
            next=answers.write_list_cursor(items[-1]) if has_next else None,
            previous=answers.write_list_cursor(items[0], backward=True) if has_previous else None,
        )

    async def _search(self, text: str, wanted: ChatFilter, limit: int, cursor: str | None) -> ChatPage:
        place = None if cursor is None else answers.read_search_cursor(cursor)
        page = await self._store.search(await self._get_user_id(), text, wanted=wanted, cursor=place, limit=limit)
        return ChatPage(
            items=page.items,
            next=None if page.next is None else answers.write_place(page.next),
            previous=None if page.previous is None else answers.write_place(page.previous),
        )

    async def list_shared(self, *, limit: int) -> ChatPage:
        """The chats that others share with this user, most recently updated first."""
        return ChatPage(items=await self._access.list_shared(await self._get_user_id(), limit=limit), next=None)

    async def mark_read(self, chat_id: str, body: ReadRequest = ALL_OF_IT) -> None:
        check_body(body, "The chat was not marked as read")
        user_id = await self._get_user_id()
        mark = partial(self._store.mark_read, chat_id, user_id, body.seq)
        async with self._access.raise_read_only(chat_id, user_id):
            await answers.perform_once(self._key, mark, answers.describe_nothing, NoneType)

    async def get_draft(self, chat_id: str) -> Draft:
        await self._check_chat(chat_id)
        return await self._store.draft(chat_id, await self._get_user_id())

    async def save_draft(self, chat_id: str, body: DraftRequest) -> None:
        await self._check_chat(chat_id)
        text = body.text
        size_bytes, limit = len(encode(text)), self._dependencies.limits.message_bytes
        if size_bytes > limit:
            raise TooLarge(f"Draft too long: {size_bytes:,} bytes (limit {limit:,}).")
        save = partial(self._store.save_draft, chat_id, await self._get_user_id(create=bool(text)), text)
        await answers.perform_once(self._key, save, answers.describe_nothing, NoneType)

    async def export_chat(self, chat_id: str, format: ExportFormat = "json") -> bytes:
        user_id = await self._get_user_id()
        share_id = await self._access.check_read(chat_id, user_id)
        file = await self._store.export_chat(chat_id)
        if share_id is not None:
            file = show_file(file)
        if format == "md":
            return write_markdown(file).encode("utf-8", "replace")
        return msgspec.json.format(encode(file), indent=1)

    async def import_chat(self, content: bytes) -> CreatedChat:
        file = self._check_file(await asyncio.to_thread(parse_file, content))
        write = partial(self._store.import_chat, file, owner_id=await self._get_user_id(create=True))
        return await answers.perform_once(self._key, write, answers.describe_copy, CreatedChat)

    def _check_file(self, file: ChatFile) -> ChatFile:
        """The file, reduced to a chat that could have been made here: users can write such a file themselves.

        Regenerating the reply to a user's message calls the model stored with the message. If that model is not offered
        here, it is removed, and the chat's model answers. Provider-executed tools are refused: they run at the
        operator's expense.
        """
        check_parameters(file.parameters or {}, allow_unknown=True)
        if any(tool.provider_executed or tool.options for tool in file.tools or ()):
            raise Invalid("tools: an imported chat has only tools that its client runs.")
        check = self._dependencies.check_model
        if check is None:
            return file
        if file.model is not None:
            check(file.model)
        unknown: set[str | None] = set()
        for name in {message.model for message in file.messages if message.role == "user" and message.model}:
            try:
                check(name)
            except Invalid:
                unknown.add(name)
        if not unknown:
            return file
        messages = [
            replace(message, model=None) if message.role == "user" and message.model in unknown else message
            for message in file.messages
        ]
        return replace(file, messages=messages)

    async def get_usage(
        self,
        *,
        since: date | None = None,
        until: date | None = None,
        user: str | None = None,
        by: Literal["user"] | None = None,
    ) -> UsagePage:
        last = until or datetime.now(UTC).date()
        first = since or date.fromordinal(max(1, last.toordinal() - _USAGE_DAYS + 1))
        user_id: str | None = await self._get_user_id()
        if user is not None or by is not None:
            if not self._is_admin:
                raise NotPermitted("Only an admin may read the usage of other users.")
            user_id = None
        days = await self._store.usage(user_id, since=first, until=last, name=user)
        return UsagePage(days=days, total=add_up(days))

    @asynccontextmanager
    async def open_tab(
        self, chat_id: str | None = None, *, after: str | None = None
    ) -> AsyncIterator[AsyncIterator[FeedEvent]]:
        async with self.open_tab_reader(chat_id, after) as (reader, _share_id):
            yield reader

    @asynccontextmanager
    async def open_tab_reader(
        self, chat_id: str | None, after: str | None
    ) -> AsyncIterator[tuple[Reader | ListReader, str | None]]:
        """A reader of all that a tab shows, and the share that it depends on, if the chat is another user's."""
        user_id = await self._get_user_id(create=True)  # it waits for what will be theirs
        share_id = None if chat_id is None else await self._access.check_read(chat_id, user_id)
        show = None if share_id is None else show_event
        tab = self._dependencies.feed.open_tab(user_id, chat_id, after, is_owner=share_id is None, show=show)
        async with tab as reader:
            yield reader, share_id

    async def _check_chat(self, chat_id: str) -> None:
        if chat_id != NEW_CHAT:
            await self._access.check_owner(chat_id, await self._get_user_id())


_SPEAKERS: Final = {"user": "You", "assistant": "Assistant", "tool": "Tool", "notice": "Notice", "system": "System"}
_RESULTS: Final[dict[ResultOutcome, str]] = {
    "ran": "Result",
    "failed": "Error",
    "not_run": "Not run",
    "unknown": "Outcome unknown",
}
_FENCES: Final = re.compile(r"`{3,}")


def write_markdown(file: ChatFile) -> str:
    written = [
        f"# {_name(file.title) or 'Untitled'}",
        *(part for message in list_path(file) for part in _write(message)),
    ]
    return "\n\n".join(written) + "\n"


def list_path(file: ChatFile) -> list[FileMessage]:
    """The active branch, oldest first, without what only a model sees."""
    by_id = {message.id: message for message in file.messages}
    path: list[FileMessage] = []
    message = by_id.get(file.head or "")
    while message is not None:
        path.append(message)
        message = by_id.get(message.parent_id or "")
    return [message for message in reversed(path) if message.visibility != "model"]


def _write(message: FileMessage) -> Iterator[str]:
    parts = [part for block in message.blocks if (part := _write_block(block))]
    if not parts:
        return
    if message.role != "tool":
        model = f" ({_name(message.model)})" if message.role == "assistant" and message.model else ""
        yield f"## {_SPEAKERS[message.role]}{model}"
    yield from parts
    if message.partial:
        yield "*(interrupted)*"


def _write_block(block: Block) -> str:
    match block:
        case Text():
            return block.text.strip()
        case ToolCall():
            return f"**Tool call:** {_name(block.name)}\n\n{_fence(block.arguments, 'json')}"
        case ToolResult():
            output = block.output if isinstance(block.output, str) else str(block.output)
            return f"**{_RESULTS[block.outcome]}:** {_name(block.name)}\n\n{_fence(output)}"
        case File():
            return f"**File:** {_name(block.name or block.media_type)}"
        case Source():
            return f"**Source:** {_name(block.title or block.url or block.id)}"
        case _:
            return ""


def _name(text: str | None) -> str:
    return " ".join((text or "").split())


def _fence(text: str, language: str = "") -> str:
    longest = max((len(found[0]) for found in _FENCES.finditer(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
