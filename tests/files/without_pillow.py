"""A program for an installation without Pillow: it uploads, asks a model, looks for faults, and prints what it found.

test_without_pillow.py runs it, and judges that.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import struct
import sys
import zlib

import indelible
from indelible.cli.doctor_checks import examine
from indelible.content import File
from indelible.errors import NotFound
from indelible.files.images import make_preview, shrink_for_model
from indelible.settings import load_settings
from indelible.testing import ScriptedModel, parts


def make_png() -> bytes:
    rows = b"".join(b"\0" + bytes([row, 0, 0]) * 4 for row in range(3))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 4, 3, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


async def is_preview_refused(png: bytes) -> bool:
    try:
        await make_preview("image/png", png)
    except NotFound:
        return True
    return False


async def main(database: str) -> None:
    png, bmp, text = make_png(), b"BM" + bytes(60), b"# Rain"
    model = ScriptedModel([[parts.text_delta("1", "A picture."), parts.finish()]])
    async with indelible.open(database, model=model) as app:
        named = {"a.png": png, "a.bmp": bmp, "a.md": text}
        files = [await app.upload(data, name=name) for name, data in named.items()]
        contents = [await app.read_file(file.id) for file in files]
        chat = await app.create_chat()
        reply = await chat.send(["Look", *files])
    sent = model.calls[0].messages[-1].blocks
    findings = await examine(load_settings(database=database, port=0))
    found = {
        "pillow": importlib.util.find_spec("PIL") is not None,
        "contents": contents == [png, bmp, text],
        "types": [file.media_type for file in files],
        "pictures": [[file.width, file.height, file.has_preview] for file in files],
        "preview refused": await is_preview_refused(png),
        "converted": await shrink_for_model("image/png", png),
        "reply": reply.text,
        "sent": [type(block).__name__ for block in sent],
        "sent whole": [block.data == png for block in sent if isinstance(block, File)],
        "doctor": [[finding.status, finding.message] for finding in findings if finding.check == "images"],
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
