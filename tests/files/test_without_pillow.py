"""Files in an installation without the extra `images`: the same packages, but Pillow is not among them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.waiting import DEADLINE_S

PROGRAM = Path(__file__).with_name("without_pillow.py")
SOURCE = Path(__file__).parents[2] / "src"


def install_all_but_pillow(directory: Path) -> None:
    """A directory of packages: links to all that are installed here, but for Pillow."""
    directory.mkdir()
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not package.name.lower().startswith(("pil", "pillow")) and package.suffix != ".pth":
            (directory / package.name).symlink_to(package)


async def test_uploads_work_without_pillow_and_doctor_says_what_does_not(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    install_all_but_pillow(packages)
    command = [sys.executable, "-S", str(PROGRAM), str(tmp_path / "chats.db")]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        env={"PYTHONPATH": f"{SOURCE}:{packages}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    ((status, message),) = found.pop("doctor")
    assert (status, "indelible[images]" in message) == ("warning", True)
    assert found == {
        "pillow": False,
        "contents": True,
        "types": ["image/png", "image/bmp", "text/markdown"],
        "pictures": [[None, None, False]] * 3,
        "preview refused": True,
        "converted": None,
        "reply": "A picture.",
        "sent": ["Text", "File", "Text", "File"],  # a BMP would have to be converted
        "sent whole": [True, False],
    }
