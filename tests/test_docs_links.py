"""Every link in the documents leads somewhere: to a file of this repository and, after a #, to a heading in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


def list_anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    anchors: set[str] = set()
    for heading in HEADING.findall(CODE.sub("", page.read_text())):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        repeated = 0
        while (found := anchor if repeated == 0 else f"{anchor}-{repeated}") in anchors:
            repeated += 1
        anchors.add(found)
    return anchors


@pytest.mark.parametrize("page", [page.relative_to(ROOT).as_posix() for page in PAGES])
def test_every_link_leads_somewhere(page: str) -> None:
    path = ROOT / page
    text = re.sub(r"`[^`\n]*`", "", CODE.sub("", path.read_text()))
    broken = []
    for link in LINK.findall(text):
        target, _, anchor = link.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        found = (path.parent / target).resolve() if target else path
        is_there = found.exists() and found.is_relative_to(ROOT)
        if not is_there or (anchor and anchor not in list_anchors(found)):
            broken.append(link)
    assert broken == []
