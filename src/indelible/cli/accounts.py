"""`indelible user`, `indelible token` and `indelible login-link`: who may use a server, with or without a running one.

These commands open an existing database and never create one: a misspelt name must not become a new, empty database.
The use cases of users are service/accounts.py; logging in is docs/login.md. A new token is printed once, alone on
standard output, for scripts to keep, and so is a link that logs the first admin in: whoever may open the database may
have one. A server prints such a link by itself only on a terminal (serve.py): what it prints elsewhere ends in a log,
which more people read than may be admins.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import typer

from indelible.cli.options import DatabaseOption, UsageMistake, read_settings, refuse_missing_database
from indelible.errors import Invalid, NotFound

if TYPE_CHECKING:
    from indelible.api.shapes import Scope, TokenInfo, UserRole
    from indelible.settings import Settings
    from indelible.store.accounts import Account, AccountStore

T = TypeVar("T")


def with_accounts(database: str | None, work: Callable[[AccountStore], Awaitable[T]]) -> T:
    """Run `work` on the accounts of the database."""
    settings = read_settings(database=database)
    refuse_missing_database(settings)

    import asyncio

    from indelible.clock import SystemClock
    from indelible.store.accounts import AccountStore
    from indelible.store.store import Store

    async def run() -> T:
        async with Store.open(settings.database) as store:
            return await work(AccountStore(store.database, clock=SystemClock()))

    return asyncio.run(run())


def print_table(rows: list[tuple[str, ...]]) -> None:
    from indelible.terminal.reports import align

    sys.stdout.write("".join(f"{line}\n" for line in align(rows)))


def show_time(what: str, moment: datetime | None, *, otherwise: str = "") -> str:
    return otherwise if moment is None else f"{what} {moment.astimezone():%Y-%m-%d %H:%M}"


USER_EXAMPLES: Final = """\b
Examples:
  indelible user add ada                  a user; 'indelible token create ada' lets her log in
  indelible user add grace --role admin   one who may manage users
  indelible user list
  indelible user disable ada              her tokens and sessions end, and open streams are cut
  indelible user enable ada
  indelible user role ada admin"""

user_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Add, list, disable and enable users.", epilog=USER_EXAMPLES
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]


@user_app.command()
def add(
    name: NameArgument,
    *,
    role: Annotated[str, typer.Option(metavar="admin|user", help="What the user may do.")] = "user",
    database: DatabaseOption = None,
) -> None:
    """Add a user."""
    checked = _check_role(role)
    with_accounts(database, lambda accounts: accounts.add_user(name, role=checked))
    sys.stdout.write(f"Added {name}. Let them log in with: indelible token create {shlex.quote(name)}\n")


@user_app.command("list")
def list_users(*, database: DatabaseOption = None) -> None:
    """List users. Each line has name, role, state and since when."""
    found = with_accounts(database, lambda accounts: accounts.list_users())
    print_table(
        [
            (user.name, user.role, "disabled" if user.disabled else "active", show_time("since", user.created_at))
            for user in found
        ]
    )


@user_app.command()
def disable(name: NameArgument, *, database: DatabaseOption = None) -> None:
    """Disable a user: tokens and sessions end until the user is enabled again. Chats stay."""
    _check_change(name, disabled=True)
    with_accounts(database, lambda accounts: accounts.update_user(name, disabled=True))
    sys.stdout.write(f"Disabled {name}. Running servers notice within 2 seconds.\n")


@user_app.command()
def enable(name: NameArgument, *, database: DatabaseOption = None) -> None:
    """Enable a user again."""
    with_accounts(database, lambda accounts: accounts.update_user(name, disabled=False))
    sys.stdout.write(f"Enabled {name}.\n")


@user_app.command("role")
def change_role(
    name: NameArgument,
    role: Annotated[str, typer.Argument(metavar="admin|user", help="What the user may do.")],
    *,
    database: DatabaseOption = None,
) -> None:
    """Change a user's role."""
    checked = _check_role(role)
    _check_change(name, role=checked)
    with_accounts(database, lambda accounts: accounts.update_user(name, role=checked))
    sys.stdout.write(f"{name} has the role {role} now.\n")


def _check_change(name: str, **change: Any) -> None:
    from indelible.service.accounts import check_change

    check_change(name, **change)


def _check_role(role: str) -> UserRole:
    if role not in ("admin", "user"):
        raise UsageMistake(f"Unknown role {role!r}. Choose admin or user.")
    return cast("UserRole", role)


