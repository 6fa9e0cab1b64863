"""The short form of `make compat`: the clients from npm, unmodified, against a server; and the example in the docs.

`openai`, and `Chat` with `DefaultChatTransport` of both versions of the AI SDK. The programs are those of `make compat`
(compat/clients/), which also kills the server and runs the hook in a React page in Chromium.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from compat.model import CompatModel
from compat.running import CLIENTS
from compat.server import CONFIRM, weather_here
from tests.support.app_harness import AppHarness
from tests.support.node import run_module
from tests.support.running_server import say

from indelible.testing import ScriptedModel

OPENAI_PAGE = Path(__file__).parents[3] / "docs" / "openai.md"


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


async def test_the_example_for_node_runs(harness: AppHarness, tmp_path: Path) -> None:
    (example,) = re.findall(r"^```js\n(.*?)^```", OPENAI_PAGE.read_text(), re.MULTILINE | re.DOTALL)
    server = await harness.start_server(ScriptedModel([say("Once upon a time.")]))
    module = tmp_path / "example.mjs"
    module.write_text(example.replace("http://127.0.0.1:8000", server.url))

    status, printed = await run_module(module)
    assert (status, printed) == (0, "Once upon a time."), printed
