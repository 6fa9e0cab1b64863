"""The README's examples run as they stand and print what it says; every page can be found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLE = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
EXAMPLES = list(EXAMPLE.finditer((ROOT / "README.md").read_text()))


def test_the_readme_has_an_example() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"example-{EXAMPLES.index(example) + 1}")
def test_an_example_of_the_readme_runs_and_prints_what_it_says(example: re.Match[str], tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(example["code"])

    done = subprocess.run(
        [sys.executable, "-W", "error", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert example["output"] in {None, done.stdout}


def test_every_page_that_the_readme_and_the_docs_link_to_exists() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
        if "://" not in link
    ]

    assert links
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_every_page_of_the_docs_is_in_their_index() -> None:
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")} - {"index.md"}

    assert pages - set(re.findall(r"\]\(([^)]+)\)", (docs / "index.md").read_text())) == set()
