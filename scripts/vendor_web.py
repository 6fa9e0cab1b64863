"""`make vendor`: fetch the web libraries of the page from npm and write them, with their list, into web/vendor/.

The page has no build step, so its libraries are files in the repository. This script is the only way they get there: it
unpacks the named version with `npm pack`, copies the few files that the page loads, and writes `LIST.md` with version,
licence, size and SHA-256 of every file. The only changes to a file: an import by package name becomes one by path, and
the reference to a source map, which is not here, becomes a comment.

Must stay true (tests/server/test_web_vendor.py): every file in web/vendor/ is in the list with its hash, and there is
no other.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

VENDOR: Final = Path(__file__).parents[1] / "src" / "indelible" / "server" / "web" / "vendor"


class Library(NamedTuple):
    package: str
    version: str
    files: dict[str, str]
    purpose: str


LIBRARIES: Final = (
    Library("preact", "11.2.0", {"dist/preact.mjs": "preact.mjs", "hooks/dist/hooks.mjs": "hooks.mjs"}, "the view"),
    Library("htm", "3.1.1", {"dist/htm.mjs": "htm.mjs"}, "templates without a build step"),
    Library("marked", "18.2.0", {"lib/marked.esm.js": "marked.mjs"}, "Markdown to tokens"),
    Library("@highlightjs/cdn-assets", "11.12.0", {"es/highlight.min.js": "highlight.mjs"}, "code, loaded when needed"),
    Library("katex", "0.19.1", {"dist/katex.min.js": "katex.js"}, "math as MathML, loaded when needed"),
)
_BY_PATH: Final = {b'from"preact"': b'from"./preact.mjs"', b"//# sourceMappingURL=": b"// source map: "}


def fetch(library: Library, directory: Path) -> tuple[str, str, dict[str, bytes]]:
    """The licence's name, its text, and the content of each wanted file by the name that it gets here."""
    name = f"{library.package}@{library.version}"
    packed = subprocess.run(  # noqa: S603 - fixed arguments
        ["npm", "pack", "--silent", "--pack-destination", str(directory), name],  # noqa: S607 - the user's own npm
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()[-1]
    with tarfile.open(directory / packed) as archive:
        contents = {}
        for member in archive.getmembers():
            file = archive.extractfile(member)
            if file is not None:
                contents[member.name.partition("/")[2]] = file.read()
    licence = json.loads(contents["package.json"])["license"]
    [text] = [content.decode() for path, content in contents.items() if path.upper().split(".")[0] == "LICENSE"]
    wanted = {}
    for path, target in library.files.items():
        content = contents[path]
        for old, new in _BY_PATH.items():
            content = content.replace(old, new)
        wanted[target] = content
    return licence, text, wanted


def main() -> None:
    VENDOR.mkdir(exist_ok=True)
    rows, licences = [], []
    with tempfile.TemporaryDirectory() as directory:
        for library in LIBRARIES:
            licence, text, files = fetch(library, Path(directory))
            licences.append(f"## {library.package} {library.version}\n\n```text\n{text.strip()}\n```\n")
            for target, content in files.items():
                (VENDOR / target).write_bytes(content)
                packed = len(gzip.compress(content, mtime=0))
                digest = hashlib.sha256(content).hexdigest()
                rows.append(
                    f"| `{target}` | {library.package} | {library.version} | {licence} | {library.purpose} "
                    f"| {len(content):,} | {packed:,} | `{digest}` |"
                )
    table = "\n".join(rows)
    (VENDOR / "LIST.md").write_text(
        "# Vendored libraries\n\nWritten by `make vendor` (scripts/vendor_web.py); do not edit.\n\n"
        "| file | package | version | licence | for | bytes | gzip | SHA-256 |\n|---|---|---|---|---|---|---|---|\n"
        f"{table}\n\n" + "\n".join(licences)
    )
    sys.stdout.write(f"{len(rows)} files in {VENDOR}\n")


if __name__ == "__main__":
    main()
