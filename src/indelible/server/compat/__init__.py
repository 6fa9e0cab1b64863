"""The APIs of others: the OpenAI APIs and the AI SDK, as projections of the two logs (docs/decisions/0015-wires.md).

A projection (projection.py) turns the events of one turn into the frames of its API. It is pure: the same events give
the same frames, so a replay after a crash, in another process or a year later is what was seen live. Routes are
thin: they read a request, call the service layer, and stream or collect a projection (projection.py).
"""
