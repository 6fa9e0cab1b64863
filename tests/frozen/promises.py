"""What the tests promise, counted: items of the acceptance list, property tests, and tests.

    python -m tests.frozen.promises     prints the numbers, and what is lost since it was recorded

An item S7 is a test whose name begins with `test_s7_`; one test may have several. A property test has `@given` on it,
or is a machine of Hypothesis. They are known by their names alone, so a test may move to another file.
"""

from __future__ import annotations

import ast
import re
from typing import Final, NamedTuple

from tests.frozen.recording import ROOT

TESTS: Final = ROOT.parent
FILE: Final = ROOT / "promises.txt"
_ITEMS: Final = re.compile(r"test_((?:s\d+_)+)")


class Promises(NamedTuple):
    items: set[str]
    properties: set[str]
    tests: int


def find_promises() -> Promises:
    items: set[str] = set()
    properties: set[str] = set()
    tests = 0
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any("StateMachine" in ast.unparse(base) for base in node.bases):
                properties.add(node.name)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                tests += node.name.startswith("test_")
                if found := _ITEMS.match(node.name):
                    items |= {item.upper() for item in found[1].split("_") if item}
                if any(ast.unparse(each).startswith("given(") for each in node.decorator_list):
                    properties.add(node.name)
    return Promises(items, properties, tests)


def write_promises(promises: Promises) -> str:
    items = sorted(promises.items, key=lambda item: (int(item[1:]), item))
    numbers = f"# {len(items)} items, {len(promises.properties)} property tests, {promises.tests} tests when recorded"
    return "\n".join([numbers, *items, *sorted(promises.properties)])


def list_lost(promises: Promises) -> list[str]:
    """What is recorded and no longer there."""
    recorded = [line for line in FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [line for line in recorded if line not in promises.items | promises.properties]


if __name__ == "__main__":
    found = find_promises()
    print(write_promises(found).splitlines()[0].removesuffix(" when recorded"))  # noqa: T201  (a command)
    print("\n".join(["Lost:", *list_lost(found)]))  # noqa: T201
