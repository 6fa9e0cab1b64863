"""Where it breaks: from a load and a design to the use of every resource. Pure: the costs come in as a value.

The load is so many chats whose replies stream all the time, each with a reader. If one process can carry it, that one
serves and works (`indelible serve`), and its readers get every row from memory. Otherwise there are workers
(`indelible worker`) and servers (`indelible serve --no-worker`), as many as their CPU needs. What then brings rows from
workers to servers is the fan-out:

  notify   PostgreSQL's LISTEN/NOTIFY. Each worker sends at most 20 notifications per second, and every process receives
           all of them. A server asks for the positions of the chats in it, and with two more statements for the new
           rows of each (docs/feed.md). So reads grow with the chats, and received notifications with the square.
  bus      Redis (feed/fanout.py): a message carries the rows, and the database is not asked for them. Notifications are
           left for the events of a turn, so they still grow with the square of the processes, later.

A flush is one commit for all chats of a worker, every 20 ms. One row per chat and flush, or with the adaptive flush
(store/journal/writer.py) at most 32 rows, or a quarter of the chats if that is more.

`databases` splits by chat, which is possible because `chat_id` leads every key: each database has processes of its own
and knows nothing of the others: a cell.

Must stay true (tests/bench/test_scale_model.py): more chats never need less; a cell costs what its part of the load
would cost alone; the adaptive flush never writes more, and with the bus no row is read back.

Most costs come from `python -m bench http`, `layers` and `scale` (docs/performance.md). picture.py draws the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Literal

import msgspec

FLUSH_INTERVAL_S: Final = 0.02
ROWS_PER_FLUSH: Final = 32
LONGEST_TURN: Final = 4
HINTS_PER_S: Final = 20.0
HINTS_PER_TURN: Final = 4
STATEMENTS_PER_READ: Final = 2
CONNECTIONS_PER_PROCESS: Final = 14  # 10 for commands, 3 urgent ones, 1 that listens

FanOut = Literal["notify", "bus"]
Resource = Literal["database CPU", "commits", "WAL", "notifications", "connections", "server CPU"]


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """CPU in seconds: of a worker (token, row, turn), of a server, of PostgreSQL; then bytes and counts."""

    token_s: float
    row_s: float
    turn_s: float
    delivery_s: float
    request_s: float
    read_s: float
    hint_s: float
    bus_row_s: float
    database_commit_s: float
    database_row_s: float
    database_turn_s: float
    database_read_s: float
    database_notify_s: float
    database_delivery_s: float
    partition_factor: float
    row_wal_bytes: float
    turn_wal_bytes: float
    turn_commits: float


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of each resource. Of a CPU only a share is used, so that nobody waits in a queue."""

    cpu_share: float
    database_cores: int
    commits_per_s: float
    wal_bytes_per_s: float
    notifications_per_s: float
    connections: int


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Chats whose replies stream all the time, each with one reader."""

    chats: float
    tokens_per_s: float = 50.0
    reply_tokens: int = 250

    @property
    def turns_per_s(self) -> float:
        return self.chats * self.tokens_per_s / self.reply_tokens


class Design(msgspec.Struct, frozen=True, kw_only=True):
    is_flush_adaptive: bool = True
    is_journal_partitioned: bool = False
    fan_out: FanOut = "notify"
    databases: int = 1


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What a load takes. Numbers are of all databases together; `shares` is of one of them: 1 is full.

    Without servers the one worker of each database serves as well.
    """

    workers: int
    servers: int
    rows_per_s: float
    commits_per_s: float
    wal_bytes_per_s: float
    reads_per_s: float
    notifications_per_s: float
    deliveries_per_s: float
    connections: int
    database_cpu_s: float
    shares: dict[Resource, float]

    @property
    def fullest(self) -> Resource:
        return max(self.shares, key=lambda resource: self.shares[resource])

    @property
    def first_to_break(self) -> Resource | None:
        """The resource of which most is missing; None if there is enough of each."""
        return self.fullest if self.shares[self.fullest] > 1 else None


