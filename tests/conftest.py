"""What all tests share: the databases (tests/databases.py), and how property tests run.

`make test` tries new examples every time and prints how to repeat one that failed. No example has a
deadline: a busy machine is no failure, and a test that hangs is ended by pytest-timeout.

`make nightly` chooses the profile of that name: INDELIBLE_EXAMPLES examples for every property test that
does not say how many it wants, and a test that does say so should read that variable as well.
"""

from __future__ import annotations

import os

from hypothesis import settings

pytest_plugins = ["tests.databases"]

settings.register_profile("ci", settings.get_profile("default"), deadline=None, derandomize=False, print_blob=True)
settings.register_profile(
    "nightly", settings.get_profile("ci"), max_examples=int(os.environ.get("INDELIBLE_EXAMPLES", "50000"))
)
settings.load_profile("ci")
