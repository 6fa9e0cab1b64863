"""The model of bench/scale: what more chats, another flush, another fan-out and a split database do to its numbers."""

from __future__ import annotations

import msgspec
import pytest
from bench.scale.model import (
    CONNECTIONS_PER_PROCESS,
    HINTS_PER_TURN,
    MACHINE,
    Design,
    FanOut,
    Load,
    Use,
    compute_use,
    count_rows_per_s,
    find_chats,
    find_split,
)
from hypothesis import given
from hypothesis import strategies as st

PLAIN = Design(is_flush_adaptive=False)
CHATS = st.integers(min_value=1, max_value=200_000)
DESIGNS = st.builds(
    Design,
    is_flush_adaptive=st.booleans(),
    is_journal_partitioned=st.booleans(),
    fan_out=st.sampled_from(["notify", "bus"]),
)
RATES = (
    "workers",
    "servers",
    "rows_per_s",
    "commits_per_s",
    "wal_bytes_per_s",
    "reads_per_s",
    "notifications_per_s",
    "deliveries_per_s",
    "connections",
    "database_cpu_s",
)


def use(chats: float, design: Design) -> Use:
    return compute_use(Load(chats=chats), design)


def test_a_process_with_few_chats_writes_a_row_for_each_in_every_flush() -> None:
    load = Load(chats=20)
    assert count_rows_per_s(20, load, is_adaptive=True) == count_rows_per_s(20, load, is_adaptive=False) == 20 * 50


def test_the_adaptive_flush_writes_32_rows_or_a_quarter_of_the_chats() -> None:
    assert count_rows_per_s(100, Load(chats=100), is_adaptive=True) == pytest.approx(32 * 50)
    assert count_rows_per_s(1000, Load(chats=1000), is_adaptive=True) == pytest.approx(250 * 50)
    assert count_rows_per_s(1000, Load(chats=1000), is_adaptive=False) == pytest.approx(1000 * 50)


def test_a_slow_model_needs_no_more_rows_than_it_has_tokens() -> None:
    assert count_rows_per_s(20, Load(chats=20, tokens_per_s=10), is_adaptive=True) == pytest.approx(20 * 10)


@given(chats=CHATS, design=DESIGNS)
def test_twice_the_chats_never_need_less(chats: int, design: Design) -> None:
    once, twice = use(chats, design), use(2 * chats, design)
    if twice.shares["server CPU"] > 1:  # no number of servers is enough
        assert twice.first_to_break is not None
        return
    for rate in RATES:
        assert getattr(twice, rate) >= getattr(once, rate) * 0.999, rate


@given(chats=CHATS, design=DESIGNS)
def test_every_process_has_its_connections(chats: int, design: Design) -> None:
    found = use(chats, design)
    assert found.connections == (found.workers + found.servers) * CONNECTIONS_PER_PROCESS


@given(chats=CHATS, fan_out=st.sampled_from(["notify", "bus"]))
def test_the_adaptive_flush_needs_no_more_workers_and_writes_no_more(chats: int, fan_out: FanOut) -> None:
    adaptive, every = use(chats, Design(fan_out=fan_out)), use(chats, Design(fan_out=fan_out, is_flush_adaptive=False))
    assert adaptive.workers <= every.workers
    assert adaptive.rows_per_s <= every.rows_per_s * 1.001
    assert adaptive.wal_bytes_per_s <= every.wal_bytes_per_s * 1.001


@given(chats=CHATS)
def test_on_a_bus_the_database_is_asked_for_no_row_and_notifies_only_of_turns(chats: int) -> None:
    found, today = use(chats, Design(fan_out="bus")), use(chats, Design())
    assert found.reads_per_s == 0
    assert found.notifications_per_s <= Load(chats=chats).turns_per_s * HINTS_PER_TURN
    assert found.database_cpu_s <= today.database_cpu_s or found.workers > today.workers


def test_a_single_process_reads_everything_from_its_memory() -> None:
    found = use(10, Design())
    assert (found.workers, found.servers) == (1, 0)
    assert (found.notifications_per_s, found.reads_per_s) == (0, 0)


def test_received_notifications_grow_with_the_square_of_the_processes() -> None:
    small, large = use(2_000, Design()), use(4_000, Design())
    senders, receivers = (
        large.workers / small.workers,
        (large.workers + large.servers) / (small.workers + small.servers),
    )
    assert large.deliveries_per_s == pytest.approx(small.deliveries_per_s * senders * receivers)


@given(chats=st.integers(min_value=100, max_value=200_000), databases=st.integers(min_value=1, max_value=50))
def test_a_cell_costs_what_it_would_cost_alone(chats: int, databases: int) -> None:
    whole, alone = use(chats, Design(databases=databases)), use(chats / databases, Design())
    assert whole.shares == alone.shares
    for rate in RATES:
        assert getattr(whole, rate) == pytest.approx(getattr(alone, rate) * databases), rate


def test_the_resource_that_breaks_first_is_the_fullest() -> None:
    found = use(200_000, PLAIN)
    assert found.first_to_break is not None
    assert found.shares[found.first_to_break] == max(found.shares.values()) > 1
    assert use(1, PLAIN).first_to_break is None


@pytest.mark.parametrize("fan_out", ["notify", "bus"])
def test_a_split_has_no_more_databases_than_it_needs(fan_out: str) -> None:
    load, design = Load(chats=20_000), msgspec.convert({"fan_out": fan_out}, Design)
    count = find_split(load, design)
    assert count > 1
    assert use(20_000, msgspec.structs.replace(design, databases=count)).first_to_break is None
    assert use(20_000, msgspec.structs.replace(design, databases=count - 1)).first_to_break is not None


@pytest.mark.parametrize("design", [PLAIN, Design(), Design(fan_out="bus")])
def test_the_most_chats_are_one_fewer_than_those_that_break_it(design: Design) -> None:
    chats = find_chats(design)
    assert use(chats, design).first_to_break is None
    assert use(chats + 1, design).first_to_break is not None


def test_a_larger_database_carries_more() -> None:
    larger = msgspec.structs.replace(MACHINE, database_cores=16, commits_per_s=20_000, connections=2_000)
    assert find_chats(Design(fan_out="bus"), capacity=larger) > find_chats(Design(fan_out="bus"))
