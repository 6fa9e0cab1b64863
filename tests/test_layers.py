"""The tree is as the docs and the headers describe it: layers, small folders, and neighbours that exist."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "indelible"
MAX_MODULES = 22
ONE_PER_THING = ("cli",)
"""Folders with one module per command: they grow, and stay easy to find one's way in."""


def test_the_documented_layers_are_those_that_are_checked() -> None:
    picture = re.search(r"```layers\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), re.DOTALL)
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = [contract for contract in config["tool"]["importlinter"]["contracts"] if contract["type"] == "layers"]

    assert picture is not None
    documented = [line.split(" · ") for line in picture[1].splitlines()]
    assert documented == [re.findall(r"\w+", layer) for layer in contract["layers"]]


def test_a_folder_is_small_and_a_module_is_read_in_one_sitting() -> None:
    folders = Counter(path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    lengths = {
        path.relative_to(PACKAGE).as_posix(): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")
    }

    assert {name: n for name, n in folders.items() if n > MAX_MODULES and name not in ONE_PER_THING} == {}
    assert {name: n for name, n in lengths.items() if n > 500} == {}


def test_every_module_that_a_page_or_a_module_names_exists() -> None:
    """From the package or the repository on; a module names its neighbours from its own folder or one above it on."""
    tests = {path.name for path in (ROOT / "tests").rglob("*.py")}
    missing = []
    for page in [*(ROOT / "docs").rglob("*.md"), *PACKAGE.rglob("*.py")]:
        folders = [ROOT, PACKAGE, *(folder for folder in page.parents if folder.is_relative_to(PACKAGE))]
        for name in re.findall(r"(?<![\w/.-])([\w/-]+\.(?:py|js))\b", page.read_text()):
            is_the_readers_own = page.suffix == ".md" and "/" not in name
            if not (is_the_readers_own or name in tests or any((folder / name).is_file() for folder in folders)):
                missing.append((page.relative_to(ROOT).as_posix(), name))
    assert missing == []


def test_every_test_that_a_page_or_a_header_names_exists() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = {(page.name, test) for page in pages for test in re.findall(r"tests/[\w/]+\.py", page.read_text())}

    assert named
    assert sorted((page, test) for page, test in named if not (ROOT / test).is_file()) == []
