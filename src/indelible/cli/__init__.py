"""The command line: `indelible …`."""

from indelible.cli.cli import main

__all__ = ["main"]
