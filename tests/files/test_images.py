"""Pictures: their size, previews without metadata, and nothing that a made-up file could do."""

from __future__ import annotations

import asyncio
import io
import struct
import sys
import threading
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.support.waiting import deadline

from indelible.files import images
from indelible.files.images import FORMATS, PREVIEW_PIXELS, PictureLine, Size, find_size, make_preview, shrink_for_model


def draw(kind: str = "PNG", size: tuple[int, int] = (900, 300), mode: str = "RGB", **more: Any) -> bytes:
    written = io.BytesIO()
    Image.new(mode, size, 1 if mode in {"1", "P"} else None).save(written, kind, **more)
    return written.getvalue()


def claim(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims to be this large."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


@pytest.fixture
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching_often")
async def test_pictures_that_are_read_at_once_leave_the_warnings_of_the_program_alone() -> None:
    data = draw("JPEG", (64, 64))
    long = data[:2] + b"\xff\xe5\x00\x08abcdef" * 6000 + data[2:]
    before = list(warnings.filters)
    for _ in range(5):
        assert await asyncio.gather(*[find_size("image/jpeg", long) for _ in range(8)]) == [Size(64, 64)] * 8
        assert list(warnings.filters) == before


@pytest.mark.parametrize("media_type", FORMATS)
async def test_every_format_has_a_size_and_a_preview(media_type: str) -> None:
    data = draw(FORMATS[media_type])
    assert await find_size(media_type, data) == Size(900, 300)
    preview = await make_preview(media_type, data)
    assert preview is not None
    with Image.open(io.BytesIO(preview)) as shown:
        assert (shown.format, max(shown.size)) == ("WEBP", PREVIEW_PIXELS)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16"])
async def test_every_mode_has_a_preview(mode: str) -> None:
    assert await make_preview("image/png", draw(mode=mode, size=(20, 10))) is not None


async def test_a_preview_is_turned_as_the_camera_says_and_has_no_metadata() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    exif[0x010E] = "kestrel"
    data = draw("JPEG", (400, 100), exif=exif, comment=b"kestrel")
    assert data.count(b"kestrel") == 2
    for made in (await make_preview("image/jpeg", data), await shrink_for_model("image/jpeg", data)):
        assert made is not None
        assert b"kestrel" not in made
        with Image.open(io.BytesIO(made)) as shown:
            assert shown.size == (100, 400)
            assert not shown.getexif()


async def test_a_bomb_is_refused_before_it_is_decoded() -> None:
    bomb = claim(60_000, 60_000)
    assert await find_size("image/png", bomb) is None
    assert await make_preview("image/png", bomb) is None


async def test_a_broken_picture_has_a_size_perhaps_but_no_preview() -> None:
    assert await find_size("image/png", claim(40, 30)) == Size(40, 30)
    assert await make_preview("image/png", claim(40, 30)) is None
    assert await make_preview("image/jpeg", draw("JPEG")[:-200]) is None
    assert await make_preview("application/pdf", b"%PDF-") is None


async def test_the_size_is_in_the_first_bytes() -> None:
    data = draw("JPEG", (3000, 2000), quality=95)
    assert await find_size("image/jpeg", data[:2000]) == Size(3000, 2000)


async def test_a_size_is_found_while_the_pictures_thread_is_busy() -> None:
    released = threading.Event()
    busy = images._THREAD.submit(released.wait)
    try:
        async with deadline():
            assert await find_size("image/png", draw()) == Size(900, 300)
    finally:
        released.set()
        busy.result()


@pytest.mark.parametrize(("kind", "size", "is_made"), [
    ("PNG", (4000, 4000), True), ("PNG", (4001, 4000), False), ("WEBP", (4001, 4000), False),
    ("JPEG", (8000, 8000), True), ("JPEG", (30_000, 1000), False),
])  # fmt: skip
async def test_a_preview_takes_no_more_than_sixteen_million_decoded_pixels(
    kind: str, size: tuple[int, int], *, is_made: bool
) -> None:
    preview = await make_preview(f"image/{kind.lower()}", draw(kind, size))
    assert (preview is not None) == is_made


async def test_users_have_their_pictures_made_by_turns() -> None:
    line = PictureLine()
    begun: list[str] = []
    first_ends = asyncio.Event()

    async def wait_in_line(name: str) -> None:
        async with line.wait_for_turn(name[0]):
            begun.append(name)
            if name == "a1":
                await first_ends.wait()

    async with deadline(), asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(wait_in_line(name)) for name in ("a1", "a2", "a3", "b1", "a4", "b2", "c1")}
        while not begun:
            await asyncio.sleep(0)
        assert begun == ["a1"]
        tasks["a2"].cancel()  # somebody leaves
        first_ends.set()
    assert begun == ["a1", "b1", "c1", "a3", "b2", "a4"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(media_type=st.sampled_from(sorted(FORMATS)), cut=st.integers(0, 400), noise=st.binary(max_size=40))
async def test_no_bytes_raise(media_type: str, cut: int, noise: bytes) -> None:
    data = draw(FORMATS[media_type], (10, 10))
    await find_size(media_type, data[:cut] + noise)
    await make_preview(media_type, data[:cut] + noise + data[cut:])


@pytest.mark.parametrize(("progressive", "is_bearable"), [(False, True), (True, False)])
async def test_a_progressive_jpeg_may_not_be_larger_than_other_formats(*, progressive: bool, is_bearable: bool) -> None:
    """Its decoder holds every coefficient, however small the preview: 128 megapixels are 768 MB."""
    data = draw("JPEG", (16, 16), progressive=progressive)
    marker = b"\xff\xc2" if progressive else b"\xff\xc0"
    at = data.index(marker) + 5
    claimed = data[:at] + struct.pack(">HH", 8000, 8000) + data[at + 4 :]
    assert (await find_size("image/jpeg", claimed) is not None) == is_bearable
