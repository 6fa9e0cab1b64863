"""`indelible token`: the tokens of a user. A new one is printed once, alone on standard output, for scripts to keep."""

from __future__ import annotations

import re
import shlex
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from indelible.cli.accounts import print_table, show_time, with_accounts
from indelible.cli.options import DatabaseOption, UsageMistake
from indelible.errors import Invalid, NotFound

if TYPE_CHECKING:
    from indelible.api.shapes import Scope, TokenInfo
    from indelible.store.accounts import Account, AccountStore

EXAMPLES: Final = """\b
Examples:
  indelible token create ada                           may read and write her chats, without end
  indelible token create ada --scope read --expires 30d --label backup
  indelible token list ada
  indelible token revoke token_01kc3v…                 its sessions end, and open streams are cut
  INDELIBLE_TOKEN=$(indelible token create ada) indelible chats --server http://127.0.0.1:8000"""

token_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Create, list and revoke tokens.", epilog=EXAMPLES
)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
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
    scopes = _check(label, scope or ["read", "write"])
    expires_at = None if expires is None else datetime.now(UTC) + _parse_duration(expires)

    async def make(accounts: AccountStore) -> str:
        user = await _find(accounts, name)
        return (await accounts.create_token(user.id, label=label, scopes=scopes, expires_at=expires_at))[1]

    sys.stdout.write(with_accounts(database, make) + "\n")


@token_app.command("list")
def list_tokens(name: NameArgument, *, database: DatabaseOption = None) -> None:
    """List a user's tokens, newest first. Each line has id, beginning, scopes, last use, end and label."""

    async def load(accounts: AccountStore) -> list[TokenInfo]:
        return await accounts.list_tokens((await _find(accounts, name)).id)

    print_table(
        [
            (
                token.id,
                f"{token.prefix}…",
                ",".join(token.scopes),
                show_time(token.last_used_at, otherwise="never used"),
                show_time(token.expires_at, otherwise="no end"),
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


async def _find(accounts: AccountStore, name: str) -> Account:
    found = await accounts.find_user(name)
    if found is None:
        raise NotFound(f"There is no user named {name}. Add one with: indelible user add {shlex.quote(name)}")
    return found


def _check(label: str, given: list[str]) -> list[Scope]:
    """The scopes, each once."""
    from indelible.service.accounts import check_token  # noqa: PLC0415  (see options.py)

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
