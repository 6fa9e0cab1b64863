"""Which of our files take part in something: those of which at least one function was called."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_PACKAGE = "/indelible/"


class ExecutedFiles:
    """Counts between `begin` and `end`, in this thread and in threads that start after it was made."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.is_counting = False

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self.is_counting and event == "call":
            _, is_ours, name = frame.f_code.co_filename.rpartition(_PACKAGE)
            if is_ours and "/tests/" not in frame.f_code.co_filename:
                self.found.add(name)

    @contextmanager
    def counting(self) -> Iterator[set[str]]:
        self.found.clear()
        self.is_counting = True
        try:
            yield self.found
        finally:
            self.is_counting = False


@contextmanager
def watching_files() -> Iterator[ExecutedFiles]:
    """Open what is to be watched within this block: threads that are there already are not seen."""
    executed = ExecutedFiles()
    before = sys.getprofile()
    threading.setprofile(executed.note)
    sys.setprofile(executed.note)
    try:
        yield executed
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
