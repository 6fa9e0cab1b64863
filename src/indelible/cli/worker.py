"""`indelible worker`: a worker without the HTTP server. Any number of them share a PostgreSQL database."""

from __future__ import annotations

import sys
from typing import Final

from indelible.cli.options import DatabaseOption, ModelOption, ToolsOption, check_model, load_named_tools, read_settings

EXAMPLES: Final = """\b
Examples:
  indelible worker --database postgresql://ada:secret@host/chats
  indelible worker --tools mytools:TOOLS"""


def worker(*, database: DatabaseOption = None, model: ModelOption = None, tools: ToolsOption = None) -> None:
    """Run a worker without the HTTP server.

    Start as many as you like on one PostgreSQL database. On SIGTERM it hands off running replies.
    """
    settings = read_settings(database=database, model=model)
    check_model(settings)

    import asyncio  # noqa: PLC0415  (see main.py)

    from indelible.server.process import run_worker  # noqa: PLC0415

    found = load_named_tools(tools, settings)
    asyncio.run(run_worker(settings, tools=found, on_ready=_print_ready))


def _print_ready() -> None:
    sys.stdout.write("Indelible's worker is ready\n")
    sys.stdout.flush()
