"""Files over HTTP: uploaded as a stream, served so that nothing in them runs, and nobody else's."""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
import threading
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from PIL import Image
from tests.server.asking import read_problem
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer
from tests.support.waiting import deadline, poll_until

import indelible
from indelible.errors import TooLarge, UnsupportedType
from indelible.files import images
from indelible.server.app import own
from indelible.server.file_routes import Unsatisfiable, parse_range
from indelible.testing import ScriptedModel, parts

PAGE = b"<!DOCTYPE html><script>alert(1)</script>"


def draw() -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (800, 400), "teal").save(written, "PNG")
    return written.getvalue()


async def upload(server: RunningServer, data: Any, name: str = "a.txt", **headers: str) -> dict[str, Any]:
    async with server.request("POST", "/files", params={"name": name}, data=data, headers=headers) as response:
        assert response.status == 201, await response.text()
        found: dict[str, Any] = await response.json()
        return found


async def send_slowly(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
        await asyncio.sleep(0)


async def test_a_file_is_uploaded_described_downloaded_and_deleted(harness: AppHarness) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    data = draw()
    stored = await upload(server, send_slowly(data[:100], data[100:]), "bilde å.png", **{"Content-Type": "text/html"})
    assert stored == {
        "id": stored["id"], "name": "bilde å.png", "media_type": "image/png", "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(), "width": 800, "height": 400, "has_preview": True,
        "created_at": stored["created_at"],
    }  # fmt: skip
    one = f"/files/{stored['id']}"
    async with server.request("GET", f"{one}/info") as response:
        assert await response.json() == stored
    async with server.request("GET", "/files") as response:
        assert await response.json() == {"items": [stored], "next": None}
    async with server.request("GET", one) as response:
        assert await response.read() == data
        assert response.headers["content-type"] == "image/png"
        assert response.headers["content-disposition"] == "attachment; filename*=UTF-8''bilde%20%C3%A5.png"
        etag = response.headers["etag"]
    async with server.request("GET", f"{one}/preview") as response:
        assert response.headers["content-type"] == "image/webp"
        with Image.open(io.BytesIO(await response.read())) as shown:
            assert shown.size == (512, 256)
        preview_tag = response.headers["etag"]
    for path, tag in ((one, etag), (f"{one}/preview", f'"x", W/{preview_tag}')):
        async with server.request("GET", path, headers={"If-None-Match": tag}) as response:
            assert (response.status, await response.read()) == (304, b"")
    async with server.request("DELETE", one) as response:
        assert response.status == 204
    async with server.request("GET", one) as response:
        assert (await read_problem(response))["kind"] == "not_found"


async def test_nothing_in_a_file_can_run_in_the_origin_of_the_page(harness: AppHarness) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    for name in ("a.html", "a.png", "a.svg"):
        stored = await upload(server, PAGE, name, **{"Content-Type": "image/png"})
        assert stored["media_type"] == "text/html"
        async with server.request("GET", f"/files/{stored['id']}") as response:
            headers = response.headers
            assert headers["content-disposition"].startswith("attachment;")
            assert headers.getall("x-content-type-options") == ["nosniff"]
            assert headers["content-security-policy"] == "default-src 'none'; sandbox"
            assert headers["cache-control"] == "private, no-cache"
        async with server.request("GET", f"/files/{stored['id']}/preview") as response:
            assert response.status == 404


async def test_a_part_of_a_file_is_what_was_asked_for(harness: AppHarness) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    data = bytes(range(256)) * 2000
    one = f"/files/{(await upload(server, data))['id']}"
    for wanted, start, stop in (("bytes=0-9", 0, 10), ("bytes=300000-", 300_000, None), ("bytes=-5", -5, None)):
        async with server.request("GET", one, headers={"Range": wanted}) as response:
            assert response.status == 206
            assert await response.read() == data[start:stop]
            first = start % len(data)
            last = (len(data) if stop is None else stop) - 1
            assert response.headers["content-range"] == f"bytes {first}-{last}/{len(data)}"
    async with server.request("GET", one, headers={"Range": "bytes=512000-"}) as response:
        assert (response.status, response.headers["content-range"]) == (416, "bytes */512000")
    async with server.request("GET", one, headers={"Range": "bytes=0-1", "If-Range": '"other"'}) as response:
        assert (response.status, len(await response.read())) == (200, len(data))


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, None), ("bytes=0-0", (0, 1)), ("bytes=5-99", (5, 10)), ("bytes=-99", (0, 10)), ("bytes=9-", (9, 10)),
        ("bytes=3-2", None), ("bytes=0-1,3-4", None), ("bytes=-", None), ("rows=1-2", None), ("bytes=a-b", None),
    ],
)  # fmt: skip
def test_a_range_is_understood_or_ignored(header: str | None, found: tuple[int, int] | None) -> None:
    assert parse_range(header, 10) == found


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=-0", "bytes=99-100"])
def test_a_range_after_the_end_is_refused(header: str) -> None:
    with pytest.raises(Unsatisfiable):
        parse_range(header, 10)


