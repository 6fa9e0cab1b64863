"""docs/where-things-go.md says how many places a change has, and lists as many.

A place is a row of the first table of a section. The table at the top of the page has their numbers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from tests.test_docs_links import list_anchors

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "where-things-go.md"
TEXT: Final = PAGE.read_text()
PROMISED: Final = {
    anchor: int(number) for anchor, number in re.findall(r"^\| \[[^\]]+\]\(#([^)]+)\) \| (\d+) \|$", TEXT, re.MULTILINE)
}


def list_places() -> dict[str, list[str]]:
    """The rows of the places of each section, by its anchor."""
    places: dict[str, list[str]] = {}
    for title, section in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL):
        if table := re.search(r"^\| place \| .+\n\|[-|]+\|\n((?:\|.+\n)+)", section, re.MULTILINE):
            anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            places[anchor] = table[1].splitlines()
    return places


def test_every_section_with_places_is_in_the_table_and_the_other_way_round() -> None:
    assert set(PROMISED) == set(list_places()) <= list_anchors(PAGE)
    assert len(PROMISED) >= 8


@pytest.mark.parametrize("section", PROMISED)
def test_a_section_has_as_many_places_as_the_table_says(section: str) -> None:
    assert len(list_places()[section]) == PROMISED[section]


def test_every_identifier_in_a_row_is_in_a_file_that_its_section_names() -> None:
    """`_EXTRAS` and `load_extras` in `store/drafts.py`: who renames them finds this page."""
    missing = []
    for section, rows in list_places().items():
        quoted = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
        code = "".join(file.read_text() for name in quoted for file in find_files(name))
        names = [name for name in quoted if re.fullmatch(r"_?[A-Za-z]+(_[A-Za-z]+)*", name)]
        assert code or not names, section
        missing += [(section, name) for name in names if name not in code]
    assert missing == []


def find_files(name: str) -> list[Path]:
    """The file of this name, or the modules of the folder, in the package or in the repository."""
    found = [folder / name for folder in (ROOT / "src" / "indelible", ROOT) if "/" in name or "." in name]
    return [path for path in found if path.is_file()] + [file for path in found for file in path.glob("*.py")]
