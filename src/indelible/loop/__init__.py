"""The loop: one turn of a chat, with no database. Start at run.py."""

from indelible.concurrency.scope import CancelScope, Cause
from indelible.content.assemble import assemble, finalize
from indelible.loop.result import FinishedStep, TurnResult
from indelible.loop.run import run
from indelible.models.retry import RetryPolicy
from indelible.tools.run import ToolLimits

__all__ = [
    "CancelScope",
    "Cause",
    "FinishedStep",
    "RetryPolicy",
    "ToolLimits",
    "TurnResult",
    "assemble",
    "finalize",
    "run",
]
