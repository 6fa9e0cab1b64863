"""Tools for testing what is built on Indelible: a scripted model, part builders, a clock to move, a simulated provider.

The provider needs aiohttp and is loaded when somebody asks for it (tests/testing/test_provider_replies.py).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from indelible.testing import parts
from indelible.testing.clock import ManualClock
from indelible.testing.model import ScriptedModel, ScriptEnded

if TYPE_CHECKING:
    from indelible.testing.provider import SeenRequest, SimulatedProvider, faults, write_reply

_OF_THE_PROVIDER: Final = frozenset({"SeenRequest", "SimulatedProvider", "faults", "write_reply"})

__all__ = [
    "ManualClock",
    "ScriptEnded",
    "ScriptedModel",
    "SeenRequest",
    "SimulatedProvider",
    "faults",
    "parts",
    "write_reply",
]


def __getattr__(name: str) -> Any:
    if name not in _OF_THE_PROVIDER:
        raise AttributeError(f"module 'indelible.testing' has no attribute {name!r}")
    return getattr(importlib.import_module("indelible.testing.provider"), name)
