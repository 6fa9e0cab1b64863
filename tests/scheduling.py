"""How `make test` spreads the tests over processes: long ones early, and those that share a costly thing in one.

`pytest -n auto` starts two processes per core and two more, because many tests wait for processes, sockets and
databases of their own: with four processes two cores were idle for a tenth of the time, with six for a twentieth. Three
per core would be as good here, and on a large machine more than PostgreSQL has connections for. The tests that wait
longest are strewn among the first of the others, so that about one process in three waits at any time: with all of
them at the beginning the cores were idle there. None is near the end, so that no core is idle while the last of them
ends.

The tests of a group run in one process, one after the other, so that they start one browser, build one wheel, and
do not write to mypy's cache at the same time: two runs of mypy that fill an empty cache have made each other fail.
xdist's own marker `xdist_group` writes the group into the name of the test, which pytest 9.2 no longer lets it do: it
is ignored without a word, and all groups were spread over all processes. tests/test_scheduling.py checks ours.

In a new clone nothing is compiled, and six processes that collect the tests would each compile every library and
rewrite the asserts of every test file: 50 core-seconds. So one process collects them first and keeps what it compiled,
which takes 10, and six then take 16.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no types

WAITING: Final = frozenset(
    {"e2e", "prove", "faults", "test_cli.py", "test_cli_commands.py", "test_logs.py", "test_readme.py", "server"}
)
"""Folders and files whose tests take seconds, most of them waiting for processes."""

OTHERS_BETWEEN: Final = 12
"""So many other tests come between two that wait. There are enough of them for more than twice as many."""

GROUPS: Final = {
    "tests/e2e/test_page.py": "browser",
    "tests/e2e/test_page_access.py": "browser",
    "tests/e2e/test_page_drafts.py": "browser",
    "tests/e2e/test_page_focus.py": "browser",
    "tests/e2e/test_page_history.py": "browser",
    "tests/e2e/test_page_kept.py": "browser",
    "tests/e2e/test_page_lists.py": "browser",
    "tests/e2e/test_page_looks.py": "browser",
    "tests/e2e/test_page_replies.py": "browser",
    "tests/e2e/test_page_scrolling.py": "browser",
    "tests/e2e/test_page_tabs.py": "browser",
    "tests/e2e/test_page_unsaved.py": "browser",
    "tests/e2e/test_page_words.py": "browser",
    "tests/e2e/test_login.py": "browser",
    "tests/server/test_web_core.py": "node",
    "tests/server/compat/test_npm_clients.py": "node",
    "tests/test_package.py": "wheel",
    "tests/test_public_types.py": "mypy",
    "tests/store/test_payloads.py": "mypy",
    "tests/models/test_anthropic_request.py": "judges",
    "tests/models/test_openai_chat_request.py": "judges",
    "tests/models/test_openai_responses.py": "judges",
    "tests/models/test_openai_responses_request.py": "judges",
    "tests/models/test_requests_judged.py": "judges",
    "tests/testing/test_provider_sdks.py": "judges",
}
"""Files whose tests run in one process, and what they share."""


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Every test by itself, whenever a process is free, except those of a group."""

    def _split_scope(self, nodeid: str) -> str:
        return GROUPS.get(nodeid.partition("::")[0], nodeid)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return 2 * (os.cpu_count() or 1) + 2


def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Before the processes start."""
    if not has_compiled_tests(config.rootpath / "tests"):
        collect = [sys.executable, "-m", "pytest", "-qq", "--collect-only", "-p", "no:cacheprovider", "tests"]
        # What cannot be collected is reported by the processes, which collect it again.
        subprocess.run(collect, cwd=config.rootpath, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def has_compiled_tests(folder: Path) -> bool:
    """Whether every file of tests has been compiled by pytest before; that some have changed since costs little."""
    compiled = {path.name.partition(".")[0] for path in folder.rglob("__pycache__/test_*-pytest-*.pyc")}
    return compiled >= {path.stem for path in folder.rglob("test_*.py")}


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):
        return  # a single process: files stay together, and so does what their tests share
    waiting = [item for item in items if not WAITING.isdisjoint(item.path.parts[-2:])]
    others = [item for item in items if WAITING.isdisjoint(item.path.parts[-2:])]
    others.sort(key=lambda item: item.path.parent.name != "store")  # the longest of the others are there
    items.clear()
    for number, item in enumerate(waiting):
        items += [item, *others[number * OTHERS_BETWEEN : (number + 1) * OTHERS_BETWEEN]]
    items += others[len(waiting) * OTHERS_BETWEEN :]
