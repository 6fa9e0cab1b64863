"""The clients of the servers during a proof: for every chat a user, two readers, and one that runs the client's tools.

With two servers each reader stays with one of them, and the user with either, so everything is seen from both sides.
With one server the second reader is restless: it disconnects and reconnects again and again. Each has its own client.

The client of a chat's tools answers the calls that a reply waits for: once, twice at the same time, or too late (after
a stop, and again while a later reply waits for calls with the same ids). Of two that are submitted at the same time
exactly one is accepted, and of those that come too late none.

At the end all wait for the last reply, a new reader reads everything from the beginning, and the evidence is collected:
the JSON that the server sent, not what the client's types would make of it. The totals of a chat may still grow when it
is at rest: a worker that was paused while its reply was stopped adds late what it used. Totals never shrink, so a
reading between two equal totals belongs to them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from msgspec.structs import replace

from indelible.api.inputs import BranchTarget, Interruption, ToolResultsRequest, to_results
from indelible.api.operations import MAX_PAGE
from indelible.client.client import RemoteService
from indelible.client.http_transport import HttpTransport
from indelible.content import ToolResult
from indelible.errors import IndelibleError, Invalid, NotAllowed
from indelible.prove.evidence import BranchVisit, Evidence, Fault, UploadLog, UserLog
from indelible.prove.model import read_note
from indelible.prove.reader import SimulatedReader
from indelible.prove.user import ACTIONS, ActionName, SimulatedUser, delete_files, upload_unused

_TWICE: Final = 0.3
_LATE: Final = 0.2
Results = list[ToolResult]


class ToolClient:
    """`submitted` and its like are in the user's log."""

    def __init__(self, client: RemoteService, user: SimulatedUser, reader: SimulatedReader, *, seed: int) -> None:
        self._client = client
        self._user = user
        self._reader = reader
        self._chance = random.Random(seed)  # noqa: S311  (it only has to be reproducible)
        self._late: tuple[str, Results] | None = None
        self._seen: set[str] = set()

    async def run(self) -> None:
        """Answer every call, without end."""
        try:
            while True:
                await self._reader.wait_until(lambda seen: self._find_new(seen.action) is not None)
                action = self._reader.transcript.action
                if self._find_new(action) is not None:
                    await self.answer(action or {})
        except IndelibleError as error:
            self._user.faults.append(f"a client tool was refused: {error}")

    def _find_new(self, action: dict[str, Any] | None) -> list[str] | None:
        """The notes of the calls, if they were not answered yet."""
        notes = [] if action is None else [read_note(call["arguments"]) for call in action["calls"]]
        return notes if notes and not self._seen.issuperset(notes) else None

    async def answer(self, action: dict[str, Any]) -> None:
        """Answer the calls that a reply waits for, in one way or another."""
        turn_id = action["turn"]
        notes = [read_note(call["arguments"]) for call in action["calls"]]
        self._seen.update(notes)
        results = [
            ToolResult(call["id"], call["name"], output=f"answer {note}")
            for call, note in zip(action["calls"], notes, strict=True)
        ]
        await self._try_late_results()
        drawn = self._chance.random()
        if drawn < _LATE:
            await self._stop_first(turn_id, results)
            return
        times = 2 if drawn < _LATE + _TWICE else 1
        submits = [self._submit(turn_id, results) for _ in range(times)]
        accepted = sum(await asyncio.gather(*submits))
        if accepted > 1:
            self._user.faults.append(f"the results of {turn_id} were accepted {accepted} times")
        if accepted:
            self._user.log.submitted.setdefault(turn_id, []).extend(notes)

    async def _stop_first(self, turn_id: str, results: Results) -> None:
        self._user.log.stops += 1
        self._user.log.count("stop while waiting")
        await self._client.interrupt(self._user.chat_id, Interruption(turn=turn_id, wait_s=10))
        self._late = (turn_id, results)
        await self._try_late_results()
        self._late = (turn_id, results)

    async def _try_late_results(self) -> None:
        """Submit the results of a reply that was stopped. Nobody may accept them."""
        late, self._late = self._late, None
        if late is not None:
            self._user.log.count("late results")
            if await self._submit(*late):
                self._user.faults.append(f"the results of {late[0]} were accepted after it had ended")

    async def _submit(self, turn_id: str, results: Results) -> bool:
        self._user.log.count("client results")
        try:
            body = ToolResultsRequest(results=to_results(results), turn=turn_id)
            await self._client.submit_tool_results(self._user.chat_id, body)
        except (NotAllowed, Invalid):
            return False
        return True


# --- collecting ---


_BRANCHES_AT_MOST: Final = 60
_REST_POLL_S: Final = 0.1


async def collect_evidence(
    client: RemoteService, chat_id: str, log: UserLog, readers: Sequence[SimulatedReader], *, at_most_s: float
) -> Evidence:
    snapshot = await _wait_for_rest(client, chat_id, at_most_s=at_most_s)
    while True:
        newcomer = SimulatedReader(client, chat_id)
        await _read_all([*readers, newcomer], newcomer, snapshot["cursor"], at_most_s=at_most_s)
        before, snapshot = snapshot, await _read_chat(client, chat_id)
        if snapshot["usage"] == before["usage"]:
            break
    return Evidence(
        chat_id=chat_id,
        log=log,
        live=[reader.transcript for reader in readers],
        stored=newcomer.transcript,
        messages=await _read_messages(client, chat_id),
        snapshot=snapshot,
        tree=await client.http.read(dict, f"/chats/{chat_id}/tree"),
    )


