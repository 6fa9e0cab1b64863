"""`indelible chats`, `indelible usage` and `indelible debug`: what is stored, listed, shown, exported and imported.

They need no worker, so they may run beside a chat or a server. `indelible chats` alone is `indelible chats list`, and
`indelible debug 2` is short for `indelible debug show 2`. The printing is terminal/reports.py and records.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from indelible.cli import options
from indelible.errors import Invalid

if TYPE_CHECKING:
    from indelible.api.shapes import ExportFormat
    from indelible.app.app import User

CHATS_EXAMPLES: Final = """\b
Examples:
  indelible chats                          chats in the default database
  indelible chats --database chats.db      chats in another one
  indelible chats --server http://127.0.0.1:8000
  indelible chats show 2                   the conversation, as Markdown
  indelible chats search lighthouse keep   full-text search; the last word may be a beginning
  indelible chats export 2 -o story.json   all of it, with every branch
  indelible chats export 2 --format md     the active branch, for people
  indelible chats export 2 --files -o story.zip
                                           with its files, as an archive
  indelible chats import story.json        a new chat with the same messages
  indelible chats import story.zip         the same, with its files"""

chats_app: Final = typer.Typer(cls=options.make_group_with_default("list"), rich_markup_mode=None)
ChatArgument = Annotated[
    str | None, typer.Argument(metavar="CHAT", help="Number or id of a chat (default: the most recent).")
]
LimitOption = Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Maximum number of chats.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@chats_app.callback(epilog=CHATS_EXAMPLES)
def chats() -> None:
    """List, show, search, export and import chats.

    Without a command, 'list' runs.
    """


@chats_app.command("list")
def list_all(
    *,
    limit: LimitOption = 20,
    json: JsonOption = False,
    database: options.DatabaseOption = None,
    server: options.ServerOption = None,
) -> None:
    """List chats, pinned first, then most recently updated first.

    Each line has number, time, status, id and title.
    """
    opened = options.open_to_read(server=server, database=database)

    from indelible.terminal.reports import list_chats

    options.print_lines(opened, lambda user: list_chats(user, limit=limit, as_json=json))


@chats_app.command()
def show(
    chat: ChatArgument = None, *, database: options.DatabaseOption = None, server: options.ServerOption = None
) -> None:
    """Show the conversation of a chat, as Markdown."""
    opened = options.open_to_read(server=server, database=database)

    from indelible.terminal.reports import load_conversation

    async def load(user: User) -> Iterable[str]:
        return (await load_conversation(user, chat)).splitlines()

    options.print_lines(opened, load)


@chats_app.command()
def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS...", help="Words that a chat must have, all of them.")],
    *,
    limit: LimitOption = 20,
    json: JsonOption = False,
    database: options.DatabaseOption = None,
    server: options.ServerOption = None,
) -> None:
    """Search titles and messages, newest match first. The last word may be the beginning of one."""
    query = " ".join(words).strip()
    if not query:
        raise options.UsageMistake("There are no words to search for. Example: indelible chats search lighthouse")
    opened = options.open_to_read(server=server, database=database)

    from indelible.terminal.reports import search_chats

    options.print_lines(opened, lambda user: search_chats(user, query, limit=limit, as_json=json))


@chats_app.command("export")
def export_chat(
    chat: ChatArgument = None,
    *,
    format: Annotated[
        str, typer.Option("--format", metavar="json|md", help="All of it as JSON, or the active branch as Markdown.")
    ] = "json",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.", show_default="stdout")
    ] = None,
    files: Annotated[bool, typer.Option("--files", help="With its files, as a ZIP archive (needs -o).")] = False,
    database: options.DatabaseOption = None,
    server: options.ServerOption = None,
) -> None:
    """Export a chat. The JSON can be imported, here or elsewhere, and so can the archive with its files."""
    if format not in ("json", "md"):
        raise options.UsageMistake(f"Unknown format {format!r}. Choose json or md.")
    if files and (output is None or format != "json"):
        raise options.UsageMistake("--files writes an archive: name it with -o FILE, and leave --format out.")
    opened = options.open_to_read(server=server, database=database)

    from indelible.terminal.reports import find_chat

    async def load(user: User) -> bytes:
        found = await find_chat(user, chat)
        if files and output is not None:
            await found.export_archive(output)
            return b""
        return await found.export(cast("ExportFormat", format))

    content = options.with_user(opened, load)
    if files:
        return
    if output is None:
        sys.stdout.buffer.write(content if content.endswith(b"\n") else content + b"\n")
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        raise options.UsageMistake(f"Can't write {output}: {error.strerror}.") from error


@chats_app.command("import")
def import_chats(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Exported chats; - is standard input.")],
    *,
    database: options.DatabaseOption = None,
    server: options.ServerOption = None,
) -> None:
    """Import exported chats (JSON, or archives with files) as new ones, and print their ids.

    If a file is missing, nothing is imported. One with a mistake is refused whole; the files before it stay imported.
    """
    for file in files:
        _refuse_unreadable(file)  # before a database is created
    opened = options.open_to_read(server=server, database=database, creates=True)

    import asyncio

    from indelible.app.archive import is_archive

    async def load(user: User) -> None:
        for file in files:
            if str(file) != "-" and await asyncio.to_thread(is_archive, file):
                chat = await user.import_archive(file)
            else:
                content = await asyncio.to_thread(_read, file)
                try:
                    chat = await user.import_chat(content)
                except Invalid as error:
                    raise Invalid(f"{file}: {error}") from error
            sys.stdout.write(f"{chat.id}\n")
            sys.stdout.flush()

    options.with_user(opened, load)


def _refuse_unreadable(file: Path) -> None:
    if str(file) == "-":
        if sys.stdin is None:
            raise options.UsageMistake("Can't read -: standard input is closed.")
        return
    try:
        os.close(os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)))  # a pipe may have no writer yet
    except OSError as error:
        raise options.UsageMistake(f"Can't read {file}: {error.strerror}.") from error


def _read(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise options.UsageMistake(f"Can't read {file}: {error.strerror}.") from error


USAGE_EXAMPLES: Final = """\b
Examples:
  indelible usage                              the last 30 days
  indelible usage --since 2026-11-01 --until 2026-11-15
  indelible usage --by-user                    of everybody, for admins
  indelible usage --user ada --json
  indelible usage --server http://127.0.0.1:8000"""

