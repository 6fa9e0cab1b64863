"""docs/glossary.md lists every rule that a comment cites by its number, and no comment cites what is elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
CITED = re.compile(r"\b[Rr]ules? (\d+(?:\.\d+)?)|\b(R(?:1[0-2]|[1-9])|P(?:10|[1-9]))\b")
ELSEWHERE = re.compile(r"\b(?:SPEC|DESIGN|HOUSE|PAGE) ?§? ?[0-9]")
TEXTS = {file: file.read_text() for folder in ("src", "tests", "bench") for file in (ROOT / folder).rglob("*.py")}


def test_every_cited_rule_stands_on_the_page() -> None:
    _, _, rules = (ROOT / "docs" / "glossary.md").read_text().partition("\n## Rules\n")
    rows = re.findall(r"^\| ([^|]+) \|", rules, re.MULTILINE)
    known = {number for row in rows for number in row.split(", ")}
    cited = {number or letter for text in TEXTS.values() for number, letter in CITED.findall(text)}
    assert len(cited) > 50
    assert cited <= known, cited - known


def test_no_comment_cites_a_document_from_elsewhere() -> None:
    assert [str(file) for file, text in TEXTS.items() if ELSEWHERE.search(text)] == []
