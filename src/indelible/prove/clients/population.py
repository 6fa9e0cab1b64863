"""The clients of the servers during a proof: for every chat a user and two readers.

With two servers each reader stays with one of them, and the user with either, so everything is seen from both sides.
With one server the second reader is restless: it disconnects and reconnects again and again. Each has its own client.

At the end all wait for the last reply, and a new reader reads everything from the beginning (collecting.py). The result
is the evidence for checks/.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from msgspec.structs import replace

from indelible.client.http_transport import HttpTransport
from indelible.client.remote import RemoteService
from indelible.errors import IndelibleError
from indelible.prove.checks.evidence import Deeds, Evidence, Fault, StoredCopy, UploadLog
from indelible.prove.clients.actions import ActionName
from indelible.prove.clients.collecting import collect_evidence, visit_branches
from indelible.prove.clients.reader import SimulatedReader
from indelible.prove.clients.tool_client import ToolClient
from indelible.prove.clients.uploads import delete_files, load_copies, upload_unused
from indelible.prove.clients.user import HABITS, SimulatedUser

_RESTLESS_AFTER: Final = 7
_TIMEOUT_S: Final = 300.0
_ONCE_BROKEN_S: Final = 3.0


class Member:
    """One chat with its user and readers."""

    def __init__(self, user: SimulatedUser, clients: Sequence[RemoteService], *, seed: int) -> None:
        self.user = user
        self.readers: list[SimulatedReader] = []
        self._clients = clients
        self._seed = seed

    async def begin(self) -> None:
        await self.user.begin()
        restless_after = _RESTLESS_AFTER if len(self._clients) == 1 else None
        self.readers = [
            SimulatedReader(self._clients[0], self.user.chat_id),
            SimulatedReader(self._clients[-1], self.user.chat_id, restless_after=restless_after),
        ]

    @property
    def client(self) -> RemoteService:
        return self._clients[-1]

    @property
    def chats(self) -> dict[str, Deeds]:
        """Its chat and the forks of it, with what the user did there."""
        return {self.user.chat_id: self.user.deeds, **self.user.forks}

    def make_tool_client(self) -> ToolClient:
        return ToolClient(self._clients[0], self.user, self.readers[0], seed=self._seed)

    @property
    def faults(self) -> list[str]:
        return [*self.user.faults, *(fault for reader in self.readers for fault in reader.transcript.faults)]

    @property
    def has_failed(self) -> bool:
        return any(reader.transcript.status == "error" for reader in self.readers)

    async def upload_unused(self, log: UploadLog) -> None:
        await upload_unused(self._clients, log)

    async def delete_chats(self) -> None:
        for chat_id in self.chats:
            await self.client.delete_chat(chat_id)

    async def collect_evidence(self, *, at_most_s: float) -> list[Evidence]:
        """The evidence about its chats, once all readers have seen everything, or it is clear that one will not."""
        return [
            await collect_evidence(self.client, chat_id, deeds, readers, at_most_s=at_most_s)
            for chat_id, deeds in self.chats.items()
            for readers in [self.readers if chat_id == self.user.chat_id else []]
        ]


class Population:
    """All users and readers. They send and read while `gather_population` lasts."""

    def __init__(self, members: Sequence[Member], uploads: UploadLog, *, seed: int) -> None:
        self.members = members
        self.uploads = uploads
        self._enough = asyncio.Event()
        self._waited_in_vain = False
        self._reading = [asyncio.create_task(reader.read()) for one in members for reader in one.readers]
        self._reading += [asyncio.create_task(one.make_tool_client().run()) for one in members]
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

    async def upload_a_file(self) -> None:
        """Have a user upload a file that no message will use."""
        await self._chance.choice(self.members).upload_unused(self.uploads)

    async def come_to_rest(self, *, at_most_s: float) -> None:
        """Send no more, and wait for the last reply. A reply that has not arrived by then is a fault."""
        self._enough.set()
        timeout_s = _ONCE_BROKEN_S if self.is_disappointed else at_most_s
        _, waiting = await asyncio.wait(self._chatting, timeout=timeout_s)
        self._waited_in_vain = bool(waiting)

    async def collect_evidence(self, *, at_most_s: float) -> tuple[list[Evidence], list[Fault]]:
        """The evidence, and faults that are not in it. Readers have this long to see the end of their chats."""
        faults = [Fault(fault, one.user.chat_id) for one in self.members for fault in one.user.faults]
        limit_s = min(at_most_s, _ONCE_BROKEN_S) if self.is_disappointed else at_most_s
        collecting = [member.collect_evidence(at_most_s=limit_s) for member in self.members]
        collected = await asyncio.gather(*collecting, return_exceptions=True)
        for member, answer in zip(self.members, collected, strict=True):
            if isinstance(answer, IndelibleError):
                faults.append(Fault(f"the stored chat cannot be read: {answer}", member.user.chat_id))
            elif isinstance(answer, BaseException):
                raise answer
        evidence = [one for answer in collected if not isinstance(answer, BaseException) for one in answer]
        return evidence, faults

    async def load_copies(self) -> list[StoredCopy]:
        """Every file of the users, as the server has it now."""
        return await load_copies(self.members[0].client)

    async def visit_branches(self, evidence: Sequence[Evidence]) -> list[Evidence]:
        """The same, with what every branch shows. The readers are gone by then: they would be told of each visit."""
        await _cancel(self._reading)
        client_of = {chat_id: member.client for member in self.members for chat_id in member.chats}
        return [replace(one, branches=await visit_branches(client_of[one.chat_id], one)) for one in evidence]

    async def delete_chats(self, unused_files: Sequence[str] = ()) -> None:
        """Delete everything that the users have made: their chats, with the files of these, and the other files."""
        for member in self.members:
            await member.delete_chats()
        await delete_files(self.members[0].client, unused_files)

    async def leave(self) -> None:
        """Stop all users and readers. An error of their own, not of a server, is raised here."""
        await _cancel([*self._chatting, *self._reading])


@asynccontextmanager
async def gather_population(
    urls: Sequence[str],
    *,
    chats: int,
    seed: int,
    models: Sequence[str] = (),
    phrases: Sequence[str] | None = None,
    token: str | None = None,
    habits: Sequence[ActionName] = HABITS,
    rounds: int = 0,
) -> AsyncIterator[Population]:
    """Open the chats, with each of the models in turn, and start all users and readers; stop them at the end."""
    async with AsyncExitStack() as stack:
        members: list[Member] = []
        uploads = UploadLog()
        for number in range(1, chats + 1):
            own = [HttpTransport(url, token=token, retry_for_s=_TIMEOUT_S) for url in urls]
            clients = [RemoteService(await stack.enter_async_context(http)) for http in own]
            client = clients[number % len(clients)]
            user = SimulatedUser(
                client,
                number=number,
                seed=seed,
                models=models,
                phrases=phrases,
                habits=habits,
                rounds=rounds,
                uploads=uploads,
            )
            members.append(Member(user, clients, seed=seed * 1000 + number))
            await members[-1].begin()
        population = Population(members, uploads, seed=seed)
        stack.push_async_callback(population.leave)
        yield population


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """End these tasks. An error of their own is raised here."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
