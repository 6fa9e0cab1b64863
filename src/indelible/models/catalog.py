"""Models by name.

A name is what a user writes: in the settings, at a chat, with a message. `demo` is built in and needs nothing.
A name that nobody knows is a failure of kind `config` that says which names there are; it reaches the user as a failed
reply, with everything that was said kept, and Retry may name another model.
"""

from __future__ import annotations

from typing import Final

from indelible.clock import Clock
from indelible.errors import ModelFailed
from indelible.models.demo import DemoModel
from indelible.models.port import Model

NAMES: Final = ("demo",)


def find_model(name: str, *, clock: Clock) -> Model:
    """The model of this name. Raises `ModelFailed` if there is none."""
    if name == "demo":
        return DemoModel(clock)
    raise ModelFailed(f"There is no model '{name}'. Available: {', '.join(NAMES)}.", kind="config")
