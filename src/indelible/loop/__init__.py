"""The loop: one turn of a chat, with no database. Start at run.py."""

from indelible.fold import fold, seal
from indelible.loop.record import StepRecord, TurnResult
from indelible.loop.run import run
from indelible.models.retry import RetryPolicy
from indelible.scope import Cause, Scope
from indelible.tools.run import ToolLimits

__all__ = ["Cause", "RetryPolicy", "Scope", "StepRecord", "ToolLimits", "TurnResult", "fold", "run", "seal"]
