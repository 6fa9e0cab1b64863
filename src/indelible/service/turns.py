"""Turns that other programs start, with the conversations that they bring along: for the compatible APIs.

Such an API speaks of responses, completions and UI messages. Here they become what we store: a chat with a given
history, a message that starts a turn, results that resume one. Everything is a command of `LocalService` or a read of
the two logs. What an API must repeat about a request (its metadata, its options) is stored with the turn that the
request started or resumed (`turns.request`); only the chat's owner ever gets it.

A client may choose the name of a chat. The chat's id is then a hash of user and name, so that a name is found again
without a table, and no user can name the chat of another. Only the owner can use a chat here: users with whom it is
shared read it on the chat's own routes (`ReadOnly` here).

A turn is named by its chat and by the number of the last event of the transaction that started or resumed it. At
that position no attempt runs, so a reader can begin there (`Position(seq)`), and everything up to the turn's end, or
to its wait for results, belongs to it.

Must stay true (tests/service/test_turns.py): a name leads each user to one chat of their own; the model gets the given
history and the given results; a turn's facts are those of the request that started it.
(tests/server/compat/test_repeated_requests.py): a request that is repeated with its key starts one turn in one chat;
one that is refused has changed nothing. (tests/server/compat/test_costs.py): how many statements a request costs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from indelible.api.events import BUSY, Position
from indelible.api.inputs import EditedMessage, IfBusy, NewMessage, TurnRequest, to_blocks
from indelible.api.shapes import Accepted, ChatMessage
from indelible.content import Block, Message, ToolResult, ToolSpec, encode
from indelible.content.messages import extract_title, find_first_words
from indelible.errors import ChatNotFound, Invalid, NotAllowed, NotFound, Refused
from indelible.feed import Cursors
from indelible.ids import ULID, derive_id, is_id, new_id
from indelible.machine import commands
from indelible.models.protocol import check_parameters
from indelible.service.answers import describe_accepted
from indelible.service.chats import LocalService
from indelible.store.outcome import ForkPoint, Outcome
from indelible.store.payloads import AddedHistory, ChatPatch, NewChat, ToolResultsInput, UserInput
from indelible.store.queries.chat_view import ChatStatus
from indelible.store.queries.history import Page
from indelible.store.queries.turn_facts import TurnFacts

_QUEUED: Final = "Messages are queued behind a reply that failed. Retry it or delete them, on the page or with /api/v1."
_CHAT_ID: Final = re.compile(f"chat_{ULID}")
_EVENTS_AT_ONCE: Final = 100
PATH_AT_ONCE: Final = 200


class TurnSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a request wants its turn to be run."""

    model: str | None = None
    system: str | None = None
    parameters: dict[str, Any] | None = None
    tools: list[ToolSpec] | None = None

    def to_patch(self, *, given_only: bool = False) -> ChatPatch | None:
        """These settings for every next turn of a chat: all of them, or only the given ones, if there are any."""
        named = {"system_prompt": self.system, "parameters": self.parameters, "tools": self.tools}
        kept: dict[str, Any] = {name: value for name, value in named.items() if value is not None or not given_only}
        return ChatPatch(**kept) if kept else None


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a request brings: a message, with what stands above and below it."""

    history: list[Message] = []
    blocks: list[Block] = []
    progress: list[Message] = []


class TurnStart(NamedTuple):
    """Where a turn begins for its readers. It waits in the queue if `queued` is set."""

    chat_id: str
    cursor: str
    turn_id: str | None
    queued: str | None = None
    answered: int = 0
    """How often the turn has already waited for results and got them."""
    message_id: str | None = None
    """The message that was sent, if it did not have to wait."""
    at: datetime | None = None
    """When it was sent, if this is known without a query."""
    model: str | None = None
    """The model that is to answer it."""

    @property
    def seq(self) -> int:
        position = Cursors(self.chat_id).read(self.cursor)
        assert position is not None
        return position.seq


class Queued(NamedTuple):
    """The queue of a chat, at or after the chat's event `seq`."""

    seq: int
    items: list[tuple[TurnStart, list[Block]]]


