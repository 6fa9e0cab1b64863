"""Recorded files that must not change unseen, and the one way to write and to compare them.

A test makes a text of what the product does and hands it to `compare`. Usually that fails if the recorded file says
anything else, and shows the difference. With FREEZE set, it writes the file:

    FREEZE=1 make test ARGS=tests/frozen

So whoever changes what people or programs see records it anew, and the difference is in the commit, where it is listed
and meant. Nothing here decides what is right: that is in the tests beside this folder.

What differs from run to run has a placeholder (`Placeholders`): an id is `<chat 1>`, by its kind and the order in which
it is first seen, in whatever other names it stands; times, secrets and ports have no number.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import Any, Final

from indelible.ids import ULID

ROOT: Final = Path(__file__).parent
IS_WRITING: Final = bool(os.environ.get("FREEZE"))
_SHOWN: Final = 120
"""So many lines of a difference are shown."""


def compare(name: str, text: str) -> None:
    """Fail if the recorded file of this name has another text; or write it."""
    path = ROOT / name
    text = text.rstrip("\n") + "\n"
    if IS_WRITING:
        path.write_text(text, encoding="utf-8")
        return
    recorded = path.read_text(encoding="utf-8")
    if recorded == text:
        return
    lines = difflib.unified_diff(recorded.splitlines(), text.splitlines(), f"recorded {name}", "now", lineterm="", n=4)
    shown = [*lines]
    more = [f"… and {len(shown) - _SHOWN} more lines"] if len(shown) > _SHOWN else []
    raise AssertionError(
        f"tests/frozen/{name} says something else. If every difference is meant, record it anew (FREEZE=1 make test "
        "ARGS=tests/frozen) and list the differences in the commit; otherwise mend the code.\n"
        + "\n".join(shown[:_SHOWN] + more)
    )


_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?")
_HTTP_TIME: Final = re.compile(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT")
_DAY: Final = re.compile(r"\b20\d\d-\d\d-\d\d\b")
_UNIX_TIME: Final = re.compile(r"\b1[789]\d{8}(?:\.\d+)?\b")
_SECRET: Final = re.compile(r"\b(id[tsl])_[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])")
_START_OF_TOKEN: Final = re.compile(r'"idt_[A-Za-z0-9_-]{4}"')
_CURSOR: Final = re.compile(r'("(?:cursor|next|previous)": )"(?![<a-z_]*<)[A-Za-z0-9_-]{8,}"')
_PORT: Final = re.compile(r"(127\.0\.0\.1|localhost):\d{2,5}\b")
_ID: Final = re.compile(rf"(?<![A-Za-z0-9])([a-z]+)_((?:{ULID})+)")
_PLACES: Final = ((_TIME, "<time>"), (_HTTP_TIME, "<time>"), (_DAY, "<day>"), (_UNIX_TIME, "<unix time>"))


class Placeholders:
    """Stable names for what is new in every run. One for a whole recording, so that an id keeps its name."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def put_into(self, text: str) -> str:
        for pattern, place in _PLACES:
            text = pattern.sub(place, text)
        text = _START_OF_TOKEN.sub('"<start of idt>"', _SECRET.sub(r"<secret \1>", text))
        text = _ID.sub(self._name, _PORT.sub(r"\1:<port>", text))
        return _CURSOR.sub(r'\1"<cursor>"', text)

    def write_json(self, value: Any) -> str:
        """JSON as people read it. The order of fields is no promise, so they are sorted."""
        return self.put_into(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False))

    def _name(self, found: re.Match[str]) -> str:
        kind, all_of_it = found[1], found[2]
        ends = [all_of_it[start : start + 26] for start in range(0, len(all_of_it), 26)]
        for end in ends:
            if end not in self._names:
                self._counts[kind] = self._counts.get(kind, 0) + 1
                self._names[end] = f"{kind} {self._counts[kind]}"
        names = [self._names[end] for end in ends]
        is_its_own = len(names) == 1 and names[0].startswith(f"{kind} ")
        return f"<{names[0]}>" if is_its_own else f"{kind}_" + "".join(f"<{name}>" for name in names)
