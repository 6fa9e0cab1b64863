"""A proof from beginning to end: start servers and clients, kill servers, and check that nothing was lost.

The provider of the model is in this process, which is never killed; the servers are other processes and call it over
HTTP.

A given database must be empty, because the server of a proof would run every chat in it. After a proof that passes,
its chats are deleted; after one that fails, everything is kept for inspection.

`prove_server` does the same with a running server: it kills nothing, it cannot predict the replies, and it checks
everything else.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from indelible.client.client import Client
from indelible.errors import IndelibleError
from indelible.files.bytes import DATABASE, find_directory
from indelible.prove.checks import check_chat, check_effects, check_files
from indelible.prove.evidence import Evidence, Fault, find_left_files, find_row_faults, find_unused_files
from indelible.prove.faults import WAYS, FaultInjector, KillBudget, Way
from indelible.prove.population import Population, gather_population
from indelible.prove.provider import ProofProvider, check_outputs
from indelible.prove.redis import RedisServer
from indelible.prove.report import Report, count_actions, count_replies
from indelible.prove.script import find_reply
from indelible.prove.servers import Orders, run_servers
from indelible.prove.tools import SAFE_TOOLS, ToolRun, read_notebook
from indelible.prove.user import ACTIONS, ActionName, load_copies
from indelible.settings import Settings
from indelible.store.database.address import describe, parse_address
from indelible.store.database.migrate import migrate, open_database
from indelible.store.database.transaction import Database
from indelible.testing.invariants import find_faults, load_chat

SHORT_LEASES: Final = {"heartbeat_interval_s": 0.2, "lease_timeout_s": 0.8}
_PHRASES: Final = ("Tell me something.", "And then?", "Say it with other words.", "Roll a die.")
_TIMEOUT_S: Final = 60.0
_REPLAY_S: Final = 120.0
_ANYTHING: Final = "SELECT id FROM chats UNION ALL SELECT id FROM files WHERE state = 'ready' LIMIT 1"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do. The default database is a new SQLite file. `seconds` ends the killing earlier.

    `files`: where the servers store files, a value of that setting. `has_redis`: a Redis carries rows between
    the servers, and is killed too. `drain_s`: how long a server that gets SIGTERM lets
    its replies end. `actions`: what users do besides sending, and `rounds`: how often at least.
    `retry_for_s`: how long after the last kill, and after the leases that it left, a reply may take. `replay_s`: how
    long after that the readers may take to see the end of it.
    """

    seed: int
    database: str | None = None
    kills: int = 20
    chats: int = 6
    seconds: float | None = None
    short_leases: bool = False
    drain_s: float = 0.0
    files: str = DATABASE
    ways: tuple[Way, ...] = WAYS
    actions: tuple[ActionName, ...] = ACTIONS
    rounds: int = 0
    has_redis: bool = False
    prepare: Callable[[], None] | None = None
    retry_for_s: float = 120.0
    replay_s: float = _REPLAY_S

    @property
    def settings(self) -> dict[str, Any]:
        directory = find_directory(self.files)  # the servers have another working directory
        place = {} if self.files == DATABASE else {"files": f"directory:{directory}" if directory else self.files}
        return {"drain_s": self.drain_s, **place, **(SHORT_LEASES if self.short_leases else {})}

    @property
    def lease_timeout_s(self) -> float:
        default = Settings.model_fields["lease_timeout_s"].default
        return float(self.settings.get("lease_timeout_s", default))


class DatabaseNotEmpty(IndelibleError):
    """The database has chats, which the model of the proof would answer, or files, which it would find fault with."""


async def prove(plan: Plan, *, on_kill: Callable[[int], None] = lambda _: None) -> Report:
    """Kill servers while clients use them, and check that nothing was lost."""
    directory = Path(mkdtemp(prefix="indelible-proof-"))
    report: Report | None = None
    try:
        orders = _write_orders(plan, directory)
        report = await _run_plan(plan, orders, on_kill)
    finally:
        if report is None or report.is_proof:
            shutil.rmtree(directory, ignore_errors=True)
    if report.is_proof:
        return report
    return replace(report, database=describe(parse_address(orders.database)), kept_directory=directory)


