"""The short form of `make compat`: the clients from npm, unmodified, against a server.

`openai`, and `Chat` with `DefaultChatTransport` of both versions of the AI SDK. The programs are those of `make compat`
(compat/clients/), which also kills the server and runs the hook in a React page in Chromium.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from compat.model import CompatModel
from compat.running import CLIENTS
from compat.server import CONFIRM, weather_here
from tests.support.app_harness import AppHarness
from tests.support.node import run_module


@pytest.mark.parametrize(
    ("client", "options"),
    [("openai.mjs", ()), ("ai_sdk.mjs", ()), ("ai_sdk.mjs", ("-6",))],
    ids=["openai", "ai-7", "ai-6"],
)
async def test_a_client_from_npm_works_unmodified(
    harness: AppHarness, tmp_path: Path, client: str, options: tuple[str, ...]
) -> None:
    release = tmp_path / "release"
    server = await harness.start_server(
        models={"compat": CompatModel(release)}, model="compat", tools=[weather_here], client_tools=[CONFIRM]
    )

    status, printed = await run_module(CLIENTS / client, server.url, str(release), *options)
    assert (status, printed) == (0, "ok\n"), printed
