"""`indelible worker`: a worker without the HTTP server. Any number of them share a PostgreSQL database."""

from __future__ import annotations

from functools import partial
from typing import Final

from indelible.cli.options import (
    ClientToolsOption,
    DatabaseOption,
    LogFormatOption,
    LogLevelOption,
    ModelOption,
    ToolsOption,
    check_model,
    describe_process,
    load_client_tools,
    load_named_tools,
    logging_as,
    print_ready,
    read_settings,
)

EXAMPLES: Final = """\b
Examples:
  indelible worker --database postgresql://ada:secret@host/chats
  indelible worker --tools mytools:TOOLS"""


def worker(
    *,
    database: DatabaseOption = None,
    model: ModelOption = None,
    tools: ToolsOption = None,
    client_tools: ClientToolsOption = None,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = None,
) -> None:
    """Run a worker without the HTTP server.

    Start as many as you like on one PostgreSQL database. On SIGTERM it hands off running replies.
    """
    settings = read_settings(database=database, model=model, log_format=log_format, log_level=log_level)
    check_model(settings)

    import asyncio  # noqa: PLC0415  (see main.py)

    from indelible.server.process import run_worker  # noqa: PLC0415
    from indelible.tracing import traces_exported  # noqa: PLC0415

    with logging_as(settings), traces_exported():
        found = load_named_tools(tools, settings)
        theirs = load_client_tools(client_tools)
        details = describe_process(settings, tools=len(found) + len(theirs))
        on_ready = partial(print_ready, settings, "Indelible's worker is ready", **details)
        asyncio.run(run_worker(settings, tools=found, client_tools=theirs, on_ready=on_ready))
