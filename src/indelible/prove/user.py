"""A user: sends, queues, steers, stops, edits, forks, uploads, and notes what the server accepted.

Each user has its own random numbers, so the same seed gives the same user. One round is a message or two, something
done while they are answered, and, once the chat is at rest, something done with the answers. Everything is decided from
what the user's own reader has seen, as people do. A refusal is a fault, except where another event may have come first:
the queue may be empty by the time that one of its messages is promoted. At the end it sends nothing more and waits for
its last reply; a proof has to end with every chat at rest.

The files of one message are uploaded at the same time and in pieces, so that a kill finds uploads in every state. The
client repeats a broken upload with the same key; it has to be one file in the end. Now and then a user breaks off an
upload in the middle, of which nothing may ever be seen. population.py has the client that answers the calls of tools.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Literal

from indelible.api import inputs
from indelible.api.operations import FileApi
from indelible.api.shapes import Accepted
from indelible.client.client import RemoteService
from indelible.content import File, Text
from indelible.errors import IndelibleError, NotAllowed, NotFound
from indelible.prove.evidence import StoredCopy, UploadLog, UserLog
from indelible.prove.reader import SeenMessage, SimulatedReader
from indelible.prove.script import ProofFile, Wish, draw_file_count, draw_wish, list_files
from indelible.prove.tools import CLIENT_TOOLS
from indelible.service.files import read_all

_PIECE_BYTES: Final = 64 * 1024
_PIECES_OF_A_SMALL_FILE: Final = 3
_PAUSE_S: Final = 0.005
_BROKEN_OFF: Final = 0.1
_PAGE: Final = 200


class Uploader:
    """The uploads of one user, noted in the `log` of all."""

    def __init__(self, client: RemoteService, log: UploadLog, *, number: int, seed: int) -> None:
        self._files = client.files
        self._log = log
        self._chance = random.Random(f"files of {number}, {seed}")  # noqa: S311  (it only has to be reproducible)

    def draw_count(self) -> int:
        """How many files the next message has."""
        return draw_file_count(self._chance)

    async def upload(self, files: Sequence[ProofFile]) -> list[str]:
        """Upload these files at the same time; returns their ids, in order."""
        if self._chance.random() < _BROKEN_OFF:
            await self._break_off()
        return list(await asyncio.gather(*(upload(self._files, self._log, file) for file in files)))

    async def _break_off(self) -> None:
        """Send the beginning of a file, and hang up."""
        file = self._log.name_another("other")
        has_begun = asyncio.Event()

        async def begin() -> AsyncIterator[bytes]:
            yield file.data[:_PIECE_BYTES]
            has_begun.set()
            await asyncio.Event().wait()

        sending = asyncio.create_task(self._files.upload(begin, name=file.name, size=len(file.data)))
        beginning = asyncio.create_task(has_begun.wait())
        try:
            await asyncio.wait([sending, beginning], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            beginning.cancel()
            await asyncio.wait([sending, beginning])
        self._log.broken_off.append(file.key)
        if not sending.cancelled():
            sending.result()  # a refusal is a fault of the server


async def upload(files: FileApi, log: UploadLog, file: ProofFile) -> str:
    """Upload a file in pieces, and note that it was accepted."""
    data = file.data
    size = max(1, min(_PIECE_BYTES, len(data) // _PIECES_OF_A_SMALL_FILE))

    async def read_pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), size):
            yield data[start : start + size]
            await asyncio.sleep(_PAUSE_S)

    stored = await files.upload(read_pieces, name=file.name, size=len(data))
    log.accepted[stored.id] = file.key
    return stored.id


async def upload_unused(clients: Sequence[RemoteService], log: UploadLog) -> None:
    """Upload a file that no message will use, to each of these servers at the same time."""
    await asyncio.gather(*(upload(client.files, log, log.name_another("picture")) for client in clients))


async def delete_files(client: RemoteService, file_ids: Sequence[str]) -> None:
    for file_id in file_ids:
        await client.files.delete_file(file_id)


async def load_copies(client: RemoteService) -> list[StoredCopy]:
    """Every file that the server lists, with the hash of what a download of it brings."""
    files, found = client.files, []
    cursor: str | None = None
    while True:
        page = await files.list_files(limit=_PAGE, cursor=cursor)
        for listed in page.items:
            try:
                brought = hashlib.sha256(await read_all(files, listed.id)).hexdigest()
            except IndelibleError as error:
                brought = str(error)
            found.append(StoredCopy(listed.id, listed.name, listed.media_type, listed.sha256, brought))
        cursor = page.next
        if cursor is None:
            return found


# --- sending ---


_NUMBERS_PER_CHAT: Final = 100_000
_OWN_MODEL: Final = 0.3


class MessageSender:
    """Draws the messages of one user, each with a number of its own. `default_model` is the chat's."""

    def __init__(
        self,
        client: RemoteService,
        chance: random.Random,
        *,
        number: int,
        models: Sequence[str],
        phrases: Sequence[str] | None,
        uploader: Uploader,
    ) -> None:
        self.default_model: str | None = models[number % len(models)] if models else None
        self._client = client
        self._chance = chance
        self._next_number = number * _NUMBERS_PER_CHAT
        self._models = models
        self._phrases = phrases
        self._uploader = uploader

    @property
    def knows_replies(self) -> bool:
        """Whether the model is that of a proof, which calls the tools of the proof."""
        return self._phrases is None

    def draw(self, *, may_ask: bool) -> tuple[str, str | None]:
        """A message, and the model that is to answer it; None means the chat's."""
        self._next_number += 1
        if self._phrases is not None:
            return f"{self._chance.choice(self._phrases)} ({self._next_number})", None
        files = self._uploader.draw_count()
        wish = draw_wish(self._chance, number=self._next_number, may_ask=may_ask, files=files)
        return wish.to_text(), self.draw_model()

    async def attach(self, text: str) -> inputs.Content:
        """The message with its files, which are uploaded now."""
        wish = Wish.parse(text)
        if wish is None or not wish.files:
            return text
        uploaded = await self._uploader.upload(list_files(wish))
        return [Text(text), *(File(file_id=file_id) for file_id in uploaded)]

    def draw_model(self) -> str | None:
        """One of the models, or none: then it is up to the chat or to the message."""
        return self._chance.choice(self._models) if self._models and self._chance.random() < _OWN_MODEL else None

    async def send(self, chat_id: str, log: UserLog, if_busy: inputs.IfBusy, *, may_ask: bool = True) -> Accepted:
        text, model = self.draw(may_ask=may_ask)
        message = inputs.NewMessage(content=inputs.to_blocks(await self.attach(text)), if_busy=if_busy, model=model)
        accepted = await self._client.send(chat_id, message)
        self.note(log, text, model)
        return accepted

    def note(self, log: UserLog, text: str, model: str | None) -> None:
        """Note that a message was accepted. Without a model of its own it has the chat's."""
        log.sent.append(text)
        chosen = model or self.default_model
        if chosen is not None:
            log.models[text] = name_model(chosen)


