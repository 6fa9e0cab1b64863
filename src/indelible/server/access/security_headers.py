"""Headers that keep a browser from doing more with a response than it is for. Every response has them.

A page has its own content policy (app.py), and a file its own sandbox: a header that a response has set is left alone.
Everything else is data, and allows a browser nothing. uvicorn adds `nosniff` (process.py).

Must stay true (tests/server/test_page_headers.py, tests/server/test_access_matrix.py).
"""

from __future__ import annotations

from typing import Final

from starlette.types import Message, Send

RawHeaders = list[tuple[bytes, bytes]]

DATA_HEADERS: Final[RawHeaders] = [
    (
        b"content-security-policy",
        b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


def add_headers(send: Send, more: RawHeaders) -> Send:
    """`send`, with the default headers that a response lacks, and with `more`."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            present = {name.lower() for name, _ in headers}
            headers += [header for header in DATA_HEADERS if header[0] not in present]
            message = {**message, "headers": headers + more}
        await send(message)

    return send_with_headers
