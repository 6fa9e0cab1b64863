"""The simulated provider: any model behind the three wire formats, over real HTTP on loopback.

    server.py       SimulatedProvider: the socket and the test's interface
    exchange.py     one request and its response
    faults.py       failures on demand; bend.py applies them to a body
    wires/          the provider's side of each wire format: wires/dialect.py says what one consists of
    reply.py        a whole reply as bytes, without a network

It needs aiohttp, so `indelible.testing` imports it on first use.
"""

from indelible.testing.provider import faults
from indelible.testing.provider.exchange import SeenRequest
from indelible.testing.provider.reply import WireName, write_reply
from indelible.testing.provider.server import SimulatedProvider

__all__ = ["SeenRequest", "SimulatedProvider", "WireName", "faults", "write_reply"]
