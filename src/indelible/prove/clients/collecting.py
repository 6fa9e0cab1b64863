"""Collecting the evidence about a chat at rest: what a newcomer reads, and what the server shows of every branch.

The totals of a chat may still grow when it is at rest: a worker that was paused while its reply was stopped knows what
the reply used, and adds it late. Totals never shrink, so a reading between two equal totals belongs to them.

Evidence is the JSON that the server sent, not what the client's types would make of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from indelible.client.remote import RemoteService
from indelible.prove.checks.evidence import BranchVisit, Deeds, Evidence
from indelible.prove.clients.reader import SimulatedReader
from indelible.service.protocol import MAX_PAGE

_BRANCHES_AT_MOST: Final = 60
_REST_POLL_S: Final = 0.1


async def collect_evidence(
    client: RemoteService, chat_id: str, deeds: Deeds, readers: Sequence[SimulatedReader], *, at_most_s: float
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
        deeds=deeds,
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
        await client.switch_branch(evidence.chat_id, end_id)
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
        return  # what they have not seen by now is a fault; checks/feed.py finds it