# From one run on a machine of two cores, shared with load, provider and other work. Not all are measured:
# docs/performance.md says which are, which are fitted or estimated, and how much the results depend on them.
COSTS: Final = Costs(
    token_s=20e-6,  # estimated, as are the next two: the run gives only their sum
    row_s=50e-6,
    turn_s=5e-3,  # turn and request together are measured, their split is estimated
    delivery_s=20e-6,
    request_s=2e-3,
    read_s=105e-6,  # fitted
    hint_s=150e-6,  # estimated
    bus_row_s=20e-6,  # assumed: a publish or a receive over one socket
    database_commit_s=92e-6,
    database_row_s=5e-6,
    database_turn_s=5.5e-3,
    database_read_s=100e-6,  # fitted: 81 to 139
    database_notify_s=43e-6,
    database_delivery_s=12e-6,
    partition_factor=1.06,
    row_wal_bytes=462,
    turn_wal_bytes=15_000,
    turn_commits=9,
)
MACHINE: Final = Capacity(
    cpu_share=0.7,  # chosen
    database_cores=2,
    commits_per_s=4_300,
    wal_bytes_per_s=500e6,
    notifications_per_s=12_000,
    connections=500,  # chosen: a server comes with 100, and each costs it memory
)


def compute_use(load: Load, design: Design, costs: Costs = COSTS, capacity: Capacity = MACHINE) -> Use:
    """The use of all resources; with several databases each carries its part of the chats."""
    count = design.databases
    cell = _compute_cell(msgspec.structs.replace(load, chats=load.chats / count), design, costs, capacity)
    return Use(
        workers=cell.workers * count,
        servers=cell.servers * count,
        rows_per_s=cell.rows_per_s * count,
        commits_per_s=cell.commits_per_s * count,
        wal_bytes_per_s=cell.wal_bytes_per_s * count,
        reads_per_s=cell.reads_per_s * count,
        notifications_per_s=cell.notifications_per_s * count,
        deliveries_per_s=cell.deliveries_per_s * count,
        connections=cell.connections * count,
        database_cpu_s=cell.database_cpu_s * count,
        shares=cell.shares,
    )


def find_split(load: Load, design: Design, costs: Costs = COSTS, capacity: Capacity = MACHINE) -> int:
    """The smallest number of databases with which nothing breaks."""

    def holds(count: int) -> bool:
        split = msgspec.structs.replace(design, databases=count)
        return compute_use(load, split, costs, capacity).first_to_break is None

    return _find_smallest(holds)


def find_chats(design: Design, costs: Costs = COSTS, capacity: Capacity = MACHINE) -> int:
    """The largest number of chats with which nothing breaks."""

    def breaks(chats: int) -> bool:
        return compute_use(Load(chats=chats), design, costs, capacity).first_to_break is not None

    return _find_smallest(breaks) - 1


def count_rows_per_s(chats: float, load: Load, *, is_adaptive: bool) -> float:
    """The journal rows of one worker with so many chats. A row has at least one token."""
    per_flush = chats * min(1.0, load.tokens_per_s * FLUSH_INTERVAL_S)
    if is_adaptive:
        per_flush = min(per_flush, max(ROWS_PER_FLUSH, chats / LONGEST_TURN))
    return per_flush / FLUSH_INTERVAL_S


def _compute_cell(load: Load, design: Design, costs: Costs, capacity: Capacity) -> Use:
    workers, servers, server_cpu_s = _count_processes(load, design, costs, capacity)
    rows_per_s = workers * count_rows_per_s(load.chats / workers, load, is_adaptive=design.is_flush_adaptive)
    commits_per_s = min(workers / FLUSH_INTERVAL_S, rows_per_s) + load.turns_per_s * costs.turn_commits
    notifications_per_s = _count_notifications(load, design, workers, rows_per_s) if servers else 0.0
    deliveries_per_s = notifications_per_s * (workers + servers)
    is_reading = design.fan_out == "notify" and servers > 0
    reads_per_s = _count_chat_reads(load, rows_per_s) + notifications_per_s * servers if is_reading else 0.0
    row_s = costs.database_row_s * (costs.partition_factor if design.is_journal_partitioned else 1.0)
    wal_bytes_per_s = rows_per_s * costs.row_wal_bytes + load.turns_per_s * costs.turn_wal_bytes
    flushes_per_s = commits_per_s - load.turns_per_s * costs.turn_commits
    database_cpu_s = (
        flushes_per_s * costs.database_commit_s
        + rows_per_s * row_s
        + load.turns_per_s * costs.database_turn_s
        + reads_per_s * costs.database_read_s
        + notifications_per_s * costs.database_notify_s
        + deliveries_per_s * costs.database_delivery_s
    )
    connections = (workers + servers) * CONNECTIONS_PER_PROCESS
    return Use(
        workers=workers,
        servers=servers,
        rows_per_s=rows_per_s,
        commits_per_s=commits_per_s,
        wal_bytes_per_s=wal_bytes_per_s,
        reads_per_s=reads_per_s,
        notifications_per_s=notifications_per_s,
        deliveries_per_s=deliveries_per_s,
        connections=connections,
        database_cpu_s=database_cpu_s,
        shares={
            "database CPU": database_cpu_s / (capacity.database_cores * capacity.cpu_share),
            "commits": commits_per_s / capacity.commits_per_s,
            "WAL": wal_bytes_per_s / capacity.wal_bytes_per_s,
            "notifications": notifications_per_s / capacity.notifications_per_s,
            "connections": connections / capacity.connections,
            # There are as many as it takes, unless the notifications alone are too much for each of them.
            "server CPU": server_cpu_s / capacity.cpu_share if server_cpu_s > capacity.cpu_share else 0.0,
        },
    )


