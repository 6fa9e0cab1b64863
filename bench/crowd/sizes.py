"""How large the crowd is. Environment variables change it: BENCH_FEEDS=100 makes all of it a tenth as large."""

from __future__ import annotations

import os

import msgspec


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """`streaming` of the `feeds` are of chats whose replies stream. `stalled` never read, half of them a large chat."""

    feeds: int = 1_000
    streaming: int = 100
    chats: int = 5
    stalled: int = 50
    storm: int = 500
    cut: int = 400
    phase_s: float = 5.0


def read_sizes() -> Sizes:
    feeds = int(os.environ.get("BENCH_FEEDS", "1000"))
    share = feeds / 1_000
    return Sizes(
        feeds=feeds,
        streaming=max(5, int(100 * share)),
        stalled=max(2, int(50 * share)),
        storm=feeds // 2,
        cut=max(10, int(400 * share)),
        phase_s=float(os.environ.get("BENCH_PHASE_S", "5")),
    )
