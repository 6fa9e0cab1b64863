"""Tools for testing what is built on Indelible: a scripted model, part builders, a clock to move."""

from indelible.testing import parts
from indelible.testing.clock import ManualClock
from indelible.testing.model import ScriptedModel, ScriptEnded

__all__ = ["ManualClock", "ScriptEnded", "ScriptedModel", "parts"]
