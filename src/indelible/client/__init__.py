"""The client: chats over HTTP."""

from indelible.client.client import Client, ServerEvent, ServerFailed

__all__ = ["Client", "ServerEvent", "ServerFailed"]
