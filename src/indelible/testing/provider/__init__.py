"""The simulated provider: any model behind the three wire formats, over real HTTP on loopback.

    server.py       SimulatedProvider: the socket and the test's interface
    exchange.py     one request and its response; a whole reply as bytes, without a network
    faults.py       failures on demand, and refusals
    dialect.py      what the provider's side of a wire format consists of; the three are in modules of their own

It needs aiohttp, so `indelible.testing` imports it on first use.
"""

from __future__ import annotations

from indelible.testing.provider import faults
from indelible.testing.provider.exchange import SeenRequest, WireName, write_reply
from indelible.testing.provider.server import SimulatedProvider

__all__ = ["SeenRequest", "SimulatedProvider", "WireName", "faults", "write_reply"]
