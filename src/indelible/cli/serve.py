"""`indelible serve`: the HTTP server, with a worker unless `--no-worker`. The process is server/process.py."""

from __future__ import annotations

import sys
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

EXAMPLES: Final = """\b
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
    database: DatabaseOption = None,
    model: ModelOption = None,
    tools: ToolsOption = None,
    client_tools: ClientToolsOption = None,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Serve only; run replies with 'indelible worker'.")
    ] = False,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = None,
    access_log: Annotated[bool | None, typer.Option("--access-log", help="Log every request.")] = None,
) -> None:
    """Serve chats over HTTP, with a web page and a worker.

    Prints its URL when it is ready and, on a terminal, a link to log in with if a login is needed. On SIGTERM it tells
    clients to reconnect and hands off running replies.
    """
    settings = read_settings(
        host=host,
        port=port,
        database=database,
        model=model,
        log_format=log_format,
        log_level=log_level,
        access_log=access_log,
    )
    if not no_worker:
        check_model(settings)

    from indelible.server.app import Server  # noqa: PLC0415  (see main.py)
    from indelible.server.authentication import needs_login  # noqa: PLC0415
    from indelible.server.process import serve as run_server  # noqa: PLC0415
    from indelible.tracing import traces_exported  # noqa: PLC0415

    with logging_as(settings), traces_exported():
        found, theirs = load_named_tools(tools, settings), load_client_tools(client_tools)
        server = Server(
            settings, tools=found, client_tools=theirs, worker=not no_worker, offers_login=sys.stdout.isatty()
        )
        details = describe_process(settings, tools=len(found) + len(theirs), worker=not no_worker)
        details["login"] = "needed" if needs_login(settings) else "none"

        def report(url: str) -> None:
            print_ready(settings, f"Indelible is ready at {url}", url=url, **details)
            if server.login_path is not None:
                login_url = f"{url}{server.login_path}"
                print_ready(settings, f"Log in once, within the hour, at {login_url}", login_url=login_url)

        run_server(server, on_ready=report)
