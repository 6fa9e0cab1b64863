"""How many tokens a request would take, as far as that can be known without asking its model.

What the chat has so far was counted by the model that answered last: its input, and its reply. What came after that,
and the request itself, is estimated from its size, as for summaries (loop/prompt/compact.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from indelible.api.shapes import ChatMessage
from indelible.content import Message, Role, Text, encode
from indelible.loop.prompt.compact import estimate_tokens
from indelible.service.turns import TurnSettings


def estimate_input(path: Sequence[ChatMessage], given: Sequence[Message], settings: TurnSettings) -> int:
    """About how many tokens the model would read: this path, what is given, and the settings of a new chat."""
    counted, uncounted = 0, list(path)
    for at in reversed(range(len(path))):
        usage = path[at].usage
        if usage is not None and usage.total_tokens:
            counted, uncounted = usage.total_tokens, list(path[at + 1 :])
            break
    declared: list[Any] = [] if path else [each for each in (settings.system, settings.tools) if each]
    written = [Message(role="system", blocks=[Text(encode(each).decode())]) for each in declared]
    left = [Message(role=cast("Role", each.role), blocks=each.blocks) for each in uncounted if each.role != "notice"]
    return counted + estimate_tokens([*written, *left, *given])
