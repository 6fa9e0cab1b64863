"""The remote client: the same `Chat` and `Reply` as in process, over HTTP."""

from indelible.client.client import Client
from indelible.client.wire import ServerEvent, ServerFailed, WireClient

__all__ = ["Client", "ServerEvent", "ServerFailed", "WireClient"]
