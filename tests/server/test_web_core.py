"""The page's core has tests of its own (tests/web/), which run without a browser: `node --test`.

A missing Node is a failure, as a missing browser is; .ci/run installs Debian's.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_core_of_the_page_passes_its_own_tests() -> None:
    node = shutil.which("node")
    assert node, "node is missing: install it, as .ci/run does"
    files = sorted(str(path) for path in (ROOT / "tests" / "web").glob("*.test.mjs"))
    assert files
    done = subprocess.run([node, "--test", *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
