"""web/vendor/LIST.md is the truth about the libraries of the page: every file, its version, licence and hash."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import indelible.server

WEB = Path(indelible.server.__file__).parent / "web"
LIST = (WEB / "vendor" / "LIST.md").read_text()
ROW = re.compile(r"^\| `([\w.]+)` \| ([@\w./-]+) \| ([\d.]+) \| ([\w.-]+) \| .* \| `([0-9a-f]{64})` \|$", re.MULTILINE)
MAKES_HTML = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
ALLOWED = {"MIT", "Apache-2.0", "BSD-3-Clause"}


def test_every_vendored_file_is_listed_with_its_hash_and_no_other() -> None:
    listed = {name: digest for name, _, _, _, digest in ROW.findall(LIST)}
    there = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (WEB / "vendor").iterdir()
        if path.name != "LIST.md"
    }
    assert listed == there, "run `make vendor`"


def test_every_library_has_a_licence_that_we_may_pass_on_and_its_text() -> None:
    for _, package, version, licence, _ in ROW.findall(LIST):
        assert licence in ALLOWED
        assert f"## {package} {version}\n\n```text\n" in LIST


def test_the_scripts_of_the_page_make_no_html_and_load_nothing_from_elsewhere() -> None:
    for path in [*WEB.glob("core/*.js"), *WEB.glob("view/*.js")]:
        script = path.read_text()
        assert not MAKES_HTML.search(script), path
        assert len(script.splitlines()) <= 500, path
