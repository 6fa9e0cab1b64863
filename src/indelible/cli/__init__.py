"""The command line: `indelible …`, one module per command, assembled in main.py."""

from indelible.cli.main import main

__all__ = ["main"]
