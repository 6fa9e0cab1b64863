"""`indelible user`: the users of a database. Their use cases are service/accounts.py; logging in is docs/login.md."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from indelible.cli.accounts import print_table, show_time, with_accounts
from indelible.cli.options import DatabaseOption, UsageMistake

if TYPE_CHECKING:
    from indelible.api.shapes import UserRole

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
            (user.name, user.role, "disabled" if user.disabled else "active", show_time(user.created_at, otherwise=""))
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
