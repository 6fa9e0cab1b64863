"""What all tests share: the databases (tests/databases.py), and how property tests run.

`make test` tries new examples every time and prints how to repeat one that failed; with CI set (.ci/run does so) it
tries the same ones every time, so that a change is judged by what it changed and not by luck. No example has a
deadline: a busy machine is no failure, and a test that hangs is ended by pytest-timeout.

`make nightly` chooses the profile of that name: INDELIBLE_EXAMPLES examples for every property test that
does not say how many it wants, and a test that does say so should read that variable as well.
"""

from __future__ import annotations

import os

from hypothesis import settings

pytest_plugins = ["tests.databases"]

settings.register_profile(
    "ours",
    settings.get_profile("default"),
    deadline=None,
    database=None,
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)
settings.register_profile(
    "nightly",
    settings.get_profile("ours"),
    derandomize=False,
    max_examples=int(os.environ.get("INDELIBLE_EXAMPLES", "50000")),
)
settings.load_profile("ours")
