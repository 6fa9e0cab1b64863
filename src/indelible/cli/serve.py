"""`indelible serve` and `indelible worker`: the HTTP server, with a worker unless `--no-worker`, or a worker alone.

Any number of workers share a PostgreSQL database. The process is server/process.py.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated, Final

import typer

from indelible.cli import options

SERVE_EXAMPLES: Final = """\b
Examples:
  indelible serve                                   web page and API on http://127.0.0.1:8000
  indelible serve --port 0 --database chats.db      any free port, another database
  indelible serve --model openai:gpt-5.1            a real model; the key is in OPENAI_API_KEY
  indelible serve --tools mytools:TOOLS             let the model call your tools
  indelible serve --log-format json --log-level info
  INDELIBLE_TOKEN=secret indelible serve --host 0.0.0.0"""


def serve(
    *,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to listen on.", show_default="the 'host' setting")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER", help="Port to listen on; 0 picks a free one.", show_default="the 'port' setting"
        ),
    ] = None,
    database: options.DatabaseOption = None,
    model: options.ModelOption = None,
    tools: options.ToolsOption = None,
    client_tools: options.ClientToolsOption = None,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Serve only; run replies with 'indelible worker'.")
    ] = False,
    log_format: options.LogFormatOption = None,
    log_level: options.LogLevelOption = None,
    access_log: Annotated[bool | None, typer.Option("--access-log", help="Log every request.")] = None,
) -> None:
    """Serve chats over HTTP, with a web page and a worker.

    Prints its URL when it is ready and, on a terminal, a link to log in with if a login is needed. On SIGTERM it tells
    clients to reconnect and hands off running replies.
    """
    settings = options.read_settings(
        host=host,
        port=port,
        database=database,
        model=model,
        log_format=log_format,
        log_level=log_level,
        access_log=access_log,
    )
    if not no_worker:
        options.check_model(settings)

    from indelible.server.app import Server
    from indelible.server.authentication import needs_login
    from indelible.server.process import serve as run_server
    from indelible.tracing import traces_exported

    with options.logging_as(settings), traces_exported():
        found, theirs = options.load_named_tools(tools, settings), options.load_tools(client_tools, "--client-tools")
        server = Server(
            settings, tools=found, client_tools=theirs, worker=not no_worker, offers_login=sys.stdout.isatty()
        )
        details = options.describe_process(settings, tools=len(found) + len(theirs), worker=not no_worker)
        details["login"] = "needed" if needs_login(settings) else "none"

        def report(url: str) -> None:
            options.print_ready(settings, f"Indelible is ready at {url}", url=url, **details)
            if server.login_path is not None:
                login_url = f"{url}{server.login_path}"
                options.print_ready(settings, f"Log in once, within the hour, at {login_url}", login_url=login_url)

        run_server(server, on_ready=report)


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
    database: options.DatabaseOption = None,
    model: options.ModelOption = None,
    tools: options.ToolsOption = None,
    client_tools: options.ClientToolsOption = None,
    log_format: options.LogFormatOption = None,
    log_level: options.LogLevelOption = None,
) -> None:
    """Run a worker without the HTTP server.

    Start as many as you like on one PostgreSQL database. On SIGTERM it hands off running replies. With --port it serves
    its health and metrics, and nothing else; the port setting has no effect.
    """
    settings = options.read_settings(
        host=host, port=port, database=database, model=model, log_format=log_format, log_level=log_level
    )
    options.check_model(settings)

    import asyncio

    from indelible.server.app import Server
    from indelible.server.process import run_worker
    from indelible.server.process import serve as run_server
    from indelible.tracing import traces_exported

    with options.logging_as(settings), traces_exported():
        found = options.load_named_tools(tools, settings)
        theirs = options.load_tools(client_tools, "--client-tools")
        details = options.describe_process(settings, tools=len(found) + len(theirs))
        if port is None:
            on_ready = partial(options.print_ready, settings, "Indelible's worker is ready", **details)
            asyncio.run(run_worker(settings, tools=found, client_tools=theirs, on_ready=on_ready))
            return

        def report(url: str) -> None:
            options.print_ready(
                settings, f"Indelible's worker is ready; health and metrics at {url}", url=url, **details
            )

        run_server(Server(settings, tools=found, client_tools=theirs, only_health=True), on_ready=report)
