"""Requests that come through a proxy: whose headers are believed, and under which path we are served.

Anybody can send `X-Forwarded-For`. It counts only if the connection comes from an address in the setting
`trusted_proxies`, and then the last address in it that is no trusted proxy itself is the client. A proxy may add a line
of its own to those that the client sent: all lines are one list. What is no address (`unknown`, a page of text) names
nobody, so the client is then the proxy that wrote it. The connection's own address is what the limits of
limits/connections.py count.

A proxy may serve us under a path (`base_path`) and pass that path on, or strip it: a request is the same either way.

Must stay true (tests/server/test_behind_a_proxy.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

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
        address = _parse_address(host)
        return address is not None and any(address in network for network in self._networks)

    def resolve(self, scope: Scope, headers: Headers) -> bool:
        """Put the client's address and scheme into the scope. Whether the request came through a trusted proxy."""
        client = scope.get("client")
        if client is None or not self.is_trusted(client[0]):
            return False
        scheme = ",".join(headers.getlist("x-forwarded-proto")).rpartition(",")[2].strip().lower()
        if scheme in ("http", "https"):
            scope["scheme"] = scheme
        for text in reversed(",".join(headers.getlist("x-forwarded-for")).split(",")):
            if not text.strip():
                continue
            address = _parse_address(_remove_port(text.strip()))
            if address is None:
                break
            scope["client"] = (str(address), 0)
            if not self.is_trusted(scope["client"][0]):
                break
        return True


def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """The address; of an IPv4 address that is written as an IPv6 address, the former."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _remove_port(text: str) -> str:
    """Some proxies write `203.0.113.9:4711` and `[2001:db8::1]:4711`."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


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
