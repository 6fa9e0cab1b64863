"""Secrets that we make: tokens, session ids and keys of links. 256 random bits each; the store keeps the hash alone.

The first characters name the kind, so that a leaked secret is recognised, by people and by scanners of repositories.
`PREFIX_LENGTH` characters of a token may be shown: 24 bits of it, so that its user knows which one it is.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final, Literal

SecretKind = Literal["token", "session", "link"]
_MARKS: Final[dict[SecretKind, str]] = {"token": "idt_", "session": "ids_", "link": "idl_"}
PREFIX_LENGTH: Final = 8


def new_secret(kind: SecretKind) -> str:
    return _MARKS[kind] + secrets.token_urlsafe(32)


def hash_secret(secret: str, *, bound_to: str = "") -> bytes:
    """What is stored. Any text has a hash, also one that cannot be a secret of ours.

    With `bound_to`, the hash is keyed with that text. Hashing the two joined would not be enough: a client that knows
    both could send them as one secret, and would no longer depend on the text.
    """
    written = secret.encode("utf-8", "surrogatepass")
    if bound_to:
        return hmac.digest(bound_to.encode("utf-8", "surrogatepass"), written, "sha256")
    return hashlib.sha256(written).digest()
