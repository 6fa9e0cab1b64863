"""Saving a step: once, to its end, and once more if the answer is "interrupted".

Saving always outlasts whoever cancels us, and always gets a fresh scope, which no stop has touched.
A first save that answers `Interrupted`, or fails while the run is being interrupted, is followed by
exactly one more that holds everything. If a save after an interrupt fails, `on_persist_error` is told,
and the run ends `Interrupted` all the same: the stop is what the user asked for.

Must stay true (tests/loop/test_acceptance_stop.py, S8 and S24): no step is noted as saved that was not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from indelible.concurrency.scope import CancelScope, Cause
from indelible.content import Message
from indelible.errors import Interrupted
from indelible.loop.context import Context
from indelible.loop.hooks import Hooks
from indelible.loop.result import FinishedStep
from indelible.loop.setup import TurnSetup
from indelible.loop.step import Step

_log: Final = logging.getLogger(__name__)


class Saver:
    """Saves steps, and adds what was saved to the context."""

    def __init__(self, setup: TurnSetup, scope: CancelScope, hooks: Hooks, context: Context) -> None:
        self.steps: list[FinishedStep] = []
        self._setup = setup
        self._scope = scope
        self._hooks = hooks
        self._context = context

    async def save(self, step: Step, record: FinishedStep) -> None:
        """Save a step. Raises what `persist_step` raised; `Interrupted` if that was its answer."""
        returned: Sequence[Message] = ()
        step.closed = True
        if record.blocks:
            try:
                returned = await self._persist(record)
            except (Exception, asyncio.CancelledError) as error:
                if not self._scope.interrupted:
                    if isinstance(error, Interrupted):
                        self._scope.check()
                    else:
                        raise
                again = step.record("interrupted")
                await self._save_again(again if again.blocks else record)
                self._check_lease()
                raise Interrupted from None
        self._note(record, returned)

    async def save_interrupted(self, step: Step) -> None:
        """Save what an interrupt left of the step."""
        record = step.record("interrupted")
        if step.closed or not record.blocks:
            return
        step.closed = True
        try:
            await self._persist(record)
        except Interrupted:
            await self._save_again(record)
        except (Exception, asyncio.CancelledError) as error:
            await self._report(error)
        else:
            self._note(record)
        self._check_lease()

    async def save_failed(self, step: Step) -> None:
        """After a failure that ends the run: save the latest piece that is not saved yet."""
        record = step.record("failed")
        if not record.blocks and step.latest_failed is not None:
            record = step.latest_failed
        if not step.closed and record.blocks:
            await self.save(step, record)

    async def _save_again(self, record: FinishedStep) -> None:
        try:
            await self._persist(record)
        except (Exception, asyncio.CancelledError) as error:
            await self._report(error)
        else:
            self._note(record)

    async def _persist(self, record: FinishedStep) -> Sequence[Message]:
        self._check_lease()
        returned = await self._hooks.call_shielded(self._setup.persist_step, record, CancelScope())
        if returned is None:
            return ()
        if not isinstance(returned, Sequence) or not all(isinstance(message, Message) for message in returned):
            raise TypeError(f"persist_step returned {returned!r:.80}; it has to return None or a list of messages.")
        return returned

    def _check_lease(self) -> None:
        """Whoever lost the chat saves nothing, whatever was asked for before."""
        if self._scope.cause is Cause.LEASE_LOST:
            raise self._scope.error()

    def _note(self, record: FinishedStep, returned: Sequence[Message] = ()) -> None:
        self.steps.append(record)
        self._context.add([*record.messages(), *returned])

    async def _report(self, error: BaseException) -> None:
        """Saving after an interrupt failed. A lost lease, or a cancellation of its own, goes on its way."""
        self._check_lease()
        if isinstance(error, asyncio.CancelledError) and not self._scope.interrupted:
            raise error
        _log.error("what was said before the stop could not be saved: %r", error)
        if self._setup.on_persist_error is not None:
            try:
                await self._hooks.call_shielded(self._setup.on_persist_error, error)
            except Exception:
                _log.exception("on_persist_error failed")
