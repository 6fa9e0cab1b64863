"""The remote client: the same `Chat` and `Reply` as in process, over HTTP."""

from indelible.client.client import Client
from indelible.client.http_transport import ServerFailed

__all__ = ["Client", "ServerFailed"]
