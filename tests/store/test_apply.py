"""Every effect that `decide` may answer with has exactly one handler."""

from __future__ import annotations

from collections import Counter

from indelible.machine import effects
from indelible.store.commands.apply import chat, history, queue, turns
from indelible.store.commands.execute import HANDLERS


def test_every_effect_has_exactly_one_handler() -> None:
    handled = Counter(kind for part in (chat, history, queue, turns) for kind in part.HANDLERS)
    assert set(handled) == set(effects.Effect.__subclasses__()) == set(HANDLERS)
    assert set(handled.values()) == {1}
