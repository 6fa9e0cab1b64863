"""`make bench`: what things cost, as ratios taken in one run.

The machine is shared and noisy, so an absolute time proves nothing; every figure stands beside a limit
that was measured in the same breath. Name benches to run only those: `python -m bench store`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from bench import debug, files, growth, loop, page, providers, store, worker
from bench.crowd import measure as crowd
from bench.latency import measure as latency
from bench.lists import measure as lists
from bench.over_http import against, compat, layers
from bench.over_http import measure as http
from bench.scale import measure as scale
from bench.scale import picture as model

BENCHES: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
    "against": against.measure,
    "compat": compat.measure,
    "crowd": crowd.measure,
    "debug": debug.measure,
    "files": files.measure,
    "growth": growth.measure,
    "http": http.measure,
    "latency": latency.measure,
    "layers": layers.measure,
    "lists": lists.measure,
    "loop": loop.measure,
    "model": model.measure,
    "page": page.measure,
    "providers": providers.measure,
    "scale": scale.measure,
    "store": store.measure,
    "worker": worker.measure,
}


def main(names: list[str]) -> None:
    unknown = set(names) - set(BENCHES)
    if unknown:
        sys.exit(f"There is no bench named {', '.join(sorted(unknown))}. There are: {', '.join(BENCHES)}.")
    for name in names or BENCHES:
        asyncio.run(BENCHES[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