@pytest.mark.parametrize(
    ("status", "kind", "data", "settings"),
    [
        (413, "too_large", bytes(300_000), {"file_max_bytes": 1000}),
        (413, "too_large", [bytes(100_000)] * 3, {"file_max_bytes": 100_001}),
        (415, "unsupported_type", bytes(9) + b"text" * 99_999, {"file_types": ["image/*"]}),
        (422, "invalid", b"", {}),
        (429, "too_many", b"rain", {"user_max_file_bytes": 3}),
    ],
    ids=["announced", "streamed", "type", "empty", "quota"],
)
async def test_a_refused_upload_says_why_and_leaves_nothing(
    harness: AppHarness, status: int, kind: str, data: Any, settings: dict[str, Any]
) -> None:
    server: RunningServer = await harness.start_server(worker=False, **settings)
    body = send_slowly(*data) if isinstance(data, list) else data
    async with server.request("POST", "/files?name=a", data=body) as response:
        problem = await read_problem(response)
        assert (problem["status"], problem["kind"]) == (status, kind)
    async with server.request("GET", "/files") as response:
        assert (await response.json())["items"] == []


async def test_a_file_may_be_larger_than_any_other_body(harness: AppHarness) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    chunks = [bytes(1024 * 1024)] * 9
    assert (await upload(server, send_slowly(*chunks)))["size"] == 9 * 1024 * 1024
    async with server.request("POST", "/chats", data=send_slowly(*chunks)) as response:
        assert response.status == 413


async def test_a_connection_that_breaks_in_an_upload_leaves_nothing(harness: AppHarness) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    host, port = re.findall(r"//([^:]+):(\d+)", server.url)[0]
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST /api/v1/files?name=a HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 999999\r\n\r\n".encode()
    )
    writer.write(bytes(300_000))
    await writer.drain()

    async def count(state: str) -> int:
        count_of = f"SELECT count(*) AS n FROM files WHERE state = '{state}'"  # noqa: S608
        database = server.app.store.database
        return int((await database.read(lambda given: given.one(count_of), single=True))["n"])

    async def has_begun() -> bool:
        return await count("uploading") == 1

    async def is_gone() -> bool:
        return await count("uploading") + await count("deleted") + await count("ready") == 0

    await poll_until(has_begun, what="an upload")
    writer.close()
    await poll_until(is_gone, what="the end of it")
    assert await reader.read() == b""


async def test_a_repeated_upload_is_one_file(harness: AppHarness) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    first = await upload(server, b"rain", **{"Idempotency-Key": "k"})
    assert await upload(server, send_slowly(b"ra", b"in"), **{"Idempotency-Key": "k"}) == first
    async with server.request("POST", "/files?name=a.txt", data=b"sun", headers={"Idempotency-Key": "k"}) as response:
        assert (await read_problem(response))["status"] == 422
    async with server.request("GET", "/files") as response:
        assert len((await response.json())["items"]) == 1


async def test_files_are_listed_page_by_page(harness: AppHarness) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    made = [(await upload(server, b"x", f"{n}.txt"))["id"] for n in range(5)]
    found: list[str] = []
    cursor: str | None = None
    while len(found) < 5:
        query = {"limit": "2", **({"cursor": cursor} if cursor else {})}
        async with server.request("GET", "/files", params=query) as response:
            page = await response.json()
        found += [item["id"] for item in page["items"]]
        cursor = page["next"]
    assert (found, cursor) == (made[::-1], None)


async def test_no_route_knows_of_a_file_of_somebody_else(harness: AppHarness, database: str) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    async with indelible.open(database, user="ada", worker=False) as app:
        hers = await app.upload(draw(), name="hers.png")
        named = [(each.method, each.path) for each in own.facts if "/files/{file_id}" in each.path]
        named = [(method, path) for method, path in named if "{key}" not in path]
        assert len(named) == 4
        for method, path in named:
            async with server.request(method, f"/{path}".format(file_id=hers.id)) as response:
                assert (await read_problem(response))["detail"] == "File not found. It may have been deleted."
        async with server.request(
            "POST", "/chats", json={"message": [{"type": "file", "file_id": hers.id}]}
        ) as response:
            assert (await read_problem(response))["status"] == 404
        assert await app.files() == [hers]
    async with server.request("GET", "/files") as response:
        assert (await response.json())["items"] == []


