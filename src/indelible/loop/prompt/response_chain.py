"""Chain mode: letting the provider remember the conversation (rule 4).

With `previous_response_id` a prompt holds only new messages. That is cheap and brittle: the provider may
have lost the id for any reason, at any time. So a chain is only ever a shortcut. It is planned
again for each turn from stored data; it is left before the second step; and when it breaks, the id
is cleared in the run and in the pending call, the host forgets it, and the whole history is
sent instead. The next complete reply that the provider stores is the next anchor.

`plan_chain` is the pure rule; `Chain` lets a run leave the chain. context.py prepares the prompts.

Must stay true (tests/loop/test_chain.py): no call after a broken chain carries an id; other failures
leave the id alone; a host need not implement anything for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from indelible.content import Block, Message, Text, ToolCall
from indelible.loop.host import Hooks, TurnHost
from indelible.loop.prompt.build import is_summary
from indelible.models.protocol import CallOptions, Model

_log: Final = logging.getLogger(__name__)


class ChainPlan(NamedTuple):
    """What to send: everything, or an id and the new messages."""

    messages: list[Message]
    options: CallOptions


def plan_chain(messages: Sequence[Message], *, model: Model, options: CallOptions) -> ChainPlan:
    """Chain to the newest reply if that can work, else send everything.

    It can if the provider will store this response too, and stored that reply complete, from this same
    model; if the user has sent a message since, and nothing was summarised; and if the reply made no
    local calls: the provider does not know their results, and a chained prompt holds only the
    user's messages.
    """
    everything = ChainPlan(list(messages), replace(options, previous_response_id=None))
    visible = [message for message in messages if message.role != "notice" and message.visibility != "people"]
    at = next((at for at in reversed(range(len(visible))) if visible[at].role == "assistant"), None)
    if at is None or not options.store or not _can_anchor(visible[at], model):
        return everything
    since = visible[at + 1 :]
    new_messages = [message for message in since if message.role == "user" and any(map(_has_content, message.blocks))]
    if not new_messages or any(map(is_summary, since)):
        return everything
    system = [message for message in visible if message.role == "system"]
    return ChainPlan([*system, *new_messages], replace(options, previous_response_id=visible[at].response_id))


def _has_content(block: Block) -> bool:
    return not isinstance(block, Text) or bool(block.text.strip())


def _can_anchor(reply: Message, model: Model) -> bool:
    whole = reply.response_id is not None and not reply.partial and reply.reason is None
    same_model = reply.provider in (None, model.provider) and reply.model in (None, model.name)
    has_local_calls = any(isinstance(block, ToolCall) and not block.provider_executed for block in reply.blocks)
    return whole and same_model and not has_local_calls


class Chain:
    """The options of a run, and how to leave the chain they may name."""

    def __init__(self, options: CallOptions, *, host: TurnHost, hooks: Hooks) -> None:
        self.options = options
        self._host = host
        self._hooks = hooks

    @property
    def linked(self) -> bool:
        return self.options.previous_response_id is not None

    async def leave(self) -> list[Message] | None:
        """Clear the id, let the host forget it, and load the whole history; None if that cannot be loaded."""
        self.options = replace(self.options, previous_response_id=None)
        try:
            await self._hooks.call_shielded(self._host.forget_responses)
        except Exception as error:
            self._note_failure("the stored response ids could not be erased", error)
        try:
            reloaded = await self._hooks.call_cancellable(self._host.reload_messages)
            return None if reloaded is None else list(reloaded)
        except (Exception, asyncio.CancelledError) as error:
            self._note_failure("the history could not be reloaded", error)
            return None

    def _note_failure(self, what: str, error: BaseException) -> None:
        """A failed callback does not end the run, unless it failed because the run is ending."""
        if self._hooks.cancelled:
            raise error
        _log.warning("%s: %r", what, error)
