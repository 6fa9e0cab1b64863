"""Requests that come through a proxy: whose headers are believed, and under which path we are served.

Anybody can send `X-Forwarded-For`. It counts only if the connection comes from an address in the setting
`trusted_proxies`, and then the last address in it that is no trusted proxy itself is the client. The connection's own
address is what the limits of limits/connections.py count.

A proxy may serve us under a path (`base_path`) and pass that path on, or strip it: a request is the same either way.

Must stay true (tests/server/test_behind_a_proxy.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from starlette.datastructures import Headers
from starlette.types import Scope

from indelible.errors import Invalid


class Proxies:
    """Raises `Invalid` if one of `trusted` is no address and no network."""

    def __init__(self, trusted: Sequence[str]) -> None:
        self._networks = [_parse_network(text) for text in trusted]

    def is_trusted(self, host: str) -> bool:
        if not self._networks:
            return False
        try:
            address = ip_address(host)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None) or address
        return any(mapped in network for network in self._networks)

    def resolve(self, scope: Scope, headers: Headers) -> bool:
        """Put the client's address and scheme into the scope. Whether the request came through a trusted proxy."""
        client = scope.get("client")
        if client is None or not self.is_trusted(client[0]):
            return False
        scheme = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
        if scheme in ("http", "https"):
            scope["scheme"] = scheme
        chain = [address.strip() for address in headers.get("x-forwarded-for", "").split(",") if address.strip()]
        for address in reversed(chain):
            scope["client"] = (address, 0)
            if not self.is_trusted(address):
                break
        return True


def _parse_network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise Invalid(f"trusted_proxies: {text!r} is neither an address nor a network such as 10.0.0.0/8.") from None


def normalize_base_path(text: str) -> str:
    """`/chat` for `chat`, `/chat` and `/chat/`; empty for the root."""
    inner = text.strip().strip("/")
    return f"/{inner}" if inner else ""


def split_path(scope: Scope, base_path: str) -> str:
    """The path below the base path. The scope then has both, as ASGI has it, whether the proxy stripped it or not."""
    path: str = scope["path"]
    if not base_path:
        return path
    if path == base_path or path.startswith(f"{base_path}/"):
        path = path[len(base_path) :] or "/"
    scope["root_path"] = base_path
    scope["path"] = base_path + path
    scope["raw_path"] = scope["path"].encode()
    return path
