"""The page's core has tests of its own (tests/web/), which run without a browser: `node --test`.

`make check` judges the types of the page's scripts. index.html has to name every module.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.support.node import NODE

ROOT = Path(__file__).parents[2]
_IMPORT = re.compile(r'^import\b[^;"]*?"(\.[^"]+)"', re.MULTILINE)


def test_the_core_of_the_page_passes_its_own_tests() -> None:
    files = sorted(str(path) for path in (ROOT / "tests" / "web").glob("*.test.mjs"))
    assert files
    done = subprocess.run([NODE, "--test", *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_the_page_preloads_every_module_that_it_imports() -> None:
    """Otherwise the browser learns of them one level after the other, a round trip each."""
    web = ROOT / "src" / "indelible" / "server" / "web"
    found, waiting = set[Path](), [web / "view" / "app.js"]
    while waiting:
        module = waiting.pop()
        imported = {(module.parent / name).resolve() for name in _IMPORT.findall(module.read_text())}
        waiting.extend(imported - found)
        found |= imported
    preloaded = re.findall(r'rel="modulepreload" href="/web/([^"]+)"', (web / "index.html").read_text())
    assert preloaded == sorted(str(module.relative_to(web.resolve())) for module in found)
