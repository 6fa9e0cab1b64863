"""How `make test` spreads the tests over processes: long ones first, and those that share a costly thing in one.

`pytest -n auto` starts three processes per two cores, because many tests wait for processes, sockets and databases of
their own. It begins with the folders whose tests are long, so that no core is idle while the last of them ends.

The tests of a group run in one process, one after the other, so that they start one browser, build one wheel, and
do not write to mypy's cache at the same time: two runs of mypy that fill an empty cache have made each other fail.
xdist's own marker `xdist_group` writes the group into the name of the test, which pytest 9.2 no longer lets it do: it
is ignored without a word, and all groups were spread over all processes. tests/test_scheduling.py checks ours.
"""

from __future__ import annotations

import os
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

LONG_FIRST: Final = ("e2e", "prove", "faults", "test_package.py", "test_cli.py", "test_readme.py", "server", "store")
"""Folders and files whose tests take seconds, the longest first; the others follow as they were collected."""

GROUPS: Final = {
    "tests/e2e/test_page.py": "browser",
    "tests/test_package.py": "wheel",
    "tests/test_public_types.py": "mypy",
    "tests/store/test_payloads.py": "mypy",
}
"""Files whose tests run in one process, and what they share."""


class GroupScheduling(LoadScopeScheduling):
    """Every test by itself, whenever a process is free, except those of a group."""

    def _split_scope(self, nodeid: str) -> str:
        return GROUPS.get(nodeid.partition("::")[0], nodeid)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return max(2, (os.cpu_count() or 1) * 3 // 2)


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        return min(
            (LONG_FIRST.index(name) for name in item.path.parts[-2:] if name in LONG_FIRST), default=len(LONG_FIRST)
        )

    items.sort(key=rank)