class TurnService:
    """See the module header. Made for one request of a user: `service` carries out its command, once if it has a key.

    An owner never changes, so one request asks for the owner of a chat once.
    """

    def __init__(self, service: LocalService) -> None:
        self.service = service
        self._store = service.store
        self._owned: set[str] = set()

    async def named(self, *content: str) -> TurnService:
        """The same for a request that its content names, if it has no key: two that are the same start one turn."""
        if self.service.key is not None:
            return self
        key = hashlib.blake2b(encode(content), digest_size=32).hexdigest()
        return TurnService(await self.service.once(key, route="", body_hash=b""))

    async def _check_owner(self, chat_id: str) -> None:
        if chat_id not in self._owned:
            await self.service.check_owner(chat_id)
            self._owned.add(chat_id)

    # --- names ---

    async def find_chat_id(self, name: str) -> str:
        """The chat of this name: a chat's own id, or whatever a client has chosen. It need not exist."""
        if not name or not is_id(name):
            raise Invalid("A chat's name is 1 to 200 printable ASCII characters.")
        if _CHAT_ID.fullmatch(name):
            return name
        user_id = await self.service.get_user_id(create=True)
        return derive_id("chat", hashlib.blake2b(f"{user_id}\0{name}".encode(), digest_size=16).digest())

    async def exists(self, chat_id: str) -> bool:
        try:
            await self._check_owner(chat_id)
        except NotFound:
            return False
        return True

    # --- starting turns ---

    async def create(
        self,
        chat_id: str,
        given: Given,
        settings: TurnSettings,
        *,
        metadata: dict[str, str] | None = None,
        ephemeral: bool = False,
        request: dict[str, Any] | None = None,
    ) -> TurnStart:
        """A new chat with this history. With a message, the reply starts at once, and `request` is kept with it.

        An `ephemeral` chat is for this one turn. Its client deletes it; if it does not, a worker archives it later.
        """
        check_parameters(settings.parameters or {})
        new = NewChat(
            owner_id=await self.service.get_user_id(create=True),
            blocks=to_blocks(given.blocks) if given.blocks else [],
            history=given.history,
            progress=given.progress,
            model=settings.model,
            system_prompt=settings.system,
            parameters=settings.parameters,
            tools=settings.tools,
            suggested_title=extract_title(given.blocks) if given.blocks else find_first_words(given.history),
            labels=_to_labels(metadata or {}),
            ephemeral=ephemeral,
            request=request,
        )
        command = commands.Create(with_message=bool(given.blocks))
        return await self.service.execute(chat_id, command, new, _describe_start, TurnStart)

    async def add_messages(self, chat_id: str, history: Sequence[Message]) -> list[ChatMessage]:
        """Add messages that were said elsewhere to the end of a chat, and answer nothing; returns them as stored."""
        await self._check_owner(chat_id)
        if not history:
            raise Invalid("items: there is nothing to add.")
        added = AddedHistory(history=list(history), suggested_title=find_first_words(history))
        ids = await self.service.execute(chat_id, commands.AddMessages(), added, _list_added, list[str])
        return await self.list_path(chat_id, upto=ids[-1], limit=len(ids))

    async def set_metadata(self, chat_id: str, metadata: dict[str, str]) -> dict[str, str]:
        """Replace the metadata of a chat: its labels of the form `key=value`. The user's other labels stay."""
        patch = ChatPatch(label_pairs=_to_labels(metadata))
        return read_metadata((await self.service.patch_chat(chat_id, patch)).labels)

    async def get_status(self, chat_id: str) -> ChatStatus:
        await self._check_owner(chat_id)
        return await self._store.status(chat_id)

    async def start_turn(self, begin: Callable[[], Awaitable[TurnStart]]) -> TurnStart:
        """Where the turn of this request begins: where it began if the request was made before, or as `begin` does it.

        The key comes first, because the first request has changed what `begin` decides by: a reply runs, or the chat
        has another end. A request that is refused may also have been overtaken by another one with its key.
        """
        found = await self._find_start()
        if found is not None:
            return found
        try:
            return await begin()
        except Refused:
            found = await self._find_start()
            if found is None:
                raise
            return found

    async def _find_start(self) -> TurnStart | None:
        key = self.service.key
        stored = None if key is None else await self._store.find_response(key)
        return None if stored is None else msgspec.json.decode(stored.body, type=TurnStart)

    async def send(
        self,
        chat_id: str,
        blocks: Sequence[Block],
        *,
        model: str | None = None,
        settings: ChatPatch | None = None,
        copy_at: str | None = None,
        request: dict[str, Any] | None = None,
    ) -> TurnStart:
        """Start a turn with these settings in a chat in which none runs, or in a copy that ends with a message.

        If a turn runs, this is refused, and nothing was changed.
        """
        content = to_blocks(blocks)
        message = UserInput(blocks=content, model=model, suggested_title=extract_title(content), request=request)
        fork = None if copy_at is None else ForkPoint(copy_at, new_id("chat"))
        try:
            return await self._continue(chat_id, commands.Send(), message, patch=settings, fork=fork)
        except NotAllowed as refused:
            if refused.state not in BUSY:
                raise
            state = await self.service.get_status(chat_id)
            detail = "Another response of this conversation is running." if state in BUSY else _QUEUED
            raise NotAllowed(command=refused.command, state=state, detail=detail) from refused

    async def submit(
        self,
        chat_id: str,
        results: Sequence[ToolResult],
        *,
        blocks: Sequence[Block] = (),
        settings: ChatPatch | None = None,
        request: dict[str, Any] | None = None,
    ) -> TurnStart:
        """Resume the turn that waits for these results, with these settings. A message beside them joins the turn."""
        message = UserInput(blocks=to_blocks(blocks)) if blocks else None
        command = commands.ToolResults(call_ids=tuple(result.call_id for result in results))
        cut = replace(await self.service.cut_results(chat_id, results), request=request)
        return await self._continue(chat_id, command, message, results=cut, patch=settings)

    async def _continue(
        self,
        chat_id: str,
        command: commands.Send | commands.ToolResults,
        message: UserInput | None,
        *,
        results: ToolResultsInput | None = None,
        patch: ChatPatch | None = None,
        fork: ForkPoint | None = None,
    ) -> TurnStart:
        service = self.service
        service.check_model(None if message is None else message.model)
        service.check_tools(None if patch is None else patch.tools)
        if patch is not None and isinstance(patch.parameters, dict):
            check_parameters(patch.parameters)
        user_id = await service.get_user_id()
        reserve = service.offer_place(chat_id if fork is None else fork.new_chat_id, user_id, command)
        given: dict[str, Any] = {"results": results, "patch": patch, "fork": fork, "reserve": reserve}
        write = partial(self._store.continue_chat, chat_id, message, **given, user_id=user_id)
        return await service.perform(chat_id, command, write, _describe_start, TurnStart)

    async def interject(
        self, chat_id: str, blocks: Sequence[Block], *, if_busy: IfBusy, model: str | None = None
    ) -> TurnStart:
        """Start a turn now, or after the one that runs."""
        message = NewMessage(content=[*blocks], if_busy=if_busy, model=model)
        return start_of(chat_id, await self.service.send(chat_id, message))

    async def edit(self, chat_id: str, message_id: str, blocks: Sequence[Block], *, model: str | None) -> TurnStart:
        """Start a turn that answers this message in place of another."""
        message = EditedMessage(content=[*blocks], model=model)
        return start_of(chat_id, await self.service.edit(chat_id, message_id, message))

    async def regenerate(self, chat_id: str, message_id: str, *, model: str | None = None) -> TurnStart:
        """Start a turn that answers a message anew."""
        return start_of(chat_id, await self.service.regenerate(chat_id, message_id, TurnRequest(model=model)))

    # --- finding turns ---

    async def turn_facts(self, chat_id: str, seq: int) -> TurnFacts:
        """What the turn that begins at this position answers, how it does, and its chat now. One read."""
        user_id = await self.service.get_user_id()
        async with self.service.access.raise_read_only(chat_id, user_id):
            facts = await self._store.turn_facts(chat_id, seq)
            if facts.owner_id != user_id:
                raise ChatNotFound
        self._owned.add(chat_id)
        return facts

    async def list_path(self, chat_id: str, *, upto: str | None = None, limit: int = PATH_AT_ONCE) -> list[ChatMessage]:
        """The end of the active path, or of the path to a message, oldest first."""
        await self._check_owner(chat_id)
        page = await self._store.page(chat_id, upto=upto, limit=limit)
        return _show(page)

    async def list_whole_path(self, chat_id: str, *, upto: str | None = None) -> list[ChatMessage]:
        """The same, to its beginning; read in pieces."""
        await self._check_owner(chat_id)
        page = await self._store.page(chat_id, upto=upto, limit=PATH_AT_ONCE)
        pages = [_show(page)]
        while page.has_more:
            page = await self._store.page(chat_id, before=page.items[0].id, limit=PATH_AT_ONCE)
            pages.append(_show(page))
        return [message for shown in reversed(pages) for message in shown]

    async def find_answering(self, chat_id: str, message_id: str, *, resumed: bool = False) -> TurnStart | None:
        """The start of the last turn that answers this message, whether it runs or has ended.

        With `resumed`, the place where it got the results that it waited for last; None if it got none.
        """
        await self._check_owner(chat_id)
        turn = await self._store.answering(chat_id, message_id)
        if turn is None or len(turn.starts) <= resumed:
            return None
        if resumed:
            return start_at(chat_id, turn.starts[-1], turn.turn_id)
        return start_at(chat_id, turn.starts[0], turn.turn_id, len(turn.starts) - 1)

    async def list_queued(self, chat_id: str) -> Queued:
        """The messages that wait, each with the start of its turn, which has not begun."""
        now = await self.get_status(chat_id)  # first: when a message enters history, readers have to learn it
        items = (await self.service.list_queue(chat_id)).items
        start = start_at(chat_id, now.seq)
        return Queued(now.seq, [(start._replace(queued=queued.id), queued.blocks) for queued in items])

    async def find_running(self, chat_id: str) -> TurnStart | None:
        """The start of the turn that runs; None if none does. It may have waited for results meanwhile."""
        await self._check_owner(chat_id)
        now = await self._store.status(chat_id)
        if now.status not in BUSY or now.turn_id is None:
            return None
        first, seq, answered = now.seq, now.seq, 0
        while seq > 0:
            below = max(0, seq - _EVENTS_AT_ONCE)
            for event in reversed(await self._store.events(chat_id, after=below, limit=seq - below)):
                if event.kind == "status" and event.ref != now.turn_id:
                    return start_at(chat_id, first, now.turn_id, answered)
                first = event.seq if event.kind == "status" else first
                answered += event.kind == "action"
            seq = below
        return start_at(chat_id, first, now.turn_id, answered)


