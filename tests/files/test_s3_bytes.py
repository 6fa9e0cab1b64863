"""S3-compatible storage over real HTTP: signatures that botocore would have made, and no keys shown."""

from __future__ import annotations

import logging
import tempfile

import pytest
from tests.support.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server

from indelible.errors import NotFound, StoreFailed
from indelible.files.bytes import CHUNK_BYTES
from indelible.files.s3 import Credentials, S3Bytes, read_file
from indelible.testing import ManualClock


def open_store(server: S3Server, *, secret_key: str = SECRET_KEY, prefix: str = "some files/ü") -> S3Bytes:
    credentials = Credentials(ACCESS_KEY, secret_key)
    address = f"{server.url}/{BUCKET}"
    return S3Bytes(address, prefix=prefix, region=REGION, credentials=credentials, clock=ManualClock(skip_sleeps=True))


async def write(store: S3Bytes, data: bytes) -> None:
    writer = store.open_writer("file_1", "content")
    try:
        await writer.write(data)
        await writer.commit()
    finally:
        await writer.abort()


async def test_every_request_is_signed_as_botocore_signs_it() -> None:
    async with S3Server.run() as server:
        store = open_store(server)
        await write(store, b"rain" * 1000)
        assert list(server.objects) == [f"/{BUCKET}/some files/ü/file_1"]
        assert b"".join([chunk async for chunk in store.read("file_1", "content", start=2, stop=6)]) == b"inra"
        await store.delete("file_1")
        assert server.objects == {}
        with pytest.raises(NotFound):
            _ = [chunk async for chunk in store.read("file_1", "content")]
        assert server.statuses == [200, 206, 204, 204, 404]
        await store.close()


async def test_an_unfinished_upload_leaves_no_object() -> None:
    async with S3Server.run() as server:
        store = open_store(server)
        writer = store.open_writer("file_1", "content")
        await writer.write(b"rain")
        await writer.abort()
        assert (server.objects, server.statuses) == ({}, [])


async def test_a_storage_that_fails_for_the_moment_is_asked_again_with_the_whole_body() -> None:
    async with S3Server.run() as server:
        store = open_store(server)
        server.fail_next = [503, 500]
        await write(store, b"rain")
        assert server.statuses == [503, 500, 200]
        assert list(server.objects.values()) == [b"rain"]
        server.fail_next = [503, 503, 503]
        with pytest.raises(StoreFailed, match="status 503"):
            await write(store, b"rain")
        await store.close()


async def test_a_failed_request_that_still_reads_its_body_takes_nothing_from_the_next_one() -> None:
    content = b"rain" * CHUNK_BYTES
    with tempfile.TemporaryFile() as file:
        file.write(content)
        old, new = read_file(file), read_file(file)
        received = b""
        async for chunk in new:
            received += chunk
            await anext(old, b"")
        assert received == content
        assert [chunk async for chunk in old] == []


async def test_a_refusal_says_what_to_check_and_shows_no_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with S3Server.run() as server:
        store = open_store(server, secret_key="wrong/kestrel")  # noqa: S106
        with pytest.raises(StoreFailed, match=r"status 403\. Check the bucket") as raised:
            await write(store, b"rain")
        shown = f"{raised.value!r} {store!r} {store._credentials!r} {caplog.text}"
        assert "kestrel" not in shown.lower()
        await store.close()


async def test_a_storage_that_is_not_there_is_a_failure_of_the_store() -> None:
    async with S3Server.run() as server:
        store = open_store(server)
    with pytest.raises(StoreFailed, match="does not answer"):
        await write(store, b"rain")
    await store.close()
