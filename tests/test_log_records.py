"""The fixture of tests/log_records.py: it fails a test that warns unexpectedly, wherever the warning was swallowed.

Each case is a real run of pytest over one small test in a directory of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DECLARED = '@pytest.mark.may_log("WARNING indelible.made_up: the disk is full")'
LATER = "@pytest.fixture\ndef late():\n    yield\n    say()\n"
SUITE = """
import logging
import pytest

log = logging.getLogger("indelible.made_up")

def say(what="the disk is full", level=logging.WARNING):
    try:
        raise OSError("swallowed")
    except Exception:
        log.log(level, what, exc_info=True)

"""


def run_suite(place: Path, text: str) -> tuple[int, str]:
    (place / "conftest.py").write_text('pytest_plugins = ["tests.log_records"]')
    (place / "test_suite.py").write_text(SUITE + text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", "--strict-markers"],
        cwd=place,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "a warning": ("def test_it(): say()", "WARNING indelible.made_up: the disk is full (OSError: swallowed)"),
        "an error": ("def test_it(): say(level=logging.ERROR)", "ERROR indelible.made_up: the disk is full"),
        "at its end": (f"{LATER}def test_it(late): pass", "WARNING indelible.made_up: the disk is full"),
        "another one": (f"{DECLARED}\ndef test_it(): say('it burns')", "WARNING indelible.made_up: it burns"),
        "while caplog hushes it": (
            "def test_it(caplog):\n    caplog.handler.setLevel(logging.CRITICAL)\n    say()",
            "WARNING indelible.made_up: the disk is full",
        ),
    }.values(),
)
def test_a_test_that_logs_an_undeclared_warning_fails_and_names_it(text: str, expected: str, tmp_path: Path) -> None:
    status, output = run_suite(tmp_path, text)
    assert status == pytest.ExitCode.TESTS_FAILED, output
    assert expected in output


@pytest.mark.parametrize(
    "text",
    [
        f"{DECLARED}\ndef test_it(): say()",
        f"class TestIt:\n    {DECLARED}\n    def test_it(self): say()",
        f"pytestmark = {DECLARED[1:]}\ndef test_it(): say()",
        "def test_it(): say(level=logging.INFO)",
        "def test_it(): logging.getLogger('other').warning('not ours')",
    ],
)
def test_a_test_that_declares_its_warning_passes(text: str, tmp_path: Path) -> None:
    status, output = run_suite(tmp_path, text)
    assert status == pytest.ExitCode.OK, output
