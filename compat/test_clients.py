"""Every client in its own environment, against one server. A client that is not content exits with an error."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from tests.support.node import run_module

from compat.model import STORY
from compat.running import CLIENTS, NPM_PACKAGES, PYTHON, CompatServer, run_compat_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompatServer]:
    with run_compat_server(tmp_path_factory.mktemp("compat")) as running:
        yield running


@pytest.mark.parametrize("client", ["openai.mjs", "ai_sdk.mjs", "ai_sdk.mjs -6"])
async def test_a_client_from_npm_works_unmodified(server: CompatServer, client: str) -> None:
    module, *options = client.split()
    status, printed = await run_module(CLIENTS / module, server.url, str(server.release), *options)
    assert (status, printed) == (0, "ok\n"), printed


async def test_the_ai_sdks_provider_of_openai_works_unmodified(server: CompatServer) -> None:
    status, printed = await run_module(
        CLIENTS / "ai_sdk_openai.mjs", server.url, str(server.release), packages=NPM_PACKAGES
    )
    assert (status, printed) == (0, "ok\n"), printed


@pytest.mark.parametrize("client", sorted(path.name for path in CLIENTS.glob("*.py")))
def test_a_client_in_python_works_unmodified(server: CompatServer, client: str) -> None:
    command = [str(PYTHON), str(CLIENTS / client), server.url, str(server.release)]
    quiet = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=quiet)
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stdout + done.stderr


def text_of(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def test_kill_9_in_the_middle_of_a_stream_and_the_sdk_resumes_at_the_last_number(tmp_path: Path) -> None:
    with run_compat_server(tmp_path) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        seen: list[Any] = []
        with client.responses.create(input="hold", background=True, stream=True) as stream:
            for event in stream:
                seen.append(event)
                if text_of(seen).endswith("word9"):
                    break
        server.kill()
        server.release.touch()
        server.start()
        response_id, last = seen[0].response.id, seen[-1].sequence_number
        rest = list(client.responses.retrieve(response_id, stream=True, starting_after=last))
        assert text_of([*seen, *rest]) == STORY
        assert rest[-1].type == "response.completed"
        assert [item.status for item in rest[-1].response.output] == ["incomplete", "completed"]
        assert list(client.responses.retrieve(response_id, stream=True)) == [*seen, *rest]
