"""A docstring, read for a model: what the tool does, and what each argument is.

Only one form of parameter list is understood, the indented `Args:` section, and only when
every entry in it names a parameter. Then the entries go to the schema, next to the arguments
they describe, and leave the description. Anything else stays text: a docstring that was parsed
half right would give the model something that its author did not write.

Must stay true (tests/tools/test_tool.py): a docstring without a clean `Args:` section
comes back word for word, and no entry is both in the description and in the schema.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

_HEADING: Final = re.compile(r"(Args|Arguments|Parameters):\s*")
_ENTRY: Final = re.compile(r"\s+(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


def split_docstring(docstring: str, parameters: Collection[str]) -> tuple[str, dict[str, str]]:
    """The description without its `Args:` section, and that section as {parameter: text}."""
    lines = docstring.splitlines()
    start = next((number for number, line in enumerate(lines) if _HEADING.fullmatch(line)), None)
    if start is None:
        return docstring, {}
    end = start + 1
    while end < len(lines) and (not lines[end].strip() or lines[end][0].isspace()):
        end += 1
    entries = _read_entries([line for line in lines[start + 1 : end] if line.strip()])
    if not entries or not set(entries) <= set(parameters):
        return docstring, {}
    before, after = "\n".join(lines[:start]).strip(), "\n".join(lines[end:]).strip()
    return "\n\n".join(filter(None, (before, after))), entries


def _read_entries(lines: list[str]) -> dict[str, str]:
    """The entries by name; empty when a line is neither an entry nor indented below one."""
    entries: dict[str, str] = {}
    name = ""
    for line in lines:
        if _indent_of(line) > _indent_of(lines[0]) and name:
            entries[name] = f"{entries[name]} {line.strip()}".strip()
            continue
        entry = _ENTRY.fullmatch(line)
        if entry is None or _indent_of(line) < _indent_of(lines[0]):
            return {}
        name = entry[1]
        entries[name] = entry[2].strip()
    return entries


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())
