"""Whether an address or a host name is this machine's own, which nobody else can reach."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=1024)  # clients send the same few names
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach this address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
