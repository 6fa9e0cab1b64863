"""What a user does besides sending: steer, promote, stop, edit, regenerate, go to other branches, fork, resume.

Some actions are for while a reply runs, some for a chat at rest. A refusal is a fault, except where another event may
have come first: the queue may be empty by the time that one of its messages is promoted.

Everything is decided from what the user's own reader has seen, as people do.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Literal

from indelible.api.shapes import Accepted
from indelible.client.remote import RemoteService
from indelible.errors import NotAllowed, NotFound
from indelible.prove.checks.evidence import Deeds
from indelible.prove.clients.reader import SimulatedReader
from indelible.prove.clients.sending import MessageSender, name_model
from indelible.prove.clients.transcript import SeenMessage
from indelible.service.inputs import IfBusy

if TYPE_CHECKING:
    from indelible.prove.clients.user import SimulatedUser

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
    def _deeds(self) -> Deeds:
        return self._user.deeds

    async def perform(self, action: ActionName) -> None:
        self._deeds.count(action)
        await self._actions[action]()

    async def send(self, if_busy: IfBusy) -> None:
        await self._sender.send(self._user.chat_id, self._deeds, if_busy)

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
        self._deeds.stops += 1
        await self.send("interrupt")

    async def _promote(self) -> None:
        await self.send("queue")
        queued = (await self._client.list_queue(self._user.chat_id)).items
        if not queued:
            return
        self._deeds.stops += 1
        try:
            await self._client.promote_queued(self._user.chat_id, self._chance.choice(queued).id)
        except (NotAllowed, NotFound):
            self._deeds.stops -= 1  # its turn came first

    async def _edit(self) -> None:
        target = self._choose("user")
        text, model = self._sender.draw(may_ask=True)
        if target is None:
            return
        self._deeds.edits += 1
        content = await self._sender.attach(text)
        await self._client.edit(self._user.chat_id, target.id, content, model=model)
        self._sender.note(self._deeds, text, model)
        if model is None and target.text in self._deeds.models:
            self._deeds.models[text] = self._deeds.models[target.text]

    async def _regenerate(self) -> None:
        target = self._choose("user", "assistant")
        if target is None:
            return
        self._deeds.edits += 1
        self._deeds.again += 1
        model = self._sender.draw_model()
        accepted = await self._client.regenerate(self._user.chat_id, target.id, model=model)
        self._note_model(accepted, model)

    # --- at rest ---

    async def _branch(self) -> None:
        target = self._choose("user", "assistant", "tool", "notice", near=False)
        if target is not None:
            await self._client.switch_branch(self._user.chat_id, target.id, exact=self._chance.random() < 0.5)

    async def _fork(self) -> None:
        """Fork somewhere, and ask something there."""
        target = self._choose("user", "assistant", "tool", "notice", near=False)
        if target is None or len(self._user.forks) >= _FORKS_AT_MOST:
            return
        forked = await self._client.fork_chat(self._user.chat_id, target.id)
        deeds = Deeds()
        self._user.forks[forked.id] = deeds
        path = [message for message in self._reader.transcript.list_ancestors(target.id) if message.role == "user"]
        deeds.sent += [message.text for message in path]
        await self._sender.send(forked.id, deeds, "queue", may_ask=False)

    async def _resume(self) -> None:
        """Continue a stopped reply, or retry one of which nothing was said; and sometimes stop that at once."""
        path = self._reader.transcript.list_ancestors(self._reader.transcript.head)
        last = next((message for message in path if message.role != "notice"), None)
        if last is None or not (last.role == "user" or (last.role == "assistant" and last.partial)):
            return
        self._deeds.again += 1
        model = self._sender.draw_model()
        resume = self._client.retry if last.role == "user" else self._client.continue_
        accepted = await resume(self._user.chat_id, model=model)
        self._note_model(accepted, model)
        if self._chance.random() < _STOPPED_AGAIN:
            self._deeds.stops += 1
            await self._client.interrupt(self._user.chat_id, turn=accepted.turn)

    def _note_model(self, accepted: Accepted, model: str | None) -> None:
        if model is not None and accepted.turn is not None:
            self._deeds.turn_models[accepted.turn] = name_model(model)

    def _choose(self, *roles: str, near: bool = True) -> SeenMessage | None:
        """A message that the reader has seen: one of the last, or of the whole tree."""
        seen = self._reader.transcript
        is_near = near or self._chance.random() < 0.5
        messages = list(seen.list_ancestors(seen.head))[:_NEAR] if is_near else list(seen.tree.values())
        found = [message for message in messages if message.role in roles]
        return self._chance.choice(found) if found else None