TOKEN_EXAMPLES: Final = """\b
Examples:
  indelible token create ada                           may read and write her chats, without end
  indelible token create ada --scope read --expires 30d --label backup
  indelible token list ada
  indelible token revoke token_01kc3v…                 its sessions end, and open streams are cut
  INDELIBLE_TOKEN=$(indelible token create ada) indelible chats --server http://127.0.0.1:8000"""  # noqa: S105  (no password)

token_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Create, list and revoke tokens.", epilog=TOKEN_EXAMPLES
)

_UNITS: Final = {"m": 60, "h": 3600, "d": 86400}


@token_app.command()
def create(
    name: NameArgument,
    *,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="read|write|admin",
            help="What it may do. Repeatable.",
            show_default="read and write",
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="30d", help="Valid for so many minutes (m), hours (h) or days (d).")
    ] = None,
    label: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "",
    database: DatabaseOption = None,
) -> None:
    """Create a token and print it. It is shown once: only its hash is stored."""
    scopes = _check_token(label, scope or ["read", "write"])
    expires_at = None if expires is None else datetime.now(UTC) + _parse_duration(expires)

    async def make(accounts: AccountStore) -> str:
        user = await _find_user(accounts, name)
        return (await accounts.create_token(user.id, label=label, scopes=scopes, expires_at=expires_at))[1]

    sys.stdout.write(with_accounts(database, make) + "\n")


@token_app.command("list")
def list_tokens(name: NameArgument, *, database: DatabaseOption = None) -> None:
    """List a user's tokens, newest first. Each line has id, beginning, scopes, last use, end and label."""

    async def load(accounts: AccountStore) -> list[TokenInfo]:
        return await accounts.list_tokens((await _find_user(accounts, name)).id)

    print_table(
        [
            (
                token.id,
                f"{token.prefix}…",
                ",".join(token.scopes),
                show_time("used", token.last_used_at, otherwise="never used"),
                show_time("until", token.expires_at, otherwise="no end"),
                token.label,
            )
            for token in with_accounts(database, load)
        ]
    )


@token_app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as in the list.")],
    *,
    database: DatabaseOption = None,
) -> None:
    """Revoke a token."""
    with_accounts(database, lambda accounts: accounts.revoke_token(token_id))
    sys.stdout.write("Revoked. Running servers notice within 2 seconds.\n")


async def _find_user(accounts: AccountStore, name: str) -> Account:
    found = await accounts.find_user(name)
    if found is None:
        raise NotFound(f"There is no user named {name}. Add one with: indelible user add {shlex.quote(name)}")
    return found


def _check_token(label: str, given: list[str]) -> list[Scope]:
    """The scopes, each once."""
    from indelible.service.accounts import check_token

    scopes = list(dict.fromkeys(given))
    try:
        check_token(label, scopes)
    except Invalid as error:
        raise UsageMistake(str(error)) from error
    return cast("list[Scope]", scopes)


def _parse_duration(text: str) -> timedelta:
    found = re.fullmatch(r"([1-9]\d{0,5})([mhd])", text)
    if found is None:
        raise UsageMistake(f"Can't read {text!r} as a time. Write 90m, 12h or 30d.")
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])


LOGIN_LINK_EXAMPLES: Final = """\b
Examples:
  indelible login-link                                for the server of the default database
  indelible login-link --url https://chats.example    for one behind a proxy
  docker exec CONTAINER indelible login-link"""


def login_link(
    *,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The server's address in your browser.", show_default="the running server"),
    ] = None,
    database: DatabaseOption = None,
) -> None:
    """Print a link that logs the first admin in, once and within the hour."""
    settings = read_settings(database=database)
    place = _find_place(settings) if url is None else _check_url(url)

    async def offer(accounts: AccountStore) -> str:
        from indelible.clock import SystemClock
        from indelible.server.login import offer_login

        return await offer_login(accounts, clock=SystemClock())

    sys.stdout.write(f"{place}{with_accounts(database, offer)}\n")


def _find_place(settings: Settings) -> str:
    """Where this database's server listens, or else where the settings say that one would."""
    from indelible.server.authentication import normalize_base_path
    from indelible.server.process import find_on_this_machine, write_url
    from indelible.store.database.sqlite_file import find_holder

    holder = find_holder(settings.database)
    found = None if holder is None else holder.server_url
    if found is None and not settings.port:
        raise UsageMistake("Can't tell where the server listens. Name its address with --url.")
    found = found or find_on_this_machine(write_url(settings.host, settings.port))
    return found + normalize_base_path(settings.base_path)


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    try:
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        is_address = False
    if not is_address or parts.query or parts.fragment or len(url.split()) != 1 or not url.isprintable():
        raise UsageMistake(f"{url!r} is not the address of a server. Write https://chats.example.")
    return url.rstrip("/")
