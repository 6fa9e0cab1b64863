"""A chat in the terminal, in memory: the smallest thing that is built on the loop.

`open_chat` finds out where it runs. In a terminal it is a conversation with a prompt (chat.py);
with a pipe on either side it is a filter (plain.py).
"""

from __future__ import annotations

import sys

from rich.console import Console

from indelible.clock import Clock
from indelible.terminal.chat import TerminalChat
from indelible.terminal.conversation import Conversation
from indelible.terminal.demo_tools import make_demo_tools
from indelible.terminal.plain import answer_lines

__all__ = ["Conversation", "TerminalChat", "answer_lines", "make_demo_tools", "open_chat"]


def open_chat(conversation: Conversation, *, clock: Clock) -> int:
    """Chat over standard input and output until they or the user end it; returns the exit status."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        TerminalChat(conversation, console=Console(highlight=False), clock=clock).run()
        return 0
    return answer_lines(conversation, sys.stdin, out=sys.stdout, errors=sys.stderr)
