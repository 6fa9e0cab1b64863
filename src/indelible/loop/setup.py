"""What a turn was given, checked and with its defaults filled in. Made by run.py, read by everybody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from indelible.clock import Clock
from indelible.content import Message, Part
from indelible.loop.attempt import Publish
from indelible.metrics import Metrics
from indelible.models.protocol import CallOptions, Model
from indelible.models.retry import RetryPolicy
from indelible.tools.run import ToolLimits
from indelible.tools.tool import Ledger
from indelible.tools.toolset import Toolset

Hook = Callable[..., Any]
"""A callback, plain or async (hooks.py)."""


class TurnSetup(msgspec.Struct, frozen=True, kw_only=True):
    """See `run` for what each of these means."""

    model: Model
    messages: list[Message]
    persist_step: Hook
    toolset: Toolset
    stop_after: frozenset[str]
    max_steps: int
    publish: Publish
    ledger: Ledger | None
    options: CallOptions
    context_limit: int | None
    prepare_messages: Hook | None
    prepare_tools: Hook | None
    reload_messages: Hook | None
    disable_chain_mode: Hook | None
    compact: Hook | None
    on_compacted: Hook | None
    on_attempt: Hook | None
    keep_failed: bool
    on_retry: Hook | None
    on_persist_error: Hook | None
    retry: RetryPolicy
    silence_timeout_s: float
    tool_limits: ToolLimits
    clock: Clock
    chance: Callable[[], float]
    metrics: Metrics
    turn_id: str
    first_step: int
    adopt: Sequence[Part] | None
    compact_at: float | None
    used_tokens: int
