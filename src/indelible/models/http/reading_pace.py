"""When to read the next chunk of a reply.

Tokens arrive one by one, but nobody sees them one by one: the journal writes them in rows. A reader that is woken for
every token spends most of its time on waking. So whoever begins a turn may set `reading_pace`, a context variable that
applies to its task and the tasks that this one starts; http_model.py asks it before each read, and awaits what it
returns. Meanwhile tokens gather in the socket's buffer. A stop cancels this wait as it cancels a read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final

Pace = Callable[[], Awaitable[None] | None]
"""Returns what to await before the next read, or None to read at once."""

reading_pace: Final[ContextVar[Pace | None]] = ContextVar("reading_pace", default=None)
