"""Whether an address or a host name is this machine's own, which nobody else can reach.

Several layers ask: the server, before it listens without a login or trusts a `Host` header; the doctor; and the HTTP
client, when calls of real models are forbidden. A name is not resolved: only `localhost` itself is this machine.

Must stay true (tests/test_loopback.py).
"""

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