def _write_orders(plan: Plan, directory: Path) -> Orders:
    address = parse_address(plan.database or directory / "chats.db")
    orders = Orders(database=str(plan.database), directory=directory, settings=plan.settings)
    if plan.prepare is not None:
        orders = replace(orders, prepare=plan.prepare)
    if address.is_sqlite:
        return replace(orders, database=str(address.path.resolve()))
    # Both servers need work, whichever claims chats first.
    return replace(orders, settings={**plan.settings, "worker_max_chats": plan.chats // 2 + 1})


async def _run_plan(plan: Plan, orders: Orders, on_kill: Callable[[int], None]) -> Report:
    alone = parse_address(orders.database).is_sqlite
    redis = RedisServer() if plan.has_redis else None
    if redis is not None:
        orders = replace(orders, settings={**orders.settings, "redis_url": redis.url})
    async with (
        nullcontext() if redis is None else redis.running(),
        _open(orders.database) as database,
        ProofProvider() as provider,
        run_servers(provider.instruct(orders), count=1 if alone else 2) as servers,
        gather_population(
            [server.url for server in servers],
            chats=plan.chats,
            seed=plan.seed,
            models=provider.models,
            actions=plan.actions,
            rounds=plan.rounds,
        ) as population,
    ):
        began_s = time.monotonic()
        injector = FaultInjector(
            servers,
            KillBudget(database),
            seed=plan.seed,
            ways=plan.ways,
            lease_timeout_s=plan.lease_timeout_s,
            drain_s=plan.drain_s,
            redis=redis,
            provoke={
                "during_stop": population.stop_a_reply,
                "before_file": population.upload_a_file,
                "after_file": population.upload_a_file,
            },
            on_kill=on_kill,
        )
        ends_s = math.inf if plan.seconds is None else began_s + plan.seconds
        await injector.kill(plan.kills, is_enough=lambda: population.has_broken_promise or time.monotonic() > ends_s)
        await population.come_to_rest(at_most_s=plan.retry_for_s + 2 * plan.lease_timeout_s)
        evidence, faults = await population.collect_evidence(at_most_s=plan.replay_s)
        evidence = [await _read_database(database, one) for one in evidence]
        evidence = await population.visit_branches(evidence)
        runs = read_notebook(orders.notebook)
        faults += [*check_effects(runs, evidence, safe=SAFE_TOOLS), *map(Fault, injector.faults)]
        faults += [*map(Fault, provider.prompts.faults), *_check_outputs(provider, runs, evidence)]
        faults += check_files(population.uploads, await load_copies(population.members[0].client), runs, evidence)
        faults += map(Fault, await find_row_faults(database, find_directory(plan.files)))
        counts: dict[str, Any] = {"kills": dict(injector.kills), "seconds": time.monotonic() - began_s}
        counts |= {"tool_runs": len(runs), "uploads": population.uploads.count()}
        counts |= {"model_calls": provider.calls, "interrupted_calls": provider.drops}
        report = _judge(plan.seed, population, evidence, faults, knew_replies=True, **counts)
        if report.is_proof:
            await population.delete_chats(await find_unused_files(database))
            report = replace(report, faults=[Fault(left) for left in await find_left_files(database)])
    return report


def _check_outputs(provider: ProofProvider, runs: Sequence[ToolRun], evidence: Sequence[Evidence]) -> list[Fault]:
    answered = {note for one in evidence for notes in one.log.submitted.values() for note in notes}
    results = [result.block for one in evidence for result in one.stored.results]
    unknown = {str(block.get("output", "")) for block in results if block.get("outcome") == "unknown"}
    return check_outputs(provider.prompts.outputs, {run.note: run.name for run in runs}, answered, unknown)


async def prove_server(url: str, *, seed: int, chats: int, seconds: float, token: str | None = None) -> Report:
    """Use a running server, and check that nothing was lost."""
    async with Client(url, token=token, retry_for_s=0) as client:
        await client.list_models()  # an unreachable server is reported at once
    async with gather_population([url], chats=chats, seed=seed, phrases=_PHRASES, token=token) as population:
        began_s = time.monotonic()
        await asyncio.sleep(seconds)
        await population.come_to_rest(at_most_s=_TIMEOUT_S)
        evidence, faults = await population.collect_evidence(at_most_s=_REPLAY_S)
        evidence = await population.visit_branches(evidence)
        length_s = time.monotonic() - began_s
        report = _judge(seed, population, evidence, faults, knew_replies=False, seconds=length_s)
        if report.is_proof:
            await population.delete_chats()
    return report


def _judge(
    seed: int, population: Population, evidence: Sequence[Evidence], faults: Sequence[Fault], **counts: Any
) -> Report:
    readers = [reader for member in population.members for reader in member.readers]
    return Report(
        seed=seed,
        chats=len(evidence),
        actions=count_actions(evidence),
        readers=len(readers),
        reconnects=sum(reader.reconnects for reader in readers),
        replies=count_replies(evidence),
        words=sum(len(one.stored.text.split()) for one in evidence),
        faults=[*(fault for one in evidence for fault in check_chat(one, find_reply)), *faults],
        **counts,
    )


# --- the database ---


@asynccontextmanager
async def _open(address: str) -> AsyncIterator[Database]:
    await migrate(address)
    database = await open_database(address)
    try:
        if await database.read(lambda transaction: transaction.one(_ANYTHING), single=True) is not None:
            name = describe(parse_address(address))
            raise DatabaseNotEmpty(f"{name} has chats or files in it. Choose an empty database.")
        yield database
    finally:
        await database.close()


async def _read_database(database: Database, evidence: Evidence) -> Evidence:
    """With the numbers of all its events, those for the model only included, and what is wrong with its rows."""
    stored = await load_chat(database, evidence.chat_id)
    if stored is None:
        return replace(evidence, row_faults=["the chat is not in the database"])
    return replace(evidence, seqs=[row.seq for row in stored.events], row_faults=find_faults(stored))
