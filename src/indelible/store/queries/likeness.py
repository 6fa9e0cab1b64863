"""Names of users that people cannot tell apart: `ada` and `Ada`, or with a Cyrillic `а` for the Latin one.

Names that have the same likeness look the same, whatever their letters' case, so at most one user has each: the column
`users.likeness` is unique. It was added later: of several old users who look the same the first has it, the others have
null and stay as they are (`indelible doctor` names them).

A likeness joins no letters that differ only in some fonts, because then honest names would collide (`ian` and `lan`).
Such a disguise of a name that exists is refused all the same (`remove_disguise`): a capital I for an l, a 0 for an o.

Letters are those that Unicode lists as confusable (UTS 39) and that keyboards have: Cyrillic, Greek, Armenian. The full
list has thousands of symbols that nobody's name has.

Must stay true (tests/store/test_user_names.py).
"""

from __future__ import annotations

import unicodedata
from typing import Final

_LATIN: Final = str.maketrans(
    # Cyrillic, Greek, Armenian, and Latin letters of other languages, in lower case
    "авеѕіјкмнорстхуԁһԛԝӏ" + "αβεζηικμνορτυχ" + "օսոհ" + "ıɑɡɩ",
    "abesijkmhopctxydhqwl" + "abezhikmvoptux" + "ouuh" + "iagi",
)
_MARKS: Final = str.maketrans("‐‑‒–—−’‘ʼ", "------'''")
_UNSEEN: Final = dict.fromkeys(
    [0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]
)
"""Printable, and nothing is to be seen of them."""
_DISGUISES: Final = str.maketrans("I|10", "lllo")


def find_likeness(name: str) -> str:
    """What all names have in common that look like this one."""
    folded = unicodedata.normalize("NFKC", name.translate(_UNSEEN)).translate(_UNSEEN).casefold()
    seen = unicodedata.normalize("NFKC", folded).translate(_LATIN).translate(_MARKS)
    return " ".join(seen.split())


def remove_disguise(name: str) -> str:
    """The likeness of the name that this one may be a disguise of."""
    return find_likeness(name.translate(_DISGUISES))