def name_model(name: str) -> str:
    """The model's own name, as replies have it: of "anthropic:proof@http://…", "proof"."""
    return name.partition(":")[2].partition("@")[0] or name


# --- actions ---


ActionName = Literal["stop", "interrupt", "steer", "promote", "edit", "regenerate", "branch", "fork", "resume"]
MEANWHILE: Final[tuple[ActionName, ...]] = ("stop", "interrupt", "steer", "promote", "edit", "regenerate")
AT_REST: Final[tuple[ActionName, ...]] = ("branch", "fork", "resume", "edit", "regenerate")
_NEAR: Final = 8
"""How far back a user usually looks for something to edit or to regenerate."""

_FORKS_AT_MOST: Final = 8
_STOPPED_AGAIN: Final = 0.5


class UserActions:
    """The actions of one user in one chat."""

    def __init__(
        self,
        client: RemoteService,
        chance: random.Random,
        sender: MessageSender,
        user: SimulatedUser,
        reader: SimulatedReader,
    ) -> None:
        self._client = client
        self._chance = chance
        self._sender = sender
        self._user = user
        self._reader = reader
        self._actions: dict[ActionName, Callable[[], Awaitable[None]]] = {
            "stop": lambda: user.stop(reader),
            "interrupt": self._interrupt,
            "steer": lambda: self.send("steer"),
            "promote": self._promote,
            "edit": self._edit,
            "regenerate": self._regenerate,
            "branch": self._branch,
            "fork": self._fork,
            "resume": self._resume,
        }

    @property
    def _log(self) -> UserLog:
        return self._user.log

    async def perform(self, action: ActionName) -> None:
        self._log.count(action)
        await self._actions[action]()

    async def send(self, if_busy: inputs.IfBusy) -> None:
        await self._sender.send(self._user.chat_id, self._log, if_busy)

    async def listen(self, *, rows: int) -> None:
        """To so much more, or until nothing runs, or it waits for its client."""
        enough = self._reader.transcript.rows + rows
        facts = len(self._reader.transcript.facts)
        if await self._client.get_status(self._user.chat_id) == "idle":
            return
        await self._reader.wait_until(
            lambda seen: seen.rows >= enough or (len(seen.facts) > facts and seen.status != "running")
        )

    async def wait_for_rest(self) -> None:
        """Until nothing runs and the reader has seen all of it."""
        while True:
            facts = len(self._reader.transcript.facts)
            now = await self._client.get_chat(self._user.chat_id)
            cursor = now.cursor if now.status in ("idle", "error") else None
            await self._reader.wait_until(lambda seen: seen.cursor == cursor or len(seen.facts) > facts)  # noqa: B023
            if self._reader.transcript.cursor == cursor:
                return

    # --- while a reply runs ---

    async def _interrupt(self) -> None:
        self._log.stops += 1
        await self.send("interrupt")

    async def _promote(self) -> None:
        await self.send("queue")
        queued = (await self._client.list_queue(self._user.chat_id)).items
        if not queued:
            return
        self._log.stops += 1
        try:
            await self._client.promote_queued(self._user.chat_id, self._chance.choice(queued).id)
        except (NotAllowed, NotFound):
            self._log.stops -= 1  # its turn came first

    async def _edit(self) -> None:
        target = self._choose("user")
        text, model = self._sender.draw(may_ask=True)
        if target is None:
            return
        self._log.edits += 1
        message = inputs.EditedMessage(content=inputs.to_blocks(await self._sender.attach(text)), model=model)
        await self._client.edit(self._user.chat_id, target.id, message)
        self._sender.note(self._log, text, model)
        if model is None and target.text in self._log.models:
            self._log.models[text] = self._log.models[target.text]

    async def _regenerate(self) -> None:
        target = self._choose("user", "assistant")
        if target is None:
            return
        self._log.edits += 1
        self._log.again += 1
        model = self._sender.draw_model()
        accepted = await self._client.regenerate(self._user.chat_id, target.id, inputs.TurnRequest(model=model))
        self._note_model(accepted, model)

    # --- at rest ---

    async def _branch(self) -> None:
        target = self._choose("user", "assistant", "tool", "notice", near=False)
        if target is not None:
            place = inputs.BranchTarget(message_id=target.id, exact=self._chance.random() < 0.5)
            await self._client.switch_branch(self._user.chat_id, place)

    async def _fork(self) -> None:
        """Fork somewhere, and ask something there."""
        target = self._choose("user", "assistant", "tool", "notice", near=False)
        if target is None or len(self._user.forks) >= _FORKS_AT_MOST:
            return
        forked = await self._client.fork_chat(self._user.chat_id, inputs.Fork(message_id=target.id))
        log = UserLog()
        self._user.forks[forked.id] = log
        path = [message for message in self._reader.transcript.list_ancestors(target.id) if message.role == "user"]
        log.sent += [message.text for message in path]
        await self._sender.send(forked.id, log, "queue", may_ask=False)

    async def _resume(self) -> None:
        """Continue a stopped reply, or retry one of which nothing was said; and sometimes stop that at once."""
        path = self._reader.transcript.list_ancestors(self._reader.transcript.head)
        last = next((message for message in path if message.role != "notice"), None)
        if last is None or not (last.role == "user" or (last.role == "assistant" and last.partial)):
            return
        self._log.again += 1
        model = self._sender.draw_model()
        resume = self._client.retry if last.role == "user" else self._client.continue_
        accepted = await resume(self._user.chat_id, inputs.TurnRequest(model=model))
        self._note_model(accepted, model)
        if self._chance.random() < _STOPPED_AGAIN:
            self._log.stops += 1
            await self._client.interrupt(self._user.chat_id, inputs.Interruption(turn=accepted.turn))

    def _note_model(self, accepted: Accepted, model: str | None) -> None:
        if model is not None and accepted.turn is not None:
            self._log.turn_models[accepted.turn] = name_model(model)

    def _choose(self, *roles: str, near: bool = True) -> SeenMessage | None:
        """A message that the reader has seen: one of the last, or of the whole tree."""
        seen = self._reader.transcript
        is_near = near or self._chance.random() < 0.5
        messages = list(seen.list_ancestors(seen.head))[:_NEAR] if is_near else list(seen.tree.values())
        found = [message for message in messages if message.role in roles]
        return self._chance.choice(found) if found else None


