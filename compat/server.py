"""The server that the clients talk to: `python -m compat.server DATABASE PORT`. It prints its URL when it is ready."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from compat.model import BROWSER_TOOL, OWN_TOOL, CompatModel
from indelible.content import ToolSpec
from indelible.server.app import Server
from indelible.server.process import Process
from indelible.settings import load_settings
from indelible.tools.tool import tool


@tool(name=OWN_TOOL)
async def weather_here(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


CONFIRM = ToolSpec(name=BROWSER_TOOL, description="Ask the user.", input_schema={"type": "object"})


async def main(database: str, port: str) -> None:
    settings = load_settings(database=database, port=int(port), model="compat", auto_titles=False, retry_base_s=0)
    model = CompatModel(Path(database).with_name("release"))
    server = Server(settings, models={"compat": model}, tools=[weather_here], client_tools=[CONFIRM])
    await Process(server, on_ready=lambda url: print(url, flush=True)).serve()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
