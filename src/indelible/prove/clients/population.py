"""The clients of the servers during a proof: for every chat a user and two readers.

With two servers each reader stays with one of them, and the user with either, so everything is seen from both sides.
With one server the second reader is restless: it disconnects and reconnects again and again. Each has its own client.

At the end all wait for the last reply, and a new reader reads everything from the beginning. The result is the evidence
for checker.py.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from indelible.client.wire import WireClient
from indelible.errors import IndelibleError
from indelible.prove.checker import Evidence, Fault
from indelible.prove.clients.reader import SimulatedReader
from indelible.prove.clients.user import SimulatedUser

_RESTLESS_AFTER: Final = 7
_PATIENCE_S: Final = 60.0
_REPLAY_S: Final = 10.0
_ONCE_BROKEN_S: Final = 3.0


class Member:
    """One chat with its user and readers."""

    def __init__(self, user: SimulatedUser, clients: Sequence[WireClient]) -> None:
        self.user = user
        self.readers: list[SimulatedReader] = []
        self._clients = clients

    async def begin(self) -> None:
        await self.user.begin()
        restless_after = _RESTLESS_AFTER if len(self._clients) == 1 else None
        self.readers = [
            SimulatedReader(self._clients[0], self.user.chat_id),
            SimulatedReader(self._clients[-1], self.user.chat_id, restless_after=restless_after),
        ]

    @property
    def faults(self) -> list[str]:
        return [*self.user.faults, *(fault for reader in self.readers for fault in reader.transcript.faults)]

    @property
    def has_failed(self) -> bool:
        return any(reader.transcript.status == "error" for reader in self.readers)

    async def delete_chat(self) -> None:
        await self._clients[-1].delete_chat(self.user.chat_id)

    async def collect_evidence(self, *, at_most_s: float) -> Evidence:
        """The evidence, once all readers have seen everything, or it is clear that one will not."""
        client, chat_id = self._clients[-1], self.user.chat_id
        snapshot = await client.get_chat(chat_id)
        newcomer = SimulatedReader(client, chat_id)
        everybody = [*self.readers, newcomer]
        reading = asyncio.create_task(newcomer.read())
        try:
            has_all = [
                reader.wait_until(lambda transcript: transcript.cursor == snapshot["cursor"]) for reader in everybody
            ]
            await _wait_for_all(has_all, at_most_s=at_most_s)
        finally:
            reading.cancel()
            await asyncio.wait([reading])
        return Evidence(
            chat_id=chat_id,
            sent=self.user.sent,
            stops=self.user.stops,
            live=[reader.transcript for reader in self.readers],
            stored=newcomer.transcript,
            messages=await client.read_all_messages(chat_id),
            snapshot=snapshot,
        )


class Population:
    """All users and readers. They send and read while `gather_population` lasts."""

    def __init__(self, members: Sequence[Member], *, seed: int) -> None:
        self.members = members
        self._enough = asyncio.Event()
        self._waited_in_vain = False
        self._reading = [asyncio.create_task(reader.read()) for one in members for reader in one.readers]
        self._chatting = [asyncio.create_task(one.user.chat(one.readers[0], self._enough)) for one in members]
        self._chance = random.Random(seed)  # noqa: S311  (it only has to be reproducible)

    @property
    def is_disappointed(self) -> bool:
        """Whether a promise is known to be broken already: a wrong event, a failed reply, or a wait without an end."""
        return self._waited_in_vain or any(member.faults or member.has_failed for member in self.members)

    async def stop_a_reply(self) -> None:
        """Have a user with a running reply stop it."""
        busy = [member for member in self.members if member.readers[0].transcript.turn_id is not None]
        if busy:
            member = self._chance.choice(busy)
            await member.user.stop(member.readers[0])

    async def come_to_rest(self, *, at_most_s: float) -> None:
        """Send no more, and wait for the last reply. A reply that has not arrived by then is a fault."""
        self._enough.set()
        timeout_s = _ONCE_BROKEN_S if self.is_disappointed else at_most_s
        _, waiting = await asyncio.wait(self._chatting, timeout=timeout_s)
        self._waited_in_vain = bool(waiting)

    async def collect_evidence(self) -> tuple[list[Evidence], list[Fault]]:
        """The evidence, and faults that are not in it."""
        faults = [Fault(fault, one.user.chat_id) for one in self.members for fault in one.user.faults]
        at_most_s = _ONCE_BROKEN_S if self.is_disappointed else _REPLAY_S
        collecting = [member.collect_evidence(at_most_s=at_most_s) for member in self.members]
        collected = await asyncio.gather(*collecting, return_exceptions=True)
        for member, answer in zip(self.members, collected, strict=True):
            if isinstance(answer, IndelibleError):
                faults.append(Fault(f"the stored chat cannot be read: {answer}", member.user.chat_id))
            elif isinstance(answer, BaseException):
                raise answer
        return [answer for answer in collected if isinstance(answer, Evidence)], faults

    async def delete_chats(self) -> None:
        for member in self.members:
            await member.delete_chat()

    async def leave(self) -> None:
        """Stop all users and readers. An error of their own, not of a server, is raised here."""
        everybody = (*self._chatting, *self._reading)
        for task in everybody:
            task.cancel()
        await asyncio.wait(everybody)
        for task in everybody:
            if not task.cancelled():
                task.result()


@asynccontextmanager
async def gather_population(
    urls: Sequence[str],
    *,
    chats: int,
    seed: int,
    models: Sequence[str | None] = (None,),
    phrases: Sequence[str] | None = None,
    token: str | None = None,
) -> AsyncIterator[Population]:
    """Open the chats, with each of the models in turn, and start all users and readers; stop them at the end."""
    async with AsyncExitStack() as stack:
        members: list[Member] = []
        for number in range(1, chats + 1):
            own = [WireClient(url, token=token, retry_for_s=_PATIENCE_S) for url in urls]
            clients = [await stack.enter_async_context(client) for client in own]
            client, model = clients[number % len(clients)], models[number % len(models)]
            user = SimulatedUser(client, number=number, seed=seed, model=model, phrases=phrases)
            members.append(Member(user, clients))
            await members[-1].begin()
        population = Population(members, seed=seed)
        stack.push_async_callback(population.leave)
        yield population


async def _wait_for_all(waiting: Sequence[Awaitable[None]], *, at_most_s: float) -> None:
    try:
        async with asyncio.timeout(at_most_s):
            await asyncio.gather(*waiting)
    except TimeoutError:
        return  # what they have not seen by now is a fault; the checker finds it
