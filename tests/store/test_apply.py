"""Every effect that `decide` may answer with has exactly one handler."""

from __future__ import annotations

from collections import Counter

from indelible.machine import effects
from indelible.store.commands import chat, history, turns
from indelible.store.commands.execute import HANDLERS


def test_every_effect_has_exactly_one_handler() -> None:
    parts = (chat.HANDLERS, history.HANDLERS, turns.HANDLERS)
    handled = Counter(kind for part in parts for kind in part)
    assert set(handled) == set(effects.Effect.__subclasses__()) == set(HANDLERS)
    assert set(handled.values()) == {1}
