"""A terminal of ten lines, and what a person sees on it, the scrollback included."""

from __future__ import annotations

import io
import re

from rich.console import Console

WIDTH, HEIGHT = 60, 10
TOKEN = re.compile(r"\x1b\[(?P<number>\??\d*(?:;\d+)*)(?P<command>[A-Za-z])|(?P<text>[^\x1b\r\n]+|.)", re.DOTALL)


class Paper(io.StringIO):
    """As much of a terminal as rich uses, with an endless scrollback."""

    def read_off(self) -> str:
        lines, row, column = [""], 0, 0
        for token in TOKEN.finditer(self.getvalue()):
            match token["command"], token["text"]:
                case "A", _:
                    row = max(row - int(token["number"] or 1), len(lines) - HEIGHT, 0)
                case "K", _:
                    lines[row] = ""
                case None, "\r":
                    column = 0
                case None, "\n":
                    row, column = row + 1, 0
                    lines += [""] * (row + 1 - len(lines))
                case None, str(text):
                    end = column + len(text)
                    lines[row] = lines[row][:column].ljust(column) + text + lines[row][end:]
                    column = end
                    assert column <= WIDTH
                case _:
                    pass
        return "\n".join(line.rstrip() for line in lines)


def make_console(paper: io.StringIO) -> Console:
    """For this terminal, whatever the one of the test run is."""
    return Console(
        file=paper,
        force_terminal=True,
        width=WIDTH,
        height=HEIGHT,
        highlight=False,
        color_system="standard",
        _environ={"TERM": "xterm"},
    )
