"""The simulated provider: any model behind the three wires, over real HTTP on loopback.

    server.py       SimulatedProvider: the socket, and what a test asks for
    exchange.py     one request and its answer
    faults.py       what can go wrong on demand; bend.py does it to a body
    dialect.py      what a wire is from this side, spoken by anthropic.py, openai_responses.py and openai_chat.py
    reply.py        a whole reply as bytes, without a network

It needs aiohttp, so `indelible.testing` loads it when somebody asks for it.
"""

from indelible.testing.provider import faults
from indelible.testing.provider.exchange import SeenRequest
from indelible.testing.provider.reply import WireName, write_reply
from indelible.testing.provider.server import SimulatedProvider

__all__ = ["SeenRequest", "SimulatedProvider", "WireName", "faults", "write_reply"]
