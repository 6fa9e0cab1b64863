"""The second chance (tests/second_chance.py) forgives what passes alone, says so loudly, and forgives nothing else.

Each case is a real run of pytest over a small suite in a directory of its own. A test that fails only once leaves a
file behind, which a second process finds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ONCE = """
import os, pathlib, pytest

def fail_once(name):
    mark = pathlib.Path(name)
    if not mark.exists():
        mark.touch()
        raise RuntimeError("only the first time")
"""
FLAKY = """
@pytest.fixture
def broken_set_up():
    fail_once("set_up")

@pytest.fixture
def broken_teardown():
    yield
    fail_once("teardown")

def test_good(): pass
@pytest.mark.parametrize("name", ["a b", "c::d[e]"])
def test_body(name): fail_once(name[0])
def test_set_up(broken_set_up): pass
def test_teardown(broken_teardown): pass
"""
RED = {
    "one of two fails again": """
def test_flaky(): fail_once("a")
def test_broken(): raise RuntimeError("always")
""",
    "six fail": """
@pytest.mark.parametrize("number", range(6))
def test_flaky(number): fail_once(str(number))
""",
    "skipped the second time": """
def test_flaky():
    if pathlib.Path("a").exists():
        pytest.skip()
    fail_once("a")
""",
    "a process crashes": """
def test_crash():
    if not pathlib.Path("a").exists():
        pathlib.Path("a").touch()
        os._exit(1)
""",
    "cut short": """
def test_flaky(): fail_once("a")
def test_never_run(): raise RuntimeError("always")
""",
    "not collected": """
def test_good(): pass
fail_once("a")
""",
}
OPTIONS = {"a process crashes": ["-p", "xdist", "-n", "1"], "cut short": ["-x"]}


def run_suite(place: Path, text: str, *options: str) -> tuple[int, str]:
    (place / "conftest.py").write_text('pytest_plugins = ["tests.second_chance"]')
    (place / "test_suite.py").write_text(ONCE + text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", *options],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_test_that_passes_alone_is_flaky_and_the_run_is_green(tmp_path: Path) -> None:
    status, output = run_suite(tmp_path, FLAKY, "--second-chance")

    assert status == pytest.ExitCode.OK, output
    lines = output.splitlines()
    assert lines[-1].startswith("5 passed, 4 flaky in ")  # each test once, and the last line as pytest prints it
    assert [line for line in lines if re.search(r"\d (passed|failed|error)", line)] == [lines[-1]]
    kept = (tmp_path / ".pytest_cache" / "flaky.txt").read_text()
    for text in (output, kept):
        assert text.count("FLAKY (failed once, passed alone): test_suite.py::") == 4
        assert text.count("RuntimeError: only the first time") >= 4  # the traceback of the first failure


def test_without_the_option_one_failure_is_red(tmp_path: Path) -> None:
    status, output = run_suite(tmp_path, FLAKY)

    assert status == pytest.ExitCode.TESTS_FAILED
    assert output.splitlines()[-1].startswith("2 failed, 2 passed, 2 errors in ")
    assert "FLAKY" not in output


@pytest.mark.parametrize("case", RED)
def test_everything_else_stays_red(case: str, tmp_path: Path) -> None:
    status, output = run_suite(tmp_path, RED[case], "--second-chance", *OPTIONS.get(case, []))

    assert status in {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED}, output
    assert re.search(r"\d (failed|error)", output.splitlines()[-1])
    assert not (tmp_path / ".pytest_cache" / "flaky.txt").exists()
