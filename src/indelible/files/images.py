"""Pictures: their size, a small preview, and one that fits into a model's request.

Whoever uploads a picture chooses what the decoder has to do, so everything here is bounded: only five formats, no more
pixels than a good camera takes (a few bytes can claim a picture of gigabytes), one picture at a time in a thread of its
own. The size is read from the first bytes and decodes nothing, so it does not wait for that thread: an upload never
waits for somebody's pictures. A preview is WebP of at most 512 pixels a side, turned as the camera says, without any of
the metadata: place and owner of a photo stay with the original.

Previews are made by turns (`PictureLine`): however many pictures one user has, the next user's comes after the one that
is being decoded. A decoder cannot be stopped, so a turn lasts until it has ended; whoever leaves before has none.

A picture that cannot be decoded has no preview. That is not an error: people send broken files.

The decoder is Pillow, the extra `images`. Without it nothing here fails, and no picture has a size or a preview:
uploads and downloads work, and a model gets every picture that needs no conversion. `indelible doctor` says so.

Must stay true (tests/files/test_images.py, test_without_pillow.py): no input raises; a preview has no metadata; a bomb
is refused before it is decoded.
"""

from __future__ import annotations

import asyncio
import importlib.util
import io
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from indelible.errors import NotFound

PREVIEW_PIXELS: Final = 512
MODEL_PIXELS: Final = 2048
FORMATS: Final = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/gif": "GIF",
    "image/webp": "WEBP",
    "image/bmp": "BMP",
}
"""The types that have previews, with Pillow's names for their decoders."""
MAX_PIXELS: Final = 32_000_000
MAX_PREVIEWED_PIXELS: Final = 16_000_000
"""Fewer than a model's picture may have: anybody who can read a chat asks for previews, many at once."""
MAX_JPEG_PIXELS: Final = 128_000_000
"""A JPEG is decoded at an eighth of its size, so it may be larger; but the decoder holds all of a progressive one."""

_THREAD: Final = ThreadPoolExecutor(1, thread_name_prefix="pictures")


class Size(NamedTuple):
    width: int
    height: int


@cache
def can_decode() -> bool:
    """Whether this installation has the decoder."""
    return importlib.util.find_spec("PIL") is not None


async def find_size(media_type: str, start: bytes) -> Size | None:
    """The size of a picture that begins with these bytes; None if it has none, or too many pixels."""
    if media_type not in FORMATS or not can_decode():
        return None
    return await asyncio.to_thread(_read_size, media_type, start)


async def make_preview(media_type: str, data: bytes) -> bytes | None:
    """A small WebP of this picture; None if it cannot be decoded. Raises `NotFound` if there is no decoder here."""
    if not can_decode():
        raise NotFound("This server makes no previews.")
    return await _shrink(media_type, data, PREVIEW_PIXELS, quality=80, max_pixels=MAX_PREVIEWED_PIXELS)


async def shrink_for_model(media_type: str, data: bytes) -> bytes | None:
    """A WebP of this picture in the size that models look at; None if it cannot be decoded."""
    return await _shrink(media_type, data, MODEL_PIXELS, quality=85, max_pixels=MAX_PIXELS)


class PictureLine:
    """One picture at a time, and users by turns: each has one place in the line, and waits for it behind its others."""

    def __init__(self) -> None:
        self._busy = asyncio.Lock()
        self._places: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def wait_for_turn(self, user_id: str) -> AsyncIterator[None]:
        place = self._places.setdefault(user_id, asyncio.Lock())
        async with place, self._busy:
            yield


async def _shrink(media_type: str, data: bytes, pixels: int, *, quality: int, max_pixels: int) -> bytes | None:
    if media_type not in FORMATS or not can_decode():
        return None
    work = partial(_decode_and_shrink, media_type, data, pixels, quality=quality, max_pixels=max_pixels)
    return await asyncio.get_running_loop().run_in_executor(_THREAD, work)


def _read_size(media_type: str, start: bytes) -> Size | None:
    try:
        with _open(media_type, start) as image:
            return Size(*image.size) if _is_bearable(image, MAX_PIXELS) else None
    except Exception:  # a decoder may raise anything for bytes that somebody made up
        return None


def _decode_and_shrink(media_type: str, data: bytes, pixels: int, *, quality: int, max_pixels: int) -> bytes | None:
    from PIL import ImageOps  # noqa: PLC0415  (as in `_open`)

    try:
        with _open(media_type, data) as opened:
            if not _is_bearable(opened, max_pixels):
                return None
            opened.draft("RGB", (pixels, pixels))
            if opened.width * opened.height > max_pixels:  # as it will be decoded
                return None
            image = ImageOps.exif_transpose(opened)
            image.thumbnail((pixels, pixels))
            has_alpha = "A" in image.getbands() or "transparency" in image.info
            plain = image.convert("RGBA" if has_alpha else "RGB")
            plain.info.clear()
            written = io.BytesIO()
            plain.save(written, "WEBP", quality=quality, method=2)
            return written.getvalue()
    except Exception:  # as above
        return None


def _open(media_type: str, data: bytes) -> Any:
    from PIL import Image  # noqa: PLC0415  (the import takes as long as the start of the rest of a command)

    Image.preinit()
    if FORMATS[media_type] not in Image.OPEN:
        Image.init()
    # Not Image.open: it warns of sizes, which `_is_bearable` judges, and no thread can silence its own warnings alone.
    decode, _ = Image.OPEN[FORMATS[media_type]]
    return decode(io.BytesIO(data), "")


def _is_bearable(image: Any, max_pixels: int) -> bool:
    width, height = Size(*image.size)
    is_decoded_small = image.format == "JPEG" and not image.info.get("progressive")
    return 0 < width * height <= (MAX_JPEG_PIXELS if is_decoded_small else max_pixels)
