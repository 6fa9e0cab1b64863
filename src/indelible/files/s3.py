"""Bytes in S3-compatible storage (AWS, MinIO, R2, Ceph …), over aiohttp, and the signature of its requests.

An upload is gathered in a temporary file on disk first, because S3 wants the length and the hash of an object before
its bytes: memory stays bounded, the body is signed, and an object appears whole or not at all. It can also be sent
again if the connection breaks. Reading streams, with a range.

The setting has no keys. They come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, as for every
other S3 program. Objects are addressed by path (`endpoint/bucket/key`), which every server takes.

AWS Signature Version 4 is sixty lines of hashing, and the reason that no SDK is needed: botocore has 25 MB and blocks
the event loop, and its asyncio wrappers pin it to one version. Here a request has no query, one host, and the hash of
its body is known.

Must stay true (tests/files/test_s3_bytes.py): every request has the signature that botocore would give it; an
unfinished upload leaves no object; neither errors nor logs hold a key.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import IO, Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlsplit

import aiohttp
from yarl import URL

from indelible.clock import Clock
from indelible.concurrency.tasks import Backoff, run_to_completion
from indelible.errors import Invalid, NotFound, StoredFileNotFound, StoreFailed
from indelible.files.bytes import CHUNK_BYTES, PLACES, VARIANT_SUFFIX, FilePlace, FileVariant

EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


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


T = TypeVar("T")
_ATTEMPTS: Final = 3
_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)


class _Transient(Exception):
    """The request may be repeated."""


class S3Bytes:
    """Implements `ByteStore`. `address` is the URL of the bucket, `prefix` begins every key."""

    place: FilePlace = "s3"

    def __init__(self, address: str, *, prefix: str, region: str, credentials: Credentials, clock: Clock) -> None:
        self._address = address.rstrip("/")
        self._prefix = prefix.strip("/")
        self._region = region
        self._credentials = credentials
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    def open_writer(self, file_id: str, variant: FileVariant) -> S3Writer:
        return S3Writer(self, file_id, variant)

    async def read(
        self, file_id: str, variant: FileVariant, *, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[bytes]:
        if stop is not None and stop <= start:
            return
        wanted = {} if not start and stop is None else {"range": f"bytes={start}-{'' if stop is None else stop - 1}"}
        async with self._request("GET", file_id, variant, headers=wanted) as response:
            try:
                async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                    yield chunk
            except (aiohttp.ClientError, TimeoutError) as error:
                raise StoreFailed(
                    f"The file storage stopped in the middle of a file: {type(error).__name__}."
                ) from error

    async def delete(self, file_id: str) -> None:
        for variant in VARIANT_SUFFIX:
            try:
                async with self._request("DELETE", file_id, variant):
                    pass
            except NotFound:
                continue

    async def put(self, file_id: str, variant: FileVariant, file: IO[bytes], *, sha256: str, size: int) -> None:
        headers = {"content-length": str(size)}
        async with self._request("PUT", file_id, variant, headers=headers, sha256=sha256, file=file):
            pass

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        file_id: str,
        variant: FileVariant,
        *,
        headers: Mapping[str, str] | None = None,
        sha256: str = EMPTY_SHA256,
        file: IO[bytes] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request, repeated while the storage fails for the moment; its response is a success."""
        key = "/".join(filter(None, (self._prefix, f"{file_id}{VARIANT_SUFFIX[variant]}")))
        response = await self._send_again(method, f"{self._address}/{key}", headers or {}, sha256, file)
        try:
            yield response
        finally:
            response.release()

    async def _send_again(
        self, method: str, url: str, headers: Mapping[str, str], sha256: str, file: IO[bytes] | None
    ) -> aiohttp.ClientResponse:
        backoff = Backoff(self._clock, first_s=0.2, longest_s=2.0)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._send(method, url, headers, sha256, file)
            except (_Transient, aiohttp.ClientError, TimeoutError) as error:
                if attempt == _ATTEMPTS:
                    detail = str(error) if isinstance(error, _Transient) else type(error).__name__
                    raise StoreFailed(f"The file storage does not answer: {detail}.") from None
            await backoff.wait()
        raise AssertionError("the last attempt returns or raises")

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], sha256: str, file: IO[bytes] | None
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT, auto_decompress=False)
        now, credentials = self._clock.now(), self._credentials
        signed = sign(method, url, headers, sha256=sha256, credentials=credentials, region=self._region, now=now)
        place = URL(url).with_path(escape_path(URL(url, encoded=True).path), encoded=True)
        body = None if file is None else read_file(file)
        response = await self._session.request(method, place, headers=signed, data=body, allow_redirects=False)
        if response.status < 300:
            return response
        status = response.status
        response.release()
        if status == 404:
            raise StoredFileNotFound
        if status >= 500 or status == 429:
            raise _Transient(f"status {status}")
        raise StoreFailed(f"The file storage refused a request with status {status}. Check the bucket and its keys.")


class S3Writer:
    def __init__(self, store: S3Bytes, file_id: str, variant: FileVariant) -> None:
        self._store = store
        self._file_id = file_id
        self._variant: FileVariant = variant
        self._file: IO[bytes] | None = None
        self._hash = hashlib.sha256()
        self._size = 0

    async def write(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self._size += len(chunk)
        await _run(self._write, chunk)

    async def commit(self) -> None:
        assert self._file is not None
        given: dict[str, Any] = {"sha256": self._hash.hexdigest(), "size": self._size}
        await self._store.put(self._file_id, self._variant, self._file, **given)
        await self.abort()

    async def abort(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            await _run(file.close)

    def _write(self, chunk: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `abort`)
        self._file.write(chunk)


@run_to_completion
async def _run(do: Callable[..., T], *given: object) -> T:
    """Run in a thread, to its end, so that no file is closed while a thread uses it."""
    try:
        return await asyncio.to_thread(do, *given)
    except OSError as error:
        raise StoreFailed(f"The temporary file of an upload could not be written: {error.strerror}.") from error


async def read_file(file: IO[bytes]) -> AsyncIterator[bytes]:
    """From its beginning, and by position: a request that failed may still be reading when it is repeated."""
    await _run(file.flush)
    start = 0
    while chunk := await _run(os.pread, file.fileno(), CHUNK_BYTES, start):
        start += len(chunk)
        yield chunk


def open_s3(place: str, clock: Clock, environment: Mapping[str, str]) -> S3Bytes:
    """The place of this setting. Raises `Invalid` for a mistake in it, or a missing key."""
    parts = urlsplit(place)
    given = dict(parse_qsl(parts.query))
    unknown = sorted(set(given) - {"endpoint", "region"})
    if not parts.netloc or "@" in parts.netloc or unknown:
        raise Invalid(f"files: not an S3 place. {PLACES}; keys come from {' and '.join(_KEYS)}.")
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
