"""How many examples a property test tries that needs another number than the profile's (tests/conftest.py).

`make test` runs on every change, with the same examples under CI, so it tries a few of them: more than these have found
nothing there for months. `make nightly` tries INDELIBLE_EXAMPLES new ones, tens of thousands, of every property.

The same holds for sweeps ("cut at every byte", "stop at every point"): `make test` takes every point that differs from
its neighbours, `make nightly` all of them. Each sweep says which those are.
"""

from __future__ import annotations

import os


def count_examples(usual: int) -> int:
    """`usual` in `make test`, and as many as `make nightly` asks for."""
    return int(os.environ.get("INDELIBLE_EXAMPLES", usual))


def is_thorough() -> bool:
    """Whether a sweep takes all of its points: in `make nightly`."""
    return "INDELIBLE_EXAMPLES" in os.environ
