"""A group of commands, one of which runs if none is named: `indelible debug 2` is `indelible debug show 2`.

Must stay true (tests/test_cli_commands.py): the shell completes the names of the group's commands.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


def make_group_with_default(default: str) -> type[TyperGroup]:
    """The class of a group whose command `default` runs if none is named."""

    class GroupWithDefault(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            is_named = bool(args) and (args[0] in self.commands or args[0] == "--help" or self._is_misspelt(args[0]))
            if is_named or ctx.resilient_parsing:  # the shell asks what may come next
                return super().parse_args(ctx, args)
            return super().parse_args(ctx, [default, *args])

        def _is_misspelt(self, word: str) -> bool:
            """Whether this can only be the name of a command: the default one has no arguments."""
            has_arguments = any(param.param_type_name == "argument" for param in self.commands[default].params)
            return not word.startswith("-") and not has_arguments

    return GroupWithDefault
