"""The provider of a proof: the model behind all three wires, in the process that is never killed.

The servers find their model as they would find any other: by a name with an address in it, over real HTTP. So what is
killed is a server in the middle of a stream, with a connection to cut, a half-read event in its hands and a request to
write anew from what is stored; and a history that the wire's own provider would refuse is refused here too, and fails
the turn. The address is there before the first server and outlives the last, so a server that is started again finds
it again.

A request holds its chat's whole history, and a long proof makes many: they are counted by their wire and let go.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Self, get_args

from msgspec.structs import replace

from indelible.prove.model import ProofModel
from indelible.prove.process import Orders
from indelible.testing.provider import SimulatedProvider, WireName

WIRES: Final[tuple[WireName, ...]] = get_args(WireName)


class ProofProvider:
    """`models` are the names that it is known by, one for each wire."""

    def __init__(self) -> None:
        self._simulated = SimulatedProvider(ProofModel(on_call=self._count))
        self._calls: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        await self._simulated.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._simulated.aclose()

    @property
    def models(self) -> list[str]:
        return [f"{wire}:{ProofModel.name}@{self._simulated.base_url(wire)}" for wire in WIRES]

    @property
    def calls(self) -> dict[str, int]:
        """How often it was asked, by wire."""
        self._count()
        return dict(self._calls)

    @property
    def drops(self) -> int:
        """How many of those were cut off by whoever had asked."""
        return self._simulated.drops

    def instruct(self, orders: Orders) -> Orders:
        """The same orders to a server that may ask this provider, by any of its names."""
        first, *others = self.models
        return replace(orders, settings={**orders.settings, "model": first, "models": others})

    def _count(self) -> None:
        self._calls.update(seen.wire for seen in self._simulated.requests)
        self._simulated.requests.clear()
