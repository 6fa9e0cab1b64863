"""No warning of ours that a test does not expect: a test fails if a logger of ours said one that it has not declared.

Much that goes wrong is caught, logged and made good by the next poll (`except Exception`): a test sees the right end,
and nothing of what happened on the way. The log is where it shows. A test, a class or a file (`pytestmark`) says what
it provokes, in regular expressions that are searched for in `LEVEL logger: message (Error: its text)`:

    @pytest.mark.may_log("WARNING indelible.tools.run: the tool .* raised an error")

What was declared need not happen; a test that is about a record looks at `caplog`. Processes that tests start are not
watched here, but `ProcessHarness` reads their log. tests/test_log_records.py checks this file.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator, Sequence
from typing import Final

import pytest

OURS: Final = logging.getLogger("indelible")

DATABASE_AWAY: Final = (
    "DatabaseUnreachable",
    "cannot be acquired now and is skipped",
    "chat released: the database failed",
    "failed and will be retried: .*(cannot be reached|was lost|closed the connection)",
    "failed because the database did",
    "notification connection was lost",
    "notifications between processes are delayed",
    "waits for the database",
    "writing the journal failed",
)
"""What may be said while a test takes the database away, or its connections."""

BY_CHANCE: Final = (r"did not stop within 0\.05 s and was abandoned",)
"""What a machine that stalls may make any test say: the harness gives tools and models that little time to stop."""


class NotedRecords(logging.Handler):
    """What our loggers said, from WARNING on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{record.levelname} {record.name}: {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            told = traceback.TracebackException(type(error), error, None, lookup_lines=False).format_exception_only()
            line += f" ({[*told][-1].strip()})"
        self.lines.append(line)

    def list_unexpected(self, declared: Sequence[str]) -> list[str]:
        known = (*declared, *BY_CHANCE)
        return [line for line in self.lines if not any(re.search(pattern, line) for pattern in known)]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "may_log(*patterns): warnings of ours that this test provokes")


@pytest.fixture(autouse=True)
def no_unexpected_log_records(request: pytest.FixtureRequest) -> Iterator[None]:
    noted = NotedRecords()
    OURS.addHandler(noted)
    yield
    OURS.removeHandler(noted)
    declared = [pattern for mark in request.node.iter_markers("may_log") for pattern in mark.args]
    unexpected = noted.list_unexpected(declared)
    assert not unexpected, "logged, and not declared with `may_log`:\n" + "\n".join(dict.fromkeys(unexpected))