def _count_processes(load: Load, design: Design, costs: Costs, capacity: Capacity) -> tuple[int, int, float]:
    """Workers, servers, and the CPU of one server: more than there is, if no number of servers is enough."""
    rows_per_s = count_rows_per_s(load.chats, load, is_adaptive=design.is_flush_adaptive)
    alone_s = _compute_worker_cpu(load, design, costs, 1)
    alone_s += rows_per_s * costs.delivery_s + load.turns_per_s * costs.request_s
    if alone_s <= capacity.cpu_share:
        return 1, 0, alone_s
    workers = _find_smallest(lambda count: _compute_worker_cpu(load, design, costs, count) <= capacity.cpu_share)
    rows_per_s = workers * count_rows_per_s(load.chats / workers, load, is_adaptive=design.is_flush_adaptive)
    shared_s = rows_per_s * costs.delivery_s + load.turns_per_s * costs.request_s
    if design.fan_out == "bus":
        shared_s += rows_per_s * costs.bus_row_s + load.turns_per_s * HINTS_PER_TURN * costs.hint_s
        own_s = _count_notifications(load, design, workers, rows_per_s) * costs.bus_row_s  # few name a chat of this one
    else:
        shared_s += _count_chat_reads(load, rows_per_s) * costs.read_s
        own_s = _count_notifications(load, design, workers, rows_per_s) * costs.hint_s
    free_s = capacity.cpu_share - own_s
    servers = math.ceil(shared_s / free_s) if free_s > 0 else workers
    return workers, servers, own_s + shared_s / servers


def _compute_worker_cpu(load: Load, design: Design, costs: Costs, workers: int) -> float:
    """CPU of one of so many workers."""
    chats = load.chats / workers
    rows_per_s = count_rows_per_s(chats, load, is_adaptive=design.is_flush_adaptive)
    own_s = chats * load.tokens_per_s * costs.token_s + rows_per_s * costs.row_s
    own_s += load.turns_per_s / workers * costs.turn_s
    if workers > 1:
        own_s += rows_per_s * costs.bus_row_s if design.fan_out == "bus" else 0.0
    return own_s


def _count_notifications(load: Load, design: Design, workers: int, rows_per_s: float) -> float:
    """Of all workers. With a bus only the events of turns need them; the reads that follow are part of the turn."""
    named_per_s = rows_per_s if design.fan_out == "notify" else load.turns_per_s * HINTS_PER_TURN
    return min(workers * HINTS_PER_S, named_per_s)


def _count_chat_reads(load: Load, rows_per_s: float) -> float:
    """Statements with which servers read the new rows of chats that a notification named."""
    return load.chats * min(HINTS_PER_S, rows_per_s / load.chats) * STATEMENTS_PER_READ


def _find_smallest(holds: Callable[[int], bool]) -> int:
    """The smallest number from 1 on for which it holds, if it holds for all above it too."""
    highest = 1
    while not holds(highest):
        highest *= 2
    lowest = highest // 2 + 1
    while lowest < highest:
        middle = (lowest + highest) // 2
        if holds(middle):
            highest = middle
        else:
            lowest = middle + 1
    return highest
