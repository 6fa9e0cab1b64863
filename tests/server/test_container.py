"""The Dockerfile and compose.yaml, checked without a daemon: what they copy is there, what they start exists.

The rules are those that hadolint and reviewers ask for: pinned bases, no root, no shell around the program, locked
packages, no secret in the image. The health check is really run, against a real server.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml  # type: ignore[import-untyped]
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.support.app_harness import AppHarness
from tests.support.commands import run_indelible
from tests.support.process_harness import choose_port
from tests.test_locks import read_lock

from indelible.settings import Settings

ROOT = Path(__file__).parents[2]
DRAIN_AND_HAND_OVER_S = 75


class Instruction(NamedTuple):
    name: str
    text: str

    def parse_list(self) -> list[str]:
        """The exec form: a JSON list, without a shell that would swallow signals."""
        listed: list[str] = json.loads(self.text[self.text.index("[") :])
        return listed


def read_stages() -> list[list[Instruction]]:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    stages: list[list[Instruction]] = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        instruction = Instruction(*line.split(maxsplit=1))
        if instruction.name == "FROM":
            stages.append([])
        stages[-1].append(instruction)
    return stages


STAGES = read_stages()
FINAL = STAGES[-1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())


def get(name: str) -> list[Instruction]:
    return [instruction for instruction in FINAL if instruction.name == name]


def read_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for found in get("ENV") for pair in shlex.split(found.text))


def test_every_file_that_is_copied_exists_and_is_not_ignored() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        source
        for stage in STAGES
        for found in stage
        if found.name == "COPY" and not found.text.startswith("--from=")
        for source in found.text.split()[:-1]
    ]

    assert set(copied) == allowed
    assert [source for source in copied if not (ROOT / source).exists()] == []


def test_the_image_keeps_the_rules_of_good_images() -> None:
    bases = [stage[0].text.split()[0] for stage in STAGES]
    everything = " ".join(found.text for stage in STAGES for found in stage)
    installs = [
        found.text for stage in STAGES for found in stage if found.name == "RUN" and "pip install" in found.text
    ]

    assert all(re.fullmatch(r"[a-z/]+:[\w.-]*\d[\w.-]*", base) for base in bases), "a base without a version"
    assert len(STAGES) > 1, "build tools in the image"
    assert get("USER")[-1].text.isdigit(), "a user by number, so that an orchestrator knows that it is not root"
    assert int(get("USER")[-1].text) > 0
    assert not [found for stage in STAGES for found in stage if found.name == "ADD"]
    assert all("--no-cache-dir" in text for text in installs)
    assert all("--require-hashes" in text or "--no-deps" in text for text in installs)
    assert not re.search(r"(TOKEN|KEY|PASSWORD|SECRET)\s*=", everything)
    assert "://" not in re.sub(r"http://127\.0\.0\.1", "", everything), "a host that a build would ask"


def test_what_the_image_starts_exists_and_its_settings_are_settings() -> None:
    command = [*get("ENTRYPOINT")[0].parse_list(), *get("CMD")[0].parse_list()]
    names = {name.removeprefix("INDELIBLE_").lower() for name in read_environment() if name.startswith("INDELIBLE_")}

    assert command == ["indelible", "serve"]
    assert names <= set(Settings.model_fields)
    assert get("EXPOSE")[0].text == str(Settings.model_fields["port"].default)


def test_doctor_finds_no_fault_in_the_image_as_the_docs_run_it(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    (line,) = [
        line for line in page.splitlines() if line.startswith("docker run") and line.endswith("indelible doctor")
    ]
    words = shlex.split(line)
    given = [name for option, name in pairwise(words) if option == "--env"]
    image = read_environment() | {"INDELIBLE_DATABASE": str(tmp_path / "indelible.db"), "PATH": os.environ["PATH"]}

    found = run_indelible("doctor", directory=tmp_path, **image, **dict.fromkeys(given, "x" * 32))

    assert "FAILED" not in found.stdout
    assert (found.returncode, found.stderr) == (0, "")


def test_the_image_holds_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    locked = read_lock("run.lock")

    assert {"postgres", "tracing"} <= set(extras)
    wanted = {canonicalize_name(Requirement(line).name) for lines in extras.values() for line in lines}
    assert wanted <= set(locked)


async def test_the_health_check_passes_on_a_server_and_fails_without_one(harness: AppHarness) -> None:
    server = await harness.start_server()
    check = get("HEALTHCHECK")[0].parse_list()
    assert check[0] == "python"

    def run(port: int) -> int:
        return subprocess.run(
            [sys.executable, *check[1:]], env={"INDELIBLE_PORT": str(port)}, capture_output=True, check=False
        ).returncode

    assert await asyncio.to_thread(run, int(server.url.rpartition(":")[2])) == 0
    assert await asyncio.to_thread(run, choose_port()) != 0


@pytest.mark.parametrize("service", ["server", "worker"])
def test_a_service_of_ours_runs_a_real_command_with_real_settings_and_has_time_to_stop(service: str) -> None:
    described = COMPOSE["services"][service]
    variables = set(described["environment"])

    known = run_indelible(*described["command"], "--help")

    assert known.returncode == 0, known.stderr
    assert variables <= {f"INDELIBLE_{name.upper()}" for name in Settings.model_fields} | {
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
    }
    assert "INDELIBLE_TOKEN" in variables, "it listens on all addresses"
    assert described["stop_grace_period"] == f"{DRAIN_AND_HAND_OVER_S}s"
    assert float(read_environment()["INDELIBLE_DRAIN_S"]) + 45 <= DRAIN_AND_HAND_OVER_S


def test_what_a_service_needs_is_there_and_no_password_is_written_down() -> None:
    services = COMPOSE["services"]

    for described in services.values():
        for name, needed in described.get("depends_on", {}).items():
            assert needed["condition"] == "service_healthy"
            assert "healthcheck" in services[name] or services[name]["image"] == "indelible"
        for volume in described.get("volumes", []):
            assert volume.split(":")[0] in COMPOSE["volumes"]
        secrets = [value for name, value in described["environment"].items() if re.search("TOKEN|KEY|PASSWORD", name)]
        assert all(str(value).startswith("${") for value in secrets)
    assert (ROOT / services["server"]["build"] / "Dockerfile").exists()
    assert re.search(r":\d", services["database"]["image"])
    assert all(port.startswith("127.0.0.1:") for port in services["server"]["ports"])
