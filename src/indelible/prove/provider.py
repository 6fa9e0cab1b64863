"""The provider of a proof: the model behind all three wire formats, in the process that is never killed.

The servers use it like any other provider: by a model name with an address, over real HTTP. So a kill hits a server in
the middle of a stream, with an open connection and a half-read event, and its next request is built from the store. A
history that the real provider would refuse is refused here too, and fails the turn. The address exists before the
first server starts and after the last one ends, so a restarted server finds it again.

A request contains its chat's whole history, and a long proof makes many: they are inspected, counted and not kept.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Self, get_args

from msgspec.structs import replace

from indelible.models.protocol import Call
from indelible.prove.checks.prompts import PromptInspector
from indelible.prove.model import ProofModel
from indelible.prove.servers.process import Orders
from indelible.testing.provider import SimulatedProvider, WireName

WIRES: Final[tuple[WireName, ...]] = get_args(WireName)


class ProofProvider:
    """`models` are its model names, one for each wire format. `prompts` has what was wrong with those it received."""

    def __init__(self) -> None:
        self._simulated = SimulatedProvider(ProofModel(on_call=self._receive))
        self._calls: Counter[str] = Counter()
        self.prompts = PromptInspector()

    async def __aenter__(self) -> Self:
        await self._simulated.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._simulated.aclose()

    @property
    def models(self) -> list[str]:
        return [f"{wire}:{ProofModel.name}-{wire}@{self._simulated.base_url(wire)}" for wire in WIRES]

    @property
    def calls(self) -> dict[str, int]:
        """The number of model calls, by wire format."""
        self._count()
        return dict(self._calls)

    @property
    def drops(self) -> int:
        """How many of them were interrupted by the caller."""
        return self._simulated.drops

    def instruct(self, orders: Orders) -> Orders:
        """The same orders for a server that may call this provider by any of its names."""
        first, *others = self.models
        return replace(orders, settings={**orders.settings, "model": first, "models": others})

    def _receive(self, call: Call) -> None:
        self.prompts.inspect(call)
        self._count()

    def _count(self) -> None:
        self._calls.update(seen.wire for seen in self._simulated.requests)
        self._simulated.requests.clear()
