"""Every use case on the store and the feed of this process (api/operations.py says what each one promises).

A command carries the user's id into the transaction, where the store compares it with the owner in the locked row. A
read checks the owner first: an owner never changes, so the check stays valid during the read. access.py has the
rule, and decides what other users may do.

`once` returns the same service for one request that may be repeated. Its command, its response and the key are
committed in one transaction (rule 3.5), so a route calls the same method with or without a key.

This is the only place that builds payloads for commands of users.

Must stay true (tests/service/test_local.py, tests/server/test_owners.py): no use case reads or changes a chat of
another user; a repeated request changes nothing and gets the same response.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from types import NoneType
from typing import Any, Final, Self, TypeVar

import msgspec
from msgspec.structs import replace

from indelible.api import inputs, shapes
from indelible.api.events import BEGINNING, FeedEvent, MessageTree
from indelible.api.records import RunTree
from indelible.concurrency.readings import Readings
from indelible.content import ToolResult, ToolSpec, encode
from indelible.content.messages import extract_title
from indelible.errors import Invalid, NotFound, RateLimited
from indelible.feed import Cursors, Feed, Reader
from indelible.files.store import FileStore
from indelible.ids import new_id
from indelible.machine import commands
from indelible.machine.commands import Command, SendCommand
from indelible.models.protocol import check_parameters
from indelible.recording.storage import RecordStore
from indelible.service import answers
from indelible.service.access import Access, Budget, starts_a_reply
from indelible.service.files import LocalFiles
from indelible.service.guests import show_chat, show_event, show_messages, show_tree
from indelible.service.lists import LocalLists
from indelible.service.stop import Stop, describe_stop, wait_for_end
from indelible.store import payloads
from indelible.store.commands.begin import Place, Reserve
from indelible.store.outcome import IdempotencyKey, Outcome
from indelible.store.payloads import C, Payload
from indelible.store.queries.listing import ChatFilter
from indelible.store.shares import ShareStore
from indelible.store.store import Store
from indelible.tools.output import cut_text, limit_for, render_output

T = TypeVar("T")

NOBODY: Final = "nobody"
"""The id of a user who has none yet, and so owns nothing."""
_ALWAYS_KEPT_BYTES: Final = limit_for(0)
FindWindow = Callable[[str | None], int | None]
"""The context window of the model of this name in tokens; None if it is unknown. It may read files."""

_SENDS: Final[dict[str, Callable[[], SendCommand]]] = {
    "queue": commands.Send,
    "interrupt": commands.SendInterrupt,
    "steer": commands.SendSteer,
}


@dataclass(frozen=True, kw_only=True)
class ServiceDependencies:
    """What the use cases of all users share. `check_model` raises `Invalid` for a name that no model can have.

    `limits` are the store's: a result of a tool that is too large is refused before it is cut. `tools` are the names of
    the tools that this process knows the server to run: no chat can have its own of such a name. `reserve(chat, user)`
    asks the worker of this process, if it has one, for a place for the turn that a command begins.
    """

    store: Store
    feed: Feed
    records: RecordStore
    limits: payloads.StoreLimits
    models: Sequence[str] = ()
    default_model: str | None = None
    check_model: Callable[[str], None] | None = None
    find_window: FindWindow | None = None
    tools: frozenset[str] = frozenset()
    shares: ShareStore | None = None
    budget: Budget | None = None
    reserve: Callable[[str, str], Place | None] | None = None
    files: FileStore
    readings: Readings = field(default_factory=Readings)


class LocalService:
    """The use cases of one user, identified by id, or by name: the first thing stored for a new name creates a user."""

    def __init__(
        self,
        dependencies: ServiceDependencies,
        *,
        user_id: str | None = None,
        user: str | None = None,
        is_admin: bool = False,
    ) -> None:
        self.readings = dependencies.readings
        self._dependencies = dependencies
        self.store = dependencies.store
        self._feed = dependencies.feed
        self._records = dependencies.records
        self.access = Access(dependencies.store, dependencies.shares)
        self._user_id = user_id
        self._user = user
        self._is_admin = is_admin
        self.key: IdempotencyKey | None = None
        self.files = LocalFiles(dependencies.files, self.get_user_id, dependencies.shares)

    async def get_user_id(self, *, create: bool = False) -> str:
        """Whoever stores something, or waits for it, creates a missing user. Reading does not: a name may be a typo."""
        if self._user_id is None:
            name = self._user or ""
            self._user_id = await (self.store.ensure_user(name) if create else self.store.find_user(name))
        return self._user_id or NOBODY

    async def once(self, key: str, *, route: str, body_hash: bytes) -> Self:
        """The same service for one request that may be repeated: its command is carried out once."""
        repeatable = copy(self)
        repeatable.key = IdempotencyKey(await self.get_user_id(create=True), key, route, body_hash)
        return repeatable

    # --- chats ---

    async def create_chat(self, body: inputs.CreateChat) -> shapes.CreatedChat:
        inputs.check_body(replace(body, message=None), "The chat was not created")
        check_parameters(body.parameters or {})
        blocks = [] if body.message is None else inputs.to_blocks(body.message)
        new = payloads.NewChat(
            owner_id=await self.get_user_id(create=True),
            blocks=blocks,
            model=body.model,
            system_prompt=body.system,
            title=body.title,
            parameters=body.parameters,
            suggested_title=extract_title(blocks),
            tools=None if body.tools is None else [tool.to_spec() for tool in body.tools],
        )

        def describe(outcome: Outcome) -> shapes.CreatedChat:
            return shapes.CreatedChat(
                id=outcome.chat_id,
                status=str(outcome.status),
                turn=outcome.turn_id,
                cursor=answers.write_cursor(outcome),
                title=new.suggested_title if new.title is None else new.title,
                model=new.model,
                message=outcome.messages[0].id if outcome.messages else None,
            )

        command = commands.Create(with_message=body.message is not None)
        return await self.execute(new_id("chat"), command, new, describe, shapes.CreatedChat)

    async def list_chats(
        self,
        *,
        q: str | None = None,
        label: str | None = None,
        pinned: bool | None = None,
        archived: bool = False,
        unread: bool | None = None,
        shared: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> shapes.ChatPage:
        if shared:
            return await self.lists.list_shared(limit=limit)
        wanted = ChatFilter(archived=archived, label=label, pinned=pinned, unread=unread)
        return await self.lists.list_chats(wanted, search=q, limit=limit, cursor=cursor)

    @property
    def lists(self) -> LocalLists:
        return LocalLists(self._dependencies, self.get_user_id, self.key, access=self.access, is_admin=self._is_admin)

    async def check_chat(self, chat_id: str) -> None:
        await self.access.check_read(chat_id, await self.get_user_id())

    async def check_owner(self, chat_id: str) -> None:
        await self.access.check_owner(chat_id, await self.get_user_id())

    async def get_status(self, chat_id: str) -> str:
        await self.check_chat(chat_id)
        return (await self.store.status(chat_id)).status

    async def get_chat(self, chat_id: str) -> shapes.ChatDetails:
        share_id = await self.access.check_read(chat_id, await self.get_user_id())
        details = msgspec.json.decode(encode(await self._feed.snapshot(chat_id)), type=shapes.ChatDetails)
        beside = await self.store.extras(chat_id, await self.get_user_id())
        details = replace(details, **msgspec.structs.asdict(beside))
        return details if share_id is None else show_chat(details)

    async def update_chat(self, chat_id: str, body: inputs.ChatChanges) -> shapes.UpdatedChat:
        inputs.check_body(body, "The chat has not changed")
        self.check_model(body.model if isinstance(body.model, str) else None)
        check_parameters(body.parameters or {})
        archived = None if body.archived is msgspec.UNSET else body.archived
        return await self.patch_chat(chat_id, _to_patch(body), archived=archived)

    async def patch_chat(
        self, chat_id: str, patch: payloads.ChatPatch, *, archived: bool | None = None
    ) -> shapes.UpdatedChat:
        """Carry out an update that was checked."""
        self.check_tools(patch.tools)
        user_id = await self.get_user_id()
        update = partial(self.store.update, chat_id, patch, archived=archived, user_id=user_id)
        async with self.access.raise_read_only(chat_id, user_id):
            return await answers.perform_once(self.key, update, answers.describe_updated, shapes.UpdatedChat)

    async def delete_chat(self, chat_id: str) -> None:
        await self.execute(chat_id, commands.Delete(), None, answers.describe_nothing, NoneType)

    async def fork_chat(self, chat_id: str, body: inputs.Fork) -> shapes.CreatedChat:
        user_id = await self.get_user_id()
        named = (answers.check_name(chat_id), answers.check_name(body.message_id))
        fork = partial(self.store.fork, *named, new_chat_id=new_id("chat"), owner_id=user_id, user_id=user_id)
        async with self.access.raise_read_only(chat_id, user_id):
            return await answers.perform_once(self.key, fork, answers.describe_copy, shapes.CreatedChat)

    # --- messages ---

    async def list_messages(
        self,
        chat_id: str,
        *,
        before: str | None = None,
        after: str | None = None,
        limit: int = 50,
        as_guest: bool = False,
    ) -> shapes.MessagePage:
        """`as_guest`: as in `open_reader`."""
        share_id = await self.access.check_read(chat_id, await self.get_user_id())
        as_guest = as_guest or share_id is not None
        positions = await self.store.positions([chat_id])  # first, so that reading from there misses nothing
        named = {"before": before and answers.check_name(before), "after": after and answers.check_name(after)}
        page = await self.store.page(chat_id, **named, limit=limit, only_active=as_guest)
        shown = shapes.MessagePage(
            cursor=Cursors(chat_id).write(positions.get(chat_id, BEGINNING)),
            items=msgspec.json.decode(encode(page.items), type=list[shapes.ChatMessage]),
            next=page.items[0].id if page.has_more and page.items else None,
            previous=page.items[-1].id if page.has_newer and page.items else None,
        )
        return show_messages(shown) if as_guest else shown

    async def send(self, chat_id: str, body: inputs.NewMessage) -> shapes.Accepted:
        inputs.check_if_busy(body.if_busy)
        blocks = body.to_blocks()
        payload = payloads.UserInput(blocks=blocks, model=body.model, suggested_title=extract_title(blocks))
        return await self._accept(chat_id, _SENDS[body.if_busy](), payload)

    async def edit(self, chat_id: str, message_id: str, body: inputs.EditedMessage) -> shapes.Accepted:
        payload = payloads.UserInput(blocks=body.to_blocks(), model=body.model)
        return await self._accept(chat_id, commands.Edit(message_id=message_id), payload)

    async def regenerate(
        self, chat_id: str, message_id: str, body: inputs.TurnRequest = inputs.SAME_MODEL
    ) -> shapes.Accepted:
        return await self._accept(
            chat_id, commands.Regenerate(message_id=message_id), payloads.ModelChoice(model=body.model)
        )

    async def switch_branch(self, chat_id: str, body: inputs.BranchTarget) -> shapes.Accepted:
        return await self._accept(chat_id, commands.SwitchBranch(message_id=body.message_id, exact=body.exact))

    async def get_tree(self, chat_id: str) -> MessageTree:
        share_id = await self.access.check_read(chat_id, await self.get_user_id())
        tree = await self.store.tree(chat_id)
        return tree if share_id is None else show_tree(tree)

    # --- turns ---

    async def interrupt(self, chat_id: str, body: inputs.Interruption = inputs.STOP_NOW) -> shapes.InterruptResult:
        return await self._stop(chat_id, body.turn, body.wait_s)

    async def interrupt_and_wait(self, chat_id: str, *, turn: str | None = None) -> shapes.InterruptResult:
        return await self._stop(chat_id, turn, None)

    async def _stop(self, chat_id: str, turn: str | None, wait_s: float | None) -> shapes.InterruptResult:
        describe = partial(describe_stop, turn=turn)
        stop = await self.execute(chat_id, commands.Interrupt(turn_id=turn), None, describe, Stop)
        if wait_s != 0:
            stop = await wait_for_end(self._feed, chat_id, stop, wait_s=wait_s)
        return stop.result

    async def retry(self, chat_id: str, body: inputs.TurnRequest = inputs.SAME_MODEL) -> shapes.Accepted:
        return await self._accept(chat_id, commands.Retry(), payloads.ModelChoice(model=body.model))

    async def continue_(self, chat_id: str, body: inputs.TurnRequest = inputs.SAME_MODEL) -> shapes.Accepted:
        return await self._accept(chat_id, commands.Continue(), payloads.ModelChoice(model=body.model))

    async def compact(self, chat_id: str) -> shapes.Accepted:
        return await self._accept(chat_id, commands.Compact())

    async def submit_tool_results(self, chat_id: str, body: inputs.ToolResultsRequest) -> shapes.Accepted:
        results = [result.to_result() for result in body.results]
        command = commands.ToolResults(call_ids=tuple(result.call_id for result in results), turn_id=body.turn)
        return await self._accept(chat_id, command, await self.cut_results(chat_id, results))

    async def cut_results(self, chat_id: str, results: Sequence[ToolResult]) -> payloads.ToolResultsInput:
        """Their text, within what the model that gets them can take: that of the open turn."""
        rendered = [replace(result, output=render_output(result.output)) for result in results]
        payloads.check_payload(payloads.ToolResultsInput(results=rendered), self._dependencies.limits)
        if all(len(result.output.encode()) <= _ALWAYS_KEPT_BYTES for result in rendered):
            return payloads.ToolResultsInput(results=rendered)
        find_window, window = self._dependencies.find_window, None
        if find_window is not None:
            with suppress(NotFound):  # the command says so, or answers a repeated request
                window = await asyncio.to_thread(find_window, (await self.store.status(chat_id)).model)
        cut = [replace(result, output=cut_text(result.output, limit_for(window)).text) for result in rendered]
        return payloads.ToolResultsInput(results=cut)

    # --- the queue ---

    async def list_queue(self, chat_id: str) -> shapes.QueuePage:
        await self.check_owner(chat_id)
        return shapes.QueuePage(items=await self.store.queue(chat_id))

    async def edit_queued(self, chat_id: str, queued_id: str, body: inputs.MessageContent) -> shapes.Accepted:
        payload = payloads.QueuedInput(blocks=body.to_blocks())
        return await self._accept(chat_id, commands.EditQueued(queued_id=queued_id), payload)

    async def delete_queued(self, chat_id: str, queued_id: str) -> None:
        await self._accept(chat_id, commands.DeleteQueued(queued_id=queued_id))

    async def reorder_queue(self, chat_id: str, body: inputs.QueueOrder) -> shapes.Accepted:
        return await self._accept(chat_id, commands.ReorderQueue(queued_ids=tuple(body.ids)))

    async def promote_queued(self, chat_id: str, queued_id: str) -> shapes.Accepted:
        return await self._accept(chat_id, commands.PromoteQueued(queued_id=queued_id))

    # --- events, attempts and runs ---

    @asynccontextmanager
    async def open_events(self, chat_id: str, *, after: str | None = None) -> AsyncIterator[AsyncIterator[FeedEvent]]:
        async with self.open_reader(chat_id, after) as (reader, _share_id):
            yield reader

    @asynccontextmanager
    async def open_reader(
        self, chat_id: str, after: str | None, *, as_guest: bool = False
    ) -> AsyncIterator[tuple[Reader, str | None]]:
        """A reader of the chat, and the share that it depends on, if the chat is another user's.

        `as_guest`: the reader sees what a guest sees, and the caller has the owner's word for it (a link).

        Joining compares the owner, so that the owner's own feed costs no query more.
        """
        user_id = await self.get_user_id()
        async with AsyncExitStack() as stack:
            share_id: str | None = None
            show = show_event if as_guest else None
            try:
                reader = await stack.enter_async_context(self._feed.open(chat_id, after, user_id=user_id, show=show))
            except NotFound:
                share_id = await self.access.find_share(chat_id, user_id)
                if share_id is None:
                    raise
                reader = await stack.enter_async_context(self._feed.open(chat_id, after, show=show_event))
            yield reader, share_id

    async def list_attempts(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
    ) -> shapes.AttemptPage:
        await self.check_owner(chat_id)
        load = partial(self.store.attempts, chat_id)
        return await answers.load_page(shapes.AttemptPage, load, before=before, after=after, limit=limit)

    async def list_runs(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
    ) -> shapes.RunPage:
        await self.check_owner(chat_id)
        load = partial(self._records.list_runs, chat_id)
        return await answers.load_page(shapes.RunPage, load, before=before, after=after, limit=limit)

    async def get_run(self, chat_id: str, run_id: str) -> RunTree:
        await self.check_owner(chat_id)
        run = await self._records.load_tree(chat_id, answers.check_name(run_id))
        if run is None:
            raise NotFound("Run not found in this chat.")
        return run

    async def list_models(self) -> shapes.ModelPage:
        default = self._dependencies.default_model
        return shapes.ModelPage(
            items=[shapes.ModelEntry(id=name, default=name == default) for name in self._dependencies.models]
        )

    # --- commands ---

    def check_model(self, name: str | None) -> None:
        """Refuse a name that no model can have, before the chat would meet it in a reply."""
        if not isinstance(name, str | None):
            raise Invalid(
                f"model: must be the name of a model, not {type(name).__name__}. Give models to indelible.open."
            )
        if name is not None and self._dependencies.check_model is not None:
            self._dependencies.check_model(name)

    def check_tools(self, tools: Sequence[ToolSpec] | msgspec.UnsetType | None) -> None:
        """Refuse a chat's own tool that has the name of one of the server's: the model could mean only one of them."""
        for tool in tools or ():
            if tool.name in self._dependencies.tools:
                raise Invalid(f"tools: the server has a tool named {tool.name!r}. Rename yours.")

    async def _accept(self, chat_id: str, command: C, payload: Payload[C] | None = None) -> shapes.Accepted:
        return await self.execute(chat_id, command, payload, answers.describe_accepted, shapes.Accepted)

    async def execute(
        self,
        chat_id: str,
        command: C,
        payload: Payload[C] | None,
        describe: Callable[[Outcome], T],
        result_type: type[T],
    ) -> T:
        """Carry out a command; if this request was made before, return its stored response."""
        self.check_model(getattr(payload, "model", None))
        self.check_tools(getattr(payload, "tools", None))
        user_id = await self.get_user_id()
        of: dict[str, Any] = {"user_id": user_id, "reserve": self.offer_place(chat_id, user_id, command)}
        execute = partial(self.store.execute, chat_id, command, payload, **of)
        return await self.perform(chat_id, command, execute, describe, result_type)

    def offer_place(self, chat_id: str, user_id: str, command: Command) -> Reserve | None:
        """What the store asks for a place in this process, if the command may start a reply."""
        reserve = self._dependencies.reserve
        return None if reserve is None or not starts_a_reply(command) else partial(reserve, chat_id, user_id)

    async def perform(
        self,
        chat_id: str,
        command: Command,
        write: Callable[..., Coroutine[Any, Any, Outcome]],
        describe: Callable[[Outcome], T],
        result_type: type[T],
    ) -> T:
        """Carry out a write if the user's budget allows this command; a repeated request gets its stored response."""
        user_id = await self.get_user_id()
        if self._dependencies.budget is not None:
            try:
                await self._dependencies.budget.check(user_id, command)
            except RateLimited:
                stored = None if self.key is None else await self.store.find_response(self.key)
                if stored is None:
                    raise
                return msgspec.json.decode(stored.body, type=result_type)  # it was made before the limit was reached
        async with self.access.raise_read_only(chat_id, user_id):
            return await answers.perform_once(self.key, write, describe, result_type)


def _to_patch(changes: inputs.ChatChanges) -> payloads.ChatPatch:
    given = {name: value for name, value in msgspec.structs.asdict(changes).items() if value is not msgspec.UNSET}
    given.pop("archived", None)
    if "system" in given:
        given["system_prompt"] = given.pop("system")
    if isinstance(changes.tools, list):
        given["tools"] = [tool.to_spec() for tool in changes.tools]
    return payloads.ChatPatch(**given)
