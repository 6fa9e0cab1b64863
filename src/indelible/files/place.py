"""Where the bytes of files are, as the setting `files` says it.

    database                                          in the database itself (the default)
    directory:/var/lib/indelible/files                one file each
    s3://bucket/prefix?endpoint=https://host&region=eu-north-1

A mistake in it is reported at the start, in one sentence, and not with the first upload.

Must stay true (tests/files/test_byte_stores.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from indelible.clock import Clock
from indelible.errors import Invalid
from indelible.files.database_bytes import DatabaseBytes
from indelible.files.directory_bytes import DirectoryBytes
from indelible.files.protocol import ByteStore
from indelible.files.s3_bytes import S3Bytes
from indelible.files.s3_signature import Credentials
from indelible.store.database.transaction import Database

DATABASE: Final = "database"
_DIRECTORY: Final = "directory:"
_FORMS: Final = "It must be database, directory:/path or s3://bucket/prefix?endpoint=URL&region=NAME"
_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


async def open_bytes(
    place: str, database: Database, *, clock: Clock, environment: Mapping[str, str] | None = None
) -> ByteStore:
    """The byte store that the setting names. Raises `Invalid` if it names none, or one that cannot be used."""
    if place == DATABASE:
        return DatabaseBytes(database)
    directory = find_directory(place)
    if directory is not None:
        opened = DirectoryBytes(directory)
        await opened.open()
        return opened
    if place.startswith("s3://"):
        return _open_s3(place, clock, os.environ if environment is None else environment)
    raise Invalid(f"files: unknown place. {_FORMS}.")


def find_directory(place: str) -> Path | None:
    """The directory that the setting names; None if it names none."""
    name = place.removeprefix(_DIRECTORY)
    return Path(name).expanduser().absolute() if place.startswith(_DIRECTORY) and name else None


def _open_s3(place: str, clock: Clock, environment: Mapping[str, str]) -> S3Bytes:
    parts = urlsplit(place)
    given = dict(parse_qsl(parts.query))
    unknown = sorted(set(given) - {"endpoint", "region"})
    if not parts.netloc or "@" in parts.netloc or unknown:
        raise Invalid(f"files: not an S3 place. {_FORMS}; keys come from {' and '.join(_KEYS)}.")
    missing = [name for name in _KEYS if not environment.get(name)]
    if missing:
        raise Invalid(f"files: S3 needs {' and '.join(missing)} in the environment.")
    region = given.get("region") or environment.get("AWS_REGION") or "us-east-1"
    endpoint = given.get("endpoint") or f"https://s3.{region}.amazonaws.com"
    if not endpoint.startswith(("http://", "https://")):
        raise Invalid("files: the endpoint must begin with http:// or https://.")
    access_key, secret_key = (environment[name] for name in _KEYS)
    credentials = Credentials(access_key, secret_key, environment.get("AWS_SESSION_TOKEN") or None)
    address = f"{endpoint.rstrip('/')}/{parts.netloc}"
    return S3Bytes(address, prefix=parts.path, region=region, credentials=credentials, clock=clock)