async def test_a_file_in_a_message_goes_to_the_model_and_its_chat_keeps_it(harness: AppHarness) -> None:
    model = ScriptedModel([[parts.text_delta("1", "Teal."), parts.finish()]])
    server: RunningServer = await harness.start_server(model)
    data = draw()
    stored = await upload(server, data, "sea.png")
    content = [{"type": "text", "text": "Which colour?"}, {"type": "file", "file_id": stored["id"]}]
    created = await server.client.create_chat(content)
    async with deadline():
        async for event in server.client.stream_events(created["id"], after=None):
            if event.data.get("status") == "idle":
                break
    (question, _) = await server.client.read_all_messages(created["id"])
    block = {"type": "file", "media_type": "image/png", "name": "sea.png", "file_id": stored["id"], "size": len(data)}
    assert question["blocks"][1] == block
    sent = model.calls[0].messages[-1].blocks[1]
    assert isinstance(sent, indelible.File)
    assert (sent.data, sent.media_type) == (data, "image/png")
    async with server.request("DELETE", f"/files/{stored['id']}") as response:
        problem = await read_problem(response)
        assert (problem["status"], problem["kind"]) == (409, "not_allowed")
    await server.client.delete_chat(created["id"])

    async def is_gone() -> bool:
        async with server.request("GET", f"/files/{stored['id']}/info") as response:
            return response.status == 404

    await poll_until(is_gone, what="the end of the file")


async def test_the_client_hears_why_an_upload_is_refused(harness: AppHarness) -> None:
    """Also while it is still sending."""
    server: RunningServer = await harness.start_server(worker=False, file_max_bytes=5_000_000, file_types=["text/*"])
    async with indelible.Client(server.url) as client:
        with pytest.raises(TooLarge, match="5,000,000"):
            await client.upload(bytes(6_000_000))
        with pytest.raises(UnsupportedType, match=r"Accepted: text/\*"):
            await client.upload(draw() + bytes(4_000_000))
        assert (await client.upload(b"rain" * 500_000, name="rain.txt")).media_type == "text/plain"


@pytest.mark.may_log("a download was truncated")
async def test_a_truncated_download_is_noticed(harness: AppHarness) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    stored = await upload(server, bytes(600_000))
    lost = "DELETE FROM file_chunks WHERE n = 2"
    await server.app.store.database.write(lambda given: given.run(lost))
    with pytest.raises(aiohttp.ClientPayloadError):
        async with server.request("GET", f"/files/{stored['id']}") as response:
            await response.read()


@pytest.mark.parametrize(
    ("data", "content_type"),
    [
        ("Tromsø".encode(), "text/plain; charset=utf-8"),
        (b"a" * 100_000, "text/plain"),
        (b"a" * 100_000 + "Tromsø".encode("latin-1"), "text/plain"),
        ("Tromsø".encode("latin-1"), "application/octet-stream"),
        ("Tromsø".encode()[:-1], "application/octet-stream"),
        (b"{}", "application/json"),
    ],
)
async def test_text_has_a_charset_only_if_all_of_it_is_known_to_be_utf8(
    harness: AppHarness, data: bytes, content_type: str
) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    stored = await upload(server, data, "a.json" if data == b"{}" else "a.txt")
    for method, headers in (("GET", {}), ("HEAD", {}), ("GET", {"range": "bytes=0-1"})):
        async with server.request(method, f"/files/{stored['id']}", headers=headers) as response:
            assert response.headers["content-type"] == content_type
            assert response.headers["x-content-type-options"] == "nosniff"


async def test_no_preview_is_made_for_a_client_that_left_before_its_turn(harness: AppHarness) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    first, left, last = [(await upload(server, draw(), f"{number}.png"))["id"] for number in range(3)]
    released = threading.Event()
    busy = images._THREAD.submit(released.wait)

    async def show(file_id: str) -> int:
        async with server.request("GET", f"/files/{file_id}/preview") as response:
            return response.status

    def count_running() -> int:
        return len(server.process.server_state.tasks)

    async def is_made(file_id: str) -> bool:
        find = "SELECT preview FROM files WHERE id = $1"
        row = await server.app.store.database.read(lambda given: given.one(find, file_id), single=True)
        assert row is not None
        return bool(row["preview"] == "made")

    try:
        async with deadline(), asyncio.TaskGroup() as group:
            begun = count_running()
            decoding = group.create_task(show(first))
            await poll_until(lambda: count_running() == begun + 1, what="the first request")
            leaving = group.create_task(show(left))
            await poll_until(lambda: count_running() == begun + 2, what="the second request")
            leaving.cancel()
            await poll_until(
                lambda: count_running() == begun + 1, what="the end of the request of the client that left"
            )
            waiting = group.create_task(show(last))
            released.set()
        assert (decoding.result(), waiting.result()) == (200, 200)
    finally:
        released.set()
        busy.result()
    assert [await is_made(file_id) for file_id in (first, left, last)] == [True, False, True]
