"""Applying the effects of one command, in order, and writing the chat's row at the end.

Must stay true (tests/store/test_conformance.py): after every command the chat is in the same state as in the machine's
own interpreter of these effects; every kind of effect has exactly one handler (tests/store/test_apply.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from indelible.machine import effects
from indelible.store.commands.apply import chat, history, queue, turns
from indelible.store.commands.apply.change import ChatChange, Handlers
from indelible.store.payloads import NewChat
from indelible.store.protocol import Outcome

HANDLERS: Final[Handlers] = {**chat.HANDLERS, **history.HANDLERS, **queue.HANDLERS, **turns.HANDLERS}


async def apply_effects(change: ChatChange, decided: Sequence[effects.Effect]) -> Outcome:
    """Apply the decided effects, all in the transaction of `change`. A new chat begins with its given history."""
    if isinstance(change.payload, NewChat):
        await history.add_history(change, change.payload)
    for effect in decided:
        await HANDLERS[type(effect)](change, effect)
    return await change.write()