async def visit_branches(client: RemoteService, evidence: Evidence) -> list[BranchVisit]:
    """Go to the end of every branch, or of the newest ones, and read the conversation there."""
    tree = evidence.stored.tree
    inner = {message.parent_id for message in tree.values()}
    ends = [message_id for message_id in tree if message_id not in inner][-_BRANCHES_AT_MOST:]
    if evidence.snapshot["status"] != "idle" or len(ends) < 2:
        return []
    visits = []
    for end_id in ends:
        await client.switch_branch(evidence.chat_id, BranchTarget(message_id=end_id))
        visits.append(BranchVisit(end_id, await _read_messages(client, evidence.chat_id)))
    return visits


async def _wait_for_rest(client: RemoteService, chat_id: str, *, at_most_s: float) -> dict[str, Any]:
    """A fork has no reader who would notice that its last reply has ended."""
    ends_s = asyncio.get_running_loop().time() + at_most_s
    while True:
        snapshot = await _read_chat(client, chat_id)
        if snapshot["status"] in ("idle", "error") or asyncio.get_running_loop().time() > ends_s:
            return snapshot
        await asyncio.sleep(_REST_POLL_S)


async def _read_chat(client: RemoteService, chat_id: str) -> dict[str, Any]:
    return await client.http.read(dict, f"/chats/{chat_id}")


async def _read_messages(client: RemoteService, chat_id: str) -> list[dict[str, Any]]:
    """The whole active branch, oldest first."""
    found: list[dict[str, Any]] = []
    before: str | None = None
    while True:
        page = await client.http.read(dict, f"/chats/{chat_id}/messages", {"before": before, "limit": MAX_PAGE})
        found[:0] = page["items"]
        before = page["next"]
        if before is None:
            return found


async def _read_all(
    readers: Sequence[SimulatedReader], newcomer: SimulatedReader, cursor: str, *, at_most_s: float
) -> None:
    reading = asyncio.create_task(newcomer.read())
    try:
        await _wait_for_all(
            [reader.wait_until(lambda seen: seen.cursor == cursor) for reader in readers], at_most_s=at_most_s
        )
    finally:
        reading.cancel()
        await asyncio.wait([reading])


async def _wait_for_all(waiting: Sequence[Awaitable[None]], *, at_most_s: float) -> None:
    try:
        async with asyncio.timeout(at_most_s):
            await asyncio.gather(*waiting)
    except TimeoutError:
        return  # what they have not seen by now is a fault; checks.py finds it


# --- all clients ---


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
    def chats(self) -> dict[str, UserLog]:
        """Its chat and the forks of it, with what the user did there."""
        return {self.user.chat_id: self.user.log, **self.user.forks}

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
            await collect_evidence(self.client, chat_id, log, readers, at_most_s=at_most_s)
            for chat_id, log in self.chats.items()
            for readers in [self.readers if chat_id == self.user.chat_id else []]
        ]


class Population:
    """All users and readers. They send and read while `gather_population` lasts."""

    def __init__(self, members: Sequence[Member], uploads: UploadLog, *, seed: int) -> None:
        self.members = members
        self.uploads = uploads
        self._enough = asyncio.Event()
        self._timed_out = False
        self._reading = [asyncio.create_task(reader.read()) for one in members for reader in one.readers]
        self._reading += [asyncio.create_task(one.make_tool_client().run()) for one in members]
        self._chatting = [asyncio.create_task(one.user.chat(one.readers[0], self._enough)) for one in members]
        self._chance = random.Random(seed)  # noqa: S311  (it only has to be reproducible)

    @property
    def has_broken_promise(self) -> bool:
        """Whether a promise is known to be broken already: a wrong event, a failed reply, or a wait without an end."""
        return self._timed_out or any(member.faults or member.has_failed for member in self.members)

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
        timeout_s = _ONCE_BROKEN_S if self.has_broken_promise else at_most_s
        _, waiting = await asyncio.wait(self._chatting, timeout=timeout_s)
        self._timed_out = bool(waiting)

    async def collect_evidence(self, *, at_most_s: float) -> tuple[list[Evidence], list[Fault]]:
        """The evidence, and faults that are not in it. Readers have this long to see the end of their chats."""
        faults = [Fault(fault, one.user.chat_id) for one in self.members for fault in one.user.faults]
        limit_s = min(at_most_s, _ONCE_BROKEN_S) if self.has_broken_promise else at_most_s
        collecting = [member.collect_evidence(at_most_s=limit_s) for member in self.members]
        collected = await asyncio.gather(*collecting, return_exceptions=True)
        for member, answer in zip(self.members, collected, strict=True):
            if isinstance(answer, IndelibleError):
                faults.append(Fault(f"the stored chat cannot be read: {answer}", member.user.chat_id))
            elif isinstance(answer, BaseException):
                raise answer
        evidence = [one for answer in collected if not isinstance(answer, BaseException) for one in answer]
        return evidence, faults

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
    actions: Sequence[ActionName] = ACTIONS,
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
                actions=actions,
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
