"""A few failed tests of `make test` are run once more, alone, and a test that then passes is reported as flaky.

One test of eight thousand that fails on a busy machine, and never alone, used to throw away the whole run. It is a
defect and has to be mended, but it says nothing about the change that is being judged. So with `--second-chance`, if no
more than FORGIVEN tests failed, exactly these run again: in one new process, one after the other, when all others have
ended. If all of them pass, the run is green, and what failed stands in a block before the last line, with its first
traceback, and is added to `.pytest_cache/flaky.txt`. docs/decisions/0017-second-chance.md has the reasons.

What must stay true (tests/test_second_chance.py):
  * a test that fails twice, a sixth failure, a crashed process, a file that cannot be collected and a run that was cut
    short are red, as without the option;
  * a second run forgives only what it has seen pass: a test that is skipped or not found there is not forgiven;
  * a property test tries the same examples again: both runs have the same seed;
  * the last line counts every test once, and says how many were flaky.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.terminal import TerminalReporter

FORGIVEN: Final = 5
"""So many tests may fail by chance. More than that have a common cause."""

TIME_LIMIT_S: Final = 1800.0
FLAKY_FILE: Final = Path(".pytest_cache") / "flaky.txt"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("second chance")
    group.addoption(
        "--second-chance",
        action="store_true",
        help=f"run up to {FORGIVEN} failed tests once more, alone; report those that then pass as flaky",
    )
    group.addoption("--second-chance-passed", metavar="FILE", help="internal: where the second run lists what passed")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--second-chance-passed"):
        config.pluginmanager.register(Passed(Path(config.getoption("--second-chance-passed"))))
    elif config.getoption("--second-chance") and not hasattr(config, "workerinput"):
        if config.pluginmanager.has_plugin("hypothesispytest") and config.option.hypothesis_seed is None:
            config.option.hypothesis_seed = random.getrandbits(64)  # before Hypothesis reads it; xdist hands it on
        config.pluginmanager.register(SecondChance(config), "second-chance")


class Passed:
    """In the second run: the tests that passed, set-up and teardown included."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._called: set[str] = set()
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)
        elif report.when == "call":
            self._called.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps(sorted(self._called - self._failed)))


class SecondChance:
    """In the process that prints the results."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._has_crashed = False
        self._remarks: list[str] = []
        self._flaky: dict[str, list[pytest.TestReport]] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        if error is not None:
            self._has_crashed = True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """After all tests, and before the terminal's summary, which this may change."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if exitstatus != pytest.ExitCode.TESTS_FAILED or terminal is None:
            return
        failed = self._find_forgivable(session, terminal)
        if not failed:
            return
        terminal.write_line("")
        terminal.write_line(f"A second chance for {len(failed)} of them: once more, alone.")
        passed, output = self._run_again([*failed])
        if failed.keys() <= passed:
            self._flaky = failed
            count_as_flaky(terminal, failed)
            session.exitstatus = pytest.ExitCode.OK
        else:
            self._remarks += ["The second run, alone:", output]

    def _find_forgivable(
        self, session: pytest.Session, terminal: TerminalReporter
    ) -> dict[str, list[pytest.TestReport]]:
        """The failed tests and their reports; empty if the run must stay red."""
        reports = terminal.stats.get("failed", []) + terminal.stats.get("error", [])
        failed: dict[str, list[pytest.TestReport]] = {}
        for report in reports:
            failed.setdefault(report.nodeid, []).append(report)
        if self._has_crashed or not all(isinstance(report, pytest.TestReport) for report in reports):
            self._remarks.append("No second chance: a process crashed, or a file could not be collected.")
        elif session.shouldfail or session.shouldstop:
            self._remarks.append("No second chance: the run was cut short.")
        elif len(failed) > FORGIVEN:
            self._remarks.append(f"No second chance: more than {FORGIVEN} tests failed.")
        else:
            return failed
        return {}

    def _run_again(self, names: list[str]) -> tuple[set[str], str]:
        """What passed in the second run, and all that it printed."""
        options = ["-q", "--tb=short"]
        if self._config.pluginmanager.has_plugin("xdist"):
            options += ["-n", "0"]
        if self._config.pluginmanager.has_plugin("hypothesispytest"):
            options += [f"--hypothesis-seed={self._config.option.hypothesis_seed}"]
        if (timeout := self._config.getoption("timeout", None)) is not None:
            options += [f"--timeout={timeout}"]
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "passed.json"
            command = [sys.executable, "-m", "pytest", *options, "--second-chance-passed", str(file), *names]
            try:
                done = subprocess.run(
                    command,
                    cwd=self._config.rootpath,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    timeout=TIME_LIMIT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return set(), f"It did not end within {TIME_LIMIT_S:.0f} s."
            passed = set(json.loads(file.read_text())) if file.exists() else set()
        return passed if done.returncode == pytest.ExitCode.OK else set(), done.stdout

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> Generator[None]:
        """After all other sections; only the line that counts the tests comes later."""
        yield
        for remark in self._remarks:
            terminalreporter.write_line(remark, red=True)
        if self._flaky:
            text = describe(self._flaky)
            terminalreporter.write_sep("!", "FLAKY (failed once, passed alone)", yellow=True, bold=True)
            terminalreporter.write_line(text)
            terminalreporter.write_sep("!", f"a flaky test is a defect; kept in {FLAKY_FILE}", yellow=True, bold=True)
            keep(self._config.rootpath / FLAKY_FILE, text)


def count_as_flaky(terminal: TerminalReporter, failed: dict[str, list[pytest.TestReport]]) -> None:
    """In the last line a flaky test has passed, and it is flaky; it is no failure and no error."""
    terminal.stats.pop("failed", None)
    terminal.stats.pop("error", None)
    passed = terminal.stats.setdefault("passed", [])
    counted = {report.nodeid for report in passed}
    passed += [reports[0] for name, reports in failed.items() if name not in counted]
    terminal.stats["flaky"] = [reports[0] for reports in failed.values()]
    terminal._main_color = None  # it is chosen anew, with the kinds that the last line names


def describe(flaky: dict[str, list[pytest.TestReport]]) -> str:
    """Each test and everything that its first failure says."""
    lines = []
    for name, reports in flaky.items():
        lines.append(f"FLAKY (failed once, passed alone): {name}")
        for report in reports:
            lines += ["", f"at {report.when}, after {report.duration:.2f} s:", report.longreprtext]
            lines += [f"--- {title} ---\n{text}" for title, text in report.sections]
        lines.append("")
    return "\n".join(lines)


def keep(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as kept:
        kept.write(f"=== {dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M:%S} UTC ===\n{text}\n")
