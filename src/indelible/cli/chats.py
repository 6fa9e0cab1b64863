"""`indelible chats`: list, show, search, export and import chats.

They need no worker, so they may run beside a chat or a server. `indelible chats` alone is `indelible chats list`. The
printing is terminal/reports.py and terminal/reports.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from indelible.cli.default_command import make_group_with_default
from indelible.cli.opening import open_to_read
from indelible.cli.options import DatabaseOption, ServerOption, UsageMistake
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

chats_app: Final = typer.Typer(cls=make_group_with_default("list"), rich_markup_mode=None)
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
    database: DatabaseOption = None,
    server: ServerOption = None,
) -> None:
    """List chats, pinned first, then most recently updated first.

    Each line has number, time, status, id and title.
    """
    opened = open_to_read(server=server, database=database)

    from indelible.terminal.reports import list_chats, to_json
    from indelible.terminal.session import print_lines

    async def load(user: User) -> Iterable[str]:
        return [to_json(await user.chats(limit=limit))] if json else await list_chats(user, limit=limit)

    print_lines(opened, load)


@chats_app.command()
def show(chat: ChatArgument = None, *, database: DatabaseOption = None, server: ServerOption = None) -> None:
    """Show the conversation of a chat, as Markdown."""
    opened = open_to_read(server=server, database=database)

    from indelible.terminal.reports import load_conversation
    from indelible.terminal.session import print_lines

    async def load(user: User) -> Iterable[str]:
        return (await load_conversation(user, chat)).splitlines()

    print_lines(opened, load)


@chats_app.command()
def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS...", help="Words that a chat must have, all of them.")],
    *,
    limit: LimitOption = 20,
    json: JsonOption = False,
    database: DatabaseOption = None,
    server: ServerOption = None,
) -> None:
    """Search titles and messages, newest match first. The last word may be the beginning of one."""
    query = " ".join(words).strip()
    if not query:
        raise UsageMistake("There are no words to search for. Example: indelible chats search lighthouse")
    opened = open_to_read(server=server, database=database)

    from indelible.terminal.reports import search_chats, to_json
    from indelible.terminal.session import print_lines

    async def load(user: User) -> Iterable[str]:
        if json:
            return [to_json(await user.chats(search=query, limit=limit))]
        return await search_chats(user, query, limit=limit)

    print_lines(opened, load)


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
    database: DatabaseOption = None,
    server: ServerOption = None,
) -> None:
    """Export a chat. The JSON can be imported, here or elsewhere, and so can the archive with its files."""
    if format not in ("json", "md"):
        raise UsageMistake(f"Unknown format {format!r}. Choose json or md.")
    if files and (output is None or format != "json"):
        raise UsageMistake("--files writes an archive: name it with -o FILE, and leave --format out.")
    opened = open_to_read(server=server, database=database)

    import asyncio

    from indelible.terminal.reports import find_chat

    async def load() -> bytes:
        async with opened as user:
            found = await find_chat(user, chat)
            if files and output is not None:
                await found.export_archive(output)
                return b""
            return await found.export(cast("ExportFormat", format))

    content = asyncio.run(load())
    if files:
        return
    if output is None:
        sys.stdout.buffer.write(content if content.endswith(b"\n") else content + b"\n")
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        raise UsageMistake(f"Can't write {output}: {error.strerror}.") from error


@chats_app.command("import")
def import_chats(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Exported chats; - is standard input.")],
    *,
    database: DatabaseOption = None,
    server: ServerOption = None,
) -> None:
    """Import exported chats (JSON, or archives with files) as new ones, and print their ids.

    If a file is missing, nothing is imported. One with a mistake is refused whole; the files before it stay imported.
    """
    for file in files:
        _refuse_unreadable(file)  # before a database is created
    opened = open_to_read(server=server, database=database, creates=True)

    import asyncio

    from indelible.app.archive import is_archive

    async def run() -> None:
        async with opened as user:
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

    asyncio.run(run())


def _refuse_unreadable(file: Path) -> None:
    if str(file) == "-":
        if sys.stdin is None:
            raise UsageMistake("Can't read -: standard input is closed.")
        return
    try:
        os.close(os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)))  # a pipe may have no writer yet
    except OSError as error:
        raise UsageMistake(f"Can't read {file}: {error.strerror}.") from error


def _read(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise UsageMistake(f"Can't read {file}: {error.strerror}.") from error
