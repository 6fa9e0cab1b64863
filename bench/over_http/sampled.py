"""`indelible` with a sampler in it: which layer of the code the CPU of its event loop is spent in.

`python -m bench.over_http.sampled serve …` is `indelible serve …`. Every 2 ms of CPU a signal interrupts the main
thread, and what it has used since the last one is charged to the innermost frame whose layer is known. The rest of
the process's CPU is that of other threads, which are SQLite's. On SIGUSR1 the sums so far are written to the file
that BENCH_LAYERS names, as a whole.

The sampler makes everything some per cent dearer; shares are what counts.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Final

INTERVAL_S: Final = 0.002
REST: Final = "event loop and sockets"
THREADS: Final = "SQLite's threads"
_OWN: Final = {
    "store/journal": "journal",
    "store": "store",
    "recording": "recording",
    "redaction": "recording",
    "feed": "feed",
    "notify.py": "feed",
    "loop": "loop",
    "tools": "loop",
    "models": "models (wire formats)",
    "worker": "worker",
    "service": "server and service",
    "server": "server and service",
    "app": "server and service",
    "content": "content and machine",
    "machine": "content and machine",
}
_FOREIGN: Final = {
    "aiohttp": "aiohttp (provider)",
    "asyncpg": "asyncpg",
    "uvicorn": "uvicorn and Starlette",
    "httptools": "uvicorn and Starlette",
    "starlette": "uvicorn and Starlette",
    "anyio": "uvicorn and Starlette",
}
_LOOP: Final = ("/asyncio/runners.py", "/uvicorn/_compat.py", "/uvicorn/server.py")
"""Where the event loop is run: what is innermost here is in no callback."""

LAYERS: Final = (*dict.fromkeys((*_FOREIGN.values(), *_OWN.values())), REST, THREADS)

_spent_s: Final[defaultdict[str, float]] = defaultdict(float)
_known: Final[dict[str, str | None]] = {}
_last_s = 0.0


def find_layer(path: str) -> str | None:
    """The layer of a source file, or None: charge whoever called it."""
    if path.endswith(_LOOP):
        return REST
    if "/site-packages/" in path:
        return _FOREIGN.get(path.rpartition("/site-packages/")[2].partition("/")[0])
    inside = path.rpartition("/indelible/")[2] if "/indelible/" in path else ""
    return next((layer for start, layer in _OWN.items() if inside.startswith(start)), None)


def _sample(_number: int, frame: FrameType | None) -> None:
    global _last_s  # noqa: PLW0603  (one sampler per process)
    now_s = time.thread_time()
    layer: str | None = None
    while frame is not None and layer is None:
        path = frame.f_code.co_filename
        if path not in _known:
            _known[path] = find_layer(path)
        layer = _known[path]
        frame = frame.f_back
    _spent_s[layer or REST] += now_s - _last_s
    _last_s = now_s


def _write(_number: int, _frame: FrameType | None) -> None:
    sums = {**_spent_s, THREADS: time.process_time() - time.thread_time()}
    path = Path(os.environ["BENCH_LAYERS"])
    path.with_suffix(".new").write_text(json.dumps(sums))
    path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    from indelible.cli import main

    signal.signal(signal.SIGPROF, _sample)
    signal.signal(signal.SIGUSR1, _write)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    sys.argv[0] = "indelible"
    main()
