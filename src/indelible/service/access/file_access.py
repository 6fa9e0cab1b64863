"""Who may open a file: its owner, and the guests of a chat that shows it.

A guest opens a file by the authority of one share: the chat it shares has to use the file, and people have to see it
there. So a file that is only queued, only for the model, or in another chat of the same owner does not exist for a
guest. A grant names its share, and a download ends with it (server/access/revocation.py).

Must stay true (tests/server/test_shared_files.py, tests/server/test_access_matrix.py): exactly these may open a file,
and for everybody else it does not exist.
"""

from __future__ import annotations

from typing import NamedTuple

from indelible.api.shapes import Link, StoredFile
from indelible.errors import NotFound, StoredFileNotFound
from indelible.files.protocol import FileStore
from indelible.store.accounts.protocol import ShareStore


class FileGrant(NamedTuple):
    """The right to open a file. `share_id` is the share that it depends on; None for the owner."""

    file: StoredFile
    owner_id: str
    share_id: str | None = None


class FileAccess:
    """Without `shares`, a file is its owner's alone."""

    def __init__(self, files: FileStore, shares: ShareStore | None) -> None:
        self._files = files
        self._shares = shares

    async def find(self, user_id: str, file_id: str) -> FileGrant:
        """What lets this user open the file. Raises `NotFound` if nothing does."""
        try:
            return FileGrant(await self._files.get_file(user_id, file_id), user_id)
        except NotFound:
            for link in [] if self._shares is None else await self._shares.find_file_shares(user_id, file_id):
                if await self._files.is_shown(link.chat_id, file_id):
                    return FileGrant(await self._files.get_file(link.owner_id, file_id), link.owner_id, link.share_id)
            raise

    async def find_linked(self, link: Link, file_id: str) -> FileGrant:
        """What lets whoever has this link open the file. Raises `NotFound` if it is not in the chat."""
        file = await self._files.get_file(link.owner_id, file_id)
        if not await self._files.is_shown(link.chat_id, file_id):
            raise StoredFileNotFound
        return FileGrant(file, link.owner_id, link.share_id)