# --- the user ---


ACTIONS: Final[tuple[ActionName, ...]] = (*MEANWHILE, *AT_REST)


class SimulatedUser:
    """The user of one chat. `log` is what the server accepted, `forks` the chats that it forked from this one."""

    def __init__(
        self,
        client: RemoteService,
        *,
        number: int,
        seed: int,
        models: Sequence[str],
        phrases: Sequence[str] | None,
        actions: Sequence[ActionName] = ACTIONS,
        rounds: int = 0,
        uploads: UploadLog | None = None,
    ) -> None:
        """`phrases`: what to send to a server with another model. `models`: those that it may choose from.

        `rounds`: at least so many, even if it is enough before. `uploads`: where all users note their uploads.
        """
        self.log = UserLog()
        self.faults: list[str] = []
        self.chat_id = ""
        self.forks: dict[str, UserLog] = {}
        self._client = client
        self._chance = random.Random(seed * 1000 + number)  # noqa: S311  (it only has to be reproducible)
        self.uploader = Uploader(client, uploads or UploadLog(), number=number, seed=seed)
        self.sender = MessageSender(
            client, self._chance, number=number, models=models, phrases=phrases, uploader=self.uploader
        )
        self._allowed = actions
        self._rounds = rounds

    async def begin(self) -> None:
        """Open the chat with a first message."""
        text, _ = self.sender.draw(may_ask=True)
        model = self.sender.default_model
        tools = inputs.declare_tools(CLIENT_TOOLS) if self.sender.knows_replies else None
        message = inputs.to_blocks(await self.sender.attach(text))
        created = await self._client.create_chat(
            inputs.CreateChat(message=message, model=model, title="Proof", tools=tools)
        )
        self.chat_id = created.id
        self.sender.note(self.log, text, model)

    async def chat(self, reader: SimulatedReader, enough: asyncio.Event) -> None:
        """Send until it is enough and every message is answered."""
        actions = UserActions(self._client, self._chance, self.sender, self, reader)
        try:
            while self._rounds > 0 or not enough.is_set():
                self._rounds -= 1
                await self._run_round(actions)
            await actions.wait_for_rest()
        except IndelibleError as error:
            self.faults.append(f"a request of a user was refused: {error}")

    async def _run_round(self, actions: UserActions) -> None:
        chance = self._chance
        await actions.send("queue")
        if chance.random() < 0.3:
            await actions.send("queue")
        meanwhile = [action for action in MEANWHILE if action in self._allowed]
        if meanwhile and chance.random() < 0.6:
            await actions.listen(rows=chance.randint(0, 12))
            await actions.perform(chance.choice(meanwhile))
        await actions.wait_for_rest()
        at_rest = [action for action in AT_REST if action in self._allowed]
        if at_rest and chance.random() < 0.5:
            await actions.perform(chance.choice(at_rest))
            await actions.wait_for_rest()

    async def stop(self, reader: SimulatedReader) -> None:
        """Stop the reply that this user sees running. If it has ended meanwhile, nothing happens."""
        turn_id = reader.transcript.turn_id
        if turn_id is not None:
            self.log.stops += 1
            await self._client.interrupt(self.chat_id, inputs.Interruption(turn=turn_id))
