"""Which requests have a large body: uploads, which are bytes and never held in memory, and imports of chats.

Every other body is JSON: it is limited, collected and counted before a route sees it (access/middleware.py,
body_limits.py), and has a minute to arrive (connections.py). An upload passes all that; its route counts the bytes, and
it has time as long as it keeps a minimum pace. An exported chat is JSON too, but may be as large as a chat becomes: it
has a limit of its own (`import_max_bytes`), and time as an upload has it.

A refused upload is read to its end before the response, within bounds: a client that is still sending would otherwise
see a broken connection instead of the reason.

Must stay true (tests/server/test_file_routes.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final

from starlette.requests import ClientDisconnect, Request

_PATH: Final = "/api/v1/files"
_IMPORT: Final = "/api/v1/chats/import"
MIN_BYTES_PER_S: Final = 16 * 1024
"""An upload that is slower in the long run is cut."""
MAX_DISCARDED_BYTES: Final = 64 * 1024 * 1024
"""So much is read of a body that is refused, for its client to read why."""


def is_upload(scope: Mapping[str, object]) -> bool:
    """Whether this request's body is a file."""
    return scope["type"] == "http" and scope["method"] == "POST" and str(scope["path"]).endswith(_PATH)


def is_import(scope: Mapping[str, object]) -> bool:
    """Whether this request's body is an exported chat. Asked when the base path is known (access/middleware.py)."""
    path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
    return scope["type"] == "http" and scope["method"] == "POST" and path == _IMPORT


def is_large(path: str) -> bool:
    """Whether a body that is sent there may need more time than others."""
    return path.endswith((_PATH, _IMPORT))


class UploadBody:
    """The body of an upload, as a stream that can be left at any point."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._stream = request.stream()
        self._has_begun = False

    async def read(self) -> AsyncIterator[bytes]:
        self._has_begun = True
        async for chunk in self._stream:
            yield chunk

    async def discard(self) -> bool:
        """Read what is left; False if that is too much, and the connection has to be closed."""
        if not self._has_begun and "100-continue" in self._request.headers.get("expect", "").lower():
            return False  # the client waits for our word before it sends anything
        discarded = 0
        try:
            async for chunk in self._stream:
                discarded += len(chunk)
                if discarded > MAX_DISCARDED_BYTES:
                    return False
        except (ClientDisconnect, RuntimeError):  # the latter if it was read to its end
            return False
        return True
