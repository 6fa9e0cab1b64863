"""`indelible worker`: a worker without the HTTP server. Any number of them share a PostgreSQL database."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import typer

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

WORKER_EXAMPLES: Final = """\b
Examples:
  indelible worker --database postgresql://ada:secret@host/chats
  indelible worker --tools mytools:TOOLS
  indelible worker --port 9000                      /healthz, /readyz and /metrics for your monitoring"""


def worker(
    *,
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Address to listen on, with --port.", show_default="the 'host' setting"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            help="Port for /healthz, /readyz and /metrics; 0 picks a free one. Without it, the worker does not listen.",
        ),
    ] = None,
    database: DatabaseOption = None,
    model: ModelOption = None,
    tools: ToolsOption = None,
    client_tools: ClientToolsOption = None,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = None,
) -> None:
    """Run a worker without the HTTP server.

    Start as many as you like on one PostgreSQL database. On SIGTERM it hands off running replies. With --port it serves
    its health and metrics, and nothing else; the port setting has no effect.
    """
    settings = read_settings(
        host=host, port=port, database=database, model=model, log_format=log_format, log_level=log_level
    )
    check_model(settings)

    import asyncio

    from indelible.server.app import Server
    from indelible.server.process import run_worker
    from indelible.server.process import serve as run_server
    from indelible.tracing import traces_exported

    with logging_as(settings), traces_exported():
        found = load_named_tools(tools, settings)
        theirs = load_client_tools(client_tools)
        details = describe_process(settings, tools=len(found) + len(theirs))
        if port is None:
            on_ready = partial(print_ready, settings, "Indelible's worker is ready", **details)
            asyncio.run(run_worker(settings, tools=found, client_tools=theirs, on_ready=on_ready))
            return

        def report(url: str) -> None:
            print_ready(settings, f"Indelible's worker is ready; health and metrics at {url}", url=url, **details)

        run_server(Server(settings, tools=found, client_tools=theirs, only_health=True), on_ready=report)
