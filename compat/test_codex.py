"""Codex CLI as it comes from npm, with its own binary: a conversation, a command that it runs here, and a resumption.

It declares tools that this server does not have (web search, namespaces of further tools), and sends the whole
conversation with every request, thoughts and results of its tools included.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support.node import NODE

from compat.running import NPM_PACKAGES, run_compat_server

CODEX = NPM_PACKAGES / "node_modules" / "@openai" / "codex" / "bin" / "codex.js"
CONFIG = """
model = "compat"
model_provider = "indelible"

[model_providers.indelible]
name = "Indelible"
base_url = "{url}/v1"
env_key = "INDELIBLE_TOKEN"
wire_api = "responses"
"""


def test_codex_talks_runs_a_command_and_resumes(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (work / "greeting.txt").write_text("good morning")

    def run(*arguments: str) -> list[dict[str, Any]]:
        """The events that `codex exec` prints."""
        # There is no sandbox in a container, and none is needed: the only command is our model's.
        options = ["--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox"]
        own = {"CODEX_HOME": str(home), "INDELIBLE_TOKEN": "none", "OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}
        done = subprocess.run(
            [NODE, CODEX, "exec", *arguments[:-1], *options, arguments[-1]],
            cwd=work,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def read(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
        done = [event["item"] for event in events if event["type"] == "item.completed"]
        return [item for item in done if item["type"] == kind]

    with run_compat_server(tmp_path) as server:
        (home / "config.toml").write_text(CONFIG.format(url=server.url))
        said = run("Say hello")
        assert [item["text"] for item in read(said, "agent_message")] == ["You said: Say hello"]
        assert said[-1]["type"] == "turn.completed"
        commanded = run("resume", "--last", "Use the shell")
        (command,) = read(commanded, "command_execution")
        assert (command["exit_code"], command["aggregated_output"]) == (0, "good morning")
        assert "good morning" in read(commanded, "agent_message")[-1]["text"]
        (recited,) = read(run("resume", "--last", "recite"), "agent_message")
        lines = [line for line in recited["text"].splitlines() if line.startswith(("user: ", "assistant: ", "tool: "))]
        spoken = [line for line in lines if "<" not in line and "Chunk ID" not in line]
        assert spoken[:3] == ["user: Say hello", "assistant: You said: Say hello", "user: Use the shell"], recited
        assert any(line.startswith("assistant: called exec_command(") for line in spoken), recited
        assert spoken[-1] == "user: recite"
