"""Pictures: their size, a small preview, and one that fits into a model's request.

Whoever uploads a picture chooses what the decoder has to do, so everything here is bounded: only five formats, no more
pixels than a good camera takes (a few bytes can claim a picture of gigabytes), one picture at a time in a thread of its
own. The size is read from the first bytes and decodes nothing. A preview is WebP of at most 512 pixels a side, turned
as the camera says, without any of the metadata: place and owner of a photo stay with the original.

A picture that cannot be decoded has no preview. That is not an error: people send broken files.

Must stay true (tests/files/test_images.py): no input raises; a preview has no metadata; a bomb is refused before it is
decoded.
"""

from __future__ import annotations

import asyncio
import io
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

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
MAX_JPEG_PIXELS: Final = 128_000_000
"""A JPEG is decoded at an eighth of its size, so it may be larger; but the decoder holds all of a progressive one."""

_THREAD: Final = ThreadPoolExecutor(1, thread_name_prefix="pictures")


class Size(NamedTuple):
    width: int
    height: int


async def find_size(media_type: str, start: bytes) -> Size | None:
    """The size of a picture that begins with these bytes; None if it has none, or too many pixels."""
    if media_type not in FORMATS:
        return None
    return await asyncio.get_running_loop().run_in_executor(_THREAD, _read_size, media_type, start)


async def make_preview(media_type: str, data: bytes) -> bytes | None:
    """A small WebP of this picture; None if it cannot be decoded."""
    return await _shrink(media_type, data, PREVIEW_PIXELS, quality=80)


async def shrink_for_model(media_type: str, data: bytes) -> bytes | None:
    """A WebP of this picture in the size that models look at; None if it cannot be decoded."""
    return await _shrink(media_type, data, MODEL_PIXELS, quality=85)


async def _shrink(media_type: str, data: bytes, pixels: int, *, quality: int) -> bytes | None:
    if media_type not in FORMATS:
        return None
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_THREAD, _decode_and_shrink, media_type, data, pixels, quality)


def _read_size(media_type: str, start: bytes) -> Size | None:
    try:
        with _open(media_type, start) as image:
            return Size(*image.size) if _is_bearable(image) else None
    except Exception:  # a decoder may raise anything for bytes that somebody made up
        return None


def _decode_and_shrink(media_type: str, data: bytes, pixels: int, quality: int) -> bytes | None:
    from PIL import ImageOps  # noqa: PLC0415  (as in `_open`)

    try:
        with _open(media_type, data) as opened:
            if not _is_bearable(opened):
                return None
            opened.draft("RGB", (pixels, pixels))
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

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about sizes; `_is_bearable` decides
        return Image.open(io.BytesIO(data), formats=[FORMATS[media_type]])


def _is_bearable(image: Any) -> bool:
    width, height = Size(*image.size)
    is_decoded_small = image.format == "JPEG" and not image.info.get("progressive")
    return 0 < width * height <= (MAX_JPEG_PIXELS if is_decoded_small else MAX_PIXELS)
