"""docs/rules.md has every rule that a comment in the package cites by its number."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
CITED = re.compile(r"\brules? (\d+(?:\.\d+)?)|\b(R(?:1[0-2]|[1-9])|P(?:10|[1-9]))\b")


def test_every_cited_rule_stands_on_the_page() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "rules.md").read_text(), re.MULTILINE)
    known = {number for row in rows for number in row.split(", ")}
    cited = {
        number or letter for file in (ROOT / "src").rglob("*.py") for number, letter in CITED.findall(file.read_text())
    }
    assert len(cited) > 30
    assert cited <= known, cited - known
