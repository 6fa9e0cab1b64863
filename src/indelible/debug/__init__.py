"""Seeing what went to a provider and what came back, without ever touching it (SPEC §7).

`Sink` gathers the exchanges of one step, `wrap` records one answer into it. The rules are in transport.py and body.py.
"""

from indelible.debug.sink import Attempt, Sink
from indelible.debug.transport import SinkRecording, wrap

__all__ = ["Attempt", "Sink", "SinkRecording", "wrap"]