DateOption = Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="Day of UTC, included.")]


def usage(
    *,
    since: DateOption = None,
    until: DateOption = None,
    user: Annotated[str | None, typer.Option(metavar="NAME", help="Of this user; admins only.")] = None,
    by_user: Annotated[bool, typer.Option("--by-user", help="Of every user; admins only.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    database: options.DatabaseOption = None,
    server: options.ServerOption = None,
) -> None:
    """Show what was used: turns, tokens and costs by day and model.

    Failed and interrupted replies count too, because they were paid for. Costs are those of known prices.
    """
    first, last = _parse_day(since, "--since"), _parse_day(until, "--until")
    if first is not None and last is not None and first > last:
        raise options.UsageMistake(f"--since {since} is after --until {until}.")
    opened = options.open_to_read(server=server, database=database)

    from indelible.terminal.reports import load_usage

    options.print_lines(
        opened,
        lambda opener: load_usage(opener, since=first, until=last, of=user, by_user=by_user, as_json=json),
    )


def _parse_day(text: str | None, option: str) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise options.UsageMistake(f"Can't read {option} {text!r} as a day. Write 2026-11-01.") from None


DEBUG_EXAMPLES: Final = """\b
Examples:
  indelible debug                       runs of the most recent chat
  indelible debug 2                     runs of another: its number or id
  indelible debug --run RUN             requests and responses of one run
  indelible debug --run RUN --json      the same, as JSON
  indelible debug replay RUN            replay its last response
  indelible debug replay RUN --attempt 1.2 --save strange.json"""

debug_app: Final = typer.Typer(cls=options.make_group_with_default("show"), rich_markup_mode=None)


@debug_app.callback(epilog=DEBUG_EXAMPLES)
def debug() -> None:
    """Show what was sent to providers and what came back.

    Without a command, 'show' runs.
    """


@debug_app.command("show")
def show_runs(
    chat: Annotated[
        str | None, typer.Argument(metavar="CHAT", help="Number or id of a chat (default: the most recent).")
    ] = None,
    *,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Show only this run, with headers and bodies.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Do not shorten bodies.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Maximum number of runs.")] = 20,
    database: options.DatabaseOption = None,
) -> None:
    """Show the runs of a chat as a tree, or one run in full."""
    settings = options.read_settings(database=database)
    options.refuse_missing_database(settings)

    from indelible.cli.records import print_records

    print_records(settings, chat_name=chat, run_id=run, limit=limit, full=full, as_json=json)


@debug_app.command()
def replay(
    target: Annotated[str, typer.Argument(metavar="RUN|FILE", help="A run, or a file made with --save.")],
    *,
    attempt: Annotated[
        str | None, typer.Option(metavar="STEP.NUMBER", help="Attempt to replay.", show_default="the last")
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Save it as a test fixture.")] = None,
    database: options.DatabaseOption = None,
) -> None:
    """Replay a recorded response offline and show the parsed blocks."""
    settings = options.read_settings(database=database)
    if not Path(target).is_file():
        options.refuse_missing_database(settings)

    from indelible.cli.records import print_replay

    print_replay(settings, target, place=attempt, save_to=save)
