"""The tests of a group run in one process (tests/scheduling.py): a real run of pytest in two processes shows where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.scheduling import GROUPS

PLUGIN = """
from tests import scheduling
from tests.scheduling import pytest_xdist_make_scheduler
scheduling.GROUPS = {"test_shared.py": "shared"}
"""
TESTS = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(8))
def test_where(number):
    pathlib.Path(f"{pathlib.Path(__file__).stem}_{number}").write_text(os.environ["PYTEST_XDIST_WORKER"])
"""
ROOT = Path(__file__).parents[1]


def test_every_group_names_files_that_exist() -> None:
    assert [name for name in GROUPS if not (ROOT / name).is_file()] == []


def test_the_tests_of_a_group_run_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "test_shared.py").write_text(TESTS)
    (tmp_path / "test_spread.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT)}

    done = subprocess.run(
        [*command, "-c", "/dev/null"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    assert len({path.read_text() for path in tmp_path.glob("test_shared_?")}) == 1
    assert len([*tmp_path.glob("test_spread_?")]) == 8
