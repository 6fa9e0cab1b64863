"""No item of the acceptance list and no property test is lost (tests/frozen/promises.txt)."""

from __future__ import annotations

from tests.frozen.promises import find_promises, list_lost, write_promises
from tests.frozen.recording import IS_WRITING, compare


def test_no_promise_that_was_recorded_is_lost() -> None:
    promises = find_promises()
    if IS_WRITING:
        compare("promises.txt", write_promises(promises))

    assert list_lost(promises) == [], (
        "These have no test any more. Bring the test back; or, if it has another name now, or what it promised is gone "
        "on purpose, record it anew (FREEZE=1 make test ARGS=tests/frozen) and say so in the commit."
    )
