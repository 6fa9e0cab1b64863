"""AWS Signature Version 4, for requests to S3-compatible storage.

Sixty lines of hashing, and the reason that no SDK is needed: botocore has 25 MB and blocks the event loop, and its
asyncio wrappers pin it to one version. Here a request has no query, one host, and the hash of its body is known.

Must stay true (tests/files/test_s3_bytes.py): botocore computes the same signature for the same request.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
_ALGORITHM: Final = "AWS4-HMAC-SHA256"


class Credentials(NamedTuple):
    """The key of a request. It is never shown."""

    access_key: str
    secret_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return "Credentials(…)"


def sign(
    method: str,
    url: str,
    headers: Mapping[str, str],
    *,
    sha256: str,
    credentials: Credentials,
    region: str,
    now: datetime,
) -> dict[str, str]:
    """The headers of the request with its signature. The URL has no query; its path is not escaped yet."""
    parts = urlsplit(url)
    at = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    signed = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    signed |= {"host": parts.netloc, "x-amz-content-sha256": sha256, "x-amz-date": at}
    if credentials.session_token:
        signed["x-amz-security-token"] = credentials.session_token
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    canonical = f"{method}\n{escape_path(parts.path)}\n\n{lines}\n{names}\n{sha256}"
    scope = f"{at[:8]}/{region}/s3/aws4_request"
    text = f"{_ALGORITHM}\n{at}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{credentials.secret_key}".encode()
    for word in (at[:8], region, "s3", "aws4_request"):
        key = hmac.digest(key, word.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    about = f"Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {name: value for name, value in signed.items() if name != "host"} | {
        "authorization": f"{_ALGORITHM} {about}"
    }


def escape_path(path: str) -> str:
    """The path as it is signed and sent."""
    return quote(path, safe="/-_.~")
