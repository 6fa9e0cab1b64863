"""The wheel: what is in it, and that it works where nothing but it and its dependencies is installed.

The fresh environment is made without a network, and still holds what `pip install indelible` would put
there and no more: the wheel is really installed, and of the running environment only those
distributions are linked in that the wheel's own metadata asks for, and what these ask for. So a
dependency that is used but not declared fails here, and so does a module that was left out of the wheel.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from urllib.request import urlopen

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import indelible

ROOT = Path(__file__).parent.parent
HEAVY = (
    "aiohttp aiosqlite alembic anthropic asyncpg fastapi genai_prices httpx2 openai prometheus_client pydantic "
    "pydantic_settings rich sqlalchemy starlette typer uvicorn yarl"
)

TURN = """
import asyncio, pathlib, sys

import indelible
from indelible import tool
from indelible.content import Message, Text
from indelible.loop import run
from indelible.testing import ScriptedModel, parts

assert pathlib.Path(indelible.__file__).is_relative_to(sys.prefix), indelible.__file__

@tool
def double(number: int) -> str:
    "Twice the number."
    return str(number * 2)

model = ScriptedModel(
    streams=[
        [parts.tool_call("c1", "double", '{"number": 21}'), parts.finish("tool_calls")],
        [parts.text_delta("t", "It is 42."), parts.finish("stop")],
    ]
)
question = [Message(role="user", blocks=[Text(text="Twice 21?")])]
end = asyncio.run(run(model, question, tools=[double]))
for message in end.messages:
    if message.role == "tool":
        print("tool:", message.blocks[0].output)
    elif message.text:
        print(message.text)
print(end.reason)
"""


def run(*command: str | Path, at: Path) -> str:
    """Run a command that sees neither the source tree nor the settings of this process; its output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "INDELIBLE_"))}
    done = subprocess.run(command, cwd=at, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", place, ROOT, at=place)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def fresh_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that holds the wheel and what it asks for."""
    place = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", place, at=place)
    python = place / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel, at=place)
    site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    for distribution in find_dependencies(read_requirements(wheel)):
        link(distribution, site_packages)
    return python


def read_requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {Path(name).parts[0] for name in archive.namelist() if ".dist-info/" in name}
        return metadata.PathDistribution(zipfile.Path(archive, f"{folder}/")).requires or []


def find_dependencies(requirements: list[str]) -> list[metadata.Distribution]:
    """Every distribution that these need, directly or not, as it is installed here."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[Requirement] = set()
    wanted = select_requirements(requirements, extras=set())
    while wanted:
        requirement = wanted.pop()
        distribution = found.setdefault(canonicalize_name(requirement.name), metadata.distribution(requirement.name))
        assert requirement.specifier.contains(distribution.version), f"{requirement}: {distribution.version}"
        if requirement not in seen:
            seen.add(requirement)
            wanted += select_requirements(distribution.requires or [], extras=requirement.extras)
    return list(found.values())


def select_requirements(lines: list[str], *, extras: set[str]) -> list[Requirement]:
    """Those that hold on this machine, with these extras."""
    return [
        requirement
        for requirement in map(Requirement, lines)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras})
    ]


def link(distribution: metadata.Distribution, site_packages: Path) -> None:
    names = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    assert names, distribution.name
    for name in names:
        (site_packages / name).symlink_to(Path(str(distribution.locate_file(name))))


def test_the_wheel_holds_the_package_its_types_and_its_licence_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())

    package = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert "indelible/py.typed" in names
    assert package <= names
    beside = {name for name in names if not name.startswith("indelible/")}
    assert {Path(name).name for name in beside} == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "LICENSE"}


def test_the_installed_command_tells_its_version(fresh_python: Path) -> None:
    output = run(fresh_python.parent / "indelible", "--version", at=fresh_python.parent)

    assert metadata.version("indelible") in output


def test_the_installed_wheel_runs_a_turn_with_a_tool(fresh_python: Path, tmp_path: Path) -> None:
    (tmp_path / "turn.py").write_text(TURN)

    output = run(fresh_python, "-W", "error", "turn.py", at=tmp_path)

    assert output.splitlines() == ["tool: 42", "It is 42.", "stop"]


def test_the_installed_command_migrates_a_database(fresh_python: Path, tmp_path: Path) -> None:
    output = run(fresh_python.parent / "indelible", "migrate", "--database", "chats.db", at=tmp_path)

    assert output.startswith("Created chats.db (schema ")
    assert (tmp_path / "chats.db").stat().st_size > 0


def test_the_installed_command_serves(fresh_python: Path, tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "INDELIBLE_"))}
    command = [str(fresh_python.parent / "indelible"), "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=clean, stdout=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            url = served.stdout.readline().split()[-1]
            with urlopen(f"{url}/readyz") as ready, urlopen(url) as page:  # noqa: S310  (our own)
                assert (ready.status, page.status) == (200, 200)
            assert f"process {served.pid}, database indelible.db (schema " in served.stdout.readline()
        finally:
            served.terminate()
        assert served.wait() == 0


def test_every_package_that_the_code_imports_is_a_declared_dependency(wheel: Path) -> None:
    declared = {canonicalize_name(Requirement(text).name) for text in read_requirements(wheel)}
    declared.add(canonicalize_name("pydantic-core"))  # the other half of pydantic, which pins it
    providers = metadata.packages_distributions()
    imported = {
        module.split(".")[0]
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for module in list_imports(node)
    } - {"indelible", *sys.stdlib_module_names}

    undeclared = {name for name in imported if not declared & set(map(canonicalize_name, providers[name]))}

    assert undeclared == set()


def list_imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        return [node.module]
    return []


def test_importing_the_front_door_loads_nothing_heavy(fresh_python: Path, tmp_path: Path) -> None:
    show = f"import sys, indelible; print(*sorted(set('{HEAVY}'.split()) & set(sys.modules)))"

    assert run(fresh_python, "-c", show, at=tmp_path).split() == []


def test_every_public_name_is_in_the_module_that_is_named_for_it() -> None:
    assert [name for name in indelible.__all__ if getattr(indelible, name, None) is None] == []


def test_the_package_names_the_systems_and_the_pythons_that_it_runs_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.split(" :: ") for line in project["classifiers"]]
    assert [line[1:] for line in named if line[0] == "Operating System"] == [["POSIX"]]
    versions = [line[2] for line in named if line[:2] == ["Programming Language", "Python"] and "." in line[2]]
    assert versions == ["3.11", "3.12", "3.13"]
    assert project["requires-python"] == f">={versions[0]}"
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in versions
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert f"python: {json.dumps(versions)}" in workflow, "CI runs on the versions that are named"