def _show(page: Page) -> list[ChatMessage]:
    return msgspec.json.decode(encode(page.items), type=list[ChatMessage])


def read_metadata(labels: Sequence[str]) -> dict[str, str]:
    """The metadata that are in these labels."""
    return dict(label.split("=", 1) for label in labels if "=" in label)


def _to_labels(metadata: dict[str, str]) -> list[str]:
    if any("=" in key for key in metadata):
        raise Invalid("metadata: a key may not contain an equals sign.")
    return [f"{key}={value}" for key, value in metadata.items()]


def _list_added(outcome: Outcome) -> list[str]:
    return [message.id for message in outcome.messages if message.id is not None]


def _describe_start(outcome: Outcome) -> TurnStart:
    start = start_of(outcome.chat_id, describe_accepted(outcome))
    return start._replace(at=outcome.at, model=outcome.messages[-1].model if outcome.messages else None)


def start_of(chat_id: str, accepted: Accepted) -> TurnStart:
    return TurnStart(chat_id, accepted.cursor, accepted.turn, accepted.queued, message_id=accepted.message)


def start_at(chat_id: str, seq: int, turn_id: str | None = None, answered: int = 0) -> TurnStart:
    """The start of a turn at this event."""
    return TurnStart(chat_id, Cursors(chat_id).write(Position(seq)), turn_id, None, answered)
