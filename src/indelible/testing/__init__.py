"""Tools for testing programs built on Indelible: a scripted model, part builders, a manual clock, a simulated provider.

Modules that need aiohttp are imported on first use (tests/testing/test_provider_replies.py): the provider, the model
that replays a recording, and the switch that forbids real model calls.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from indelible.testing import parts
from indelible.testing.clock import ManualClock
from indelible.testing.model import ScriptedModel, ScriptEnded

if TYPE_CHECKING:
    from indelible.models.http.client import forbid_model_calls
    from indelible.recording.replay import RecordedModel
    from indelible.testing.provider import SeenRequest, SimulatedProvider, faults, write_reply

_PROVIDER: Final = "indelible.testing.provider"
_LOADED_LATER: Final = {
    **dict.fromkeys(("SeenRequest", "SimulatedProvider", "faults", "write_reply"), _PROVIDER),
    "RecordedModel": "indelible.recording.replay",
    "forbid_model_calls": "indelible.models.http.client",
}

__all__ = [
    "ManualClock",
    "RecordedModel",
    "ScriptEnded",
    "ScriptedModel",
    "SeenRequest",
    "SimulatedProvider",
    "faults",
    "forbid_model_calls",
    "parts",
    "write_reply",
]


def __getattr__(name: str) -> Any:
    if name not in _LOADED_LATER:
        raise AttributeError(f"module 'indelible.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(_LOADED_LATER[name]), name)
