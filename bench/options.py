"""How much to measure, and where to write it: environment variables, so that every bench has the same ones.

BENCH_FULL=1     the long form: more sizes, five rounds
BENCH_ROUNDS=3   the number of rounds of `http`; otherwise one, or five in the long form
BENCH_ONLY=200   only settings of `http` whose name has this in it (a regular expression)
BENCH_AGAINST=…  the python of another commit's environment, for `against`
BENCH_OUT=dir    where JSON and pictures go (default: build/bench)
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import msgspec

IS_FULL: Final = bool(os.environ.get("BENCH_FULL"))
ROUNDS: Final = int(os.environ.get("BENCH_ROUNDS") or (5 if IS_FULL else 1))
ONLY: Final = re.compile(os.environ.get("BENCH_ONLY", ""))
OUT: Final = Path(os.environ.get("BENCH_OUT", "build/bench"))


def write_json(name: str, value: Any) -> Path:
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
    return path
