"""The picture of the layers in the docs is the contract that `make check` holds the code to."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_documented_layers_are_those_that_are_checked() -> None:
    picture = re.search(r"```layers\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), re.DOTALL)
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = [contract for contract in config["tool"]["importlinter"]["contracts"] if contract["type"] == "layers"]

    assert picture is not None
    documented = [line.split(" · ") for line in picture[1].splitlines()]
    assert documented == [re.findall(r"\w+", layer) for layer in contract["layers"]]


def test_every_test_that_a_page_or_a_header_names_exists() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = {(page.name, test) for page in pages for test in re.findall(r"tests/[\w/]+\.py", page.read_text())}

    assert named
    assert sorted((page, test) for page, test in named if not (ROOT / test).is_file()) == []
