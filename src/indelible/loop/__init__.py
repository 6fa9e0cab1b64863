"""The loop: one turn of a chat, with no database. Start at run.py."""

from indelible.concurrency.scope import CancelScope, Cause
from indelible.content.assemble import assemble, conclude, finalize
from indelible.loop.host import (
    FinishedStep,
    TurnAwaitingClient,
    TurnCompleted,
    TurnEnd,
    TurnFailed,
    TurnHost,
    TurnInterrupted,
    TurnLeaseLost,
    TurnShutDown,
)
from indelible.loop.options import TurnOptions
from indelible.loop.run import run
from indelible.loop.step import save_end
from indelible.models.retry import RetryPolicy
from indelible.tools.run import ToolLimits

__all__ = [
    "CancelScope",
    "Cause",
    "FinishedStep",
    "RetryPolicy",
    "ToolLimits",
    "TurnAwaitingClient",
    "TurnCompleted",
    "TurnEnd",
    "TurnFailed",
    "TurnHost",
    "TurnInterrupted",
    "TurnLeaseLost",
    "TurnOptions",
    "TurnShutDown",
    "assemble",
    "conclude",
    "finalize",
    "run",
    "save_end",
]
