"""The secrets that this process itself knows: provider keys, tokens, passwords. They are hidden verbatim.

No pattern has to guess what a secret looks like if we sent it. `KnownSecrets` holds those of the settings together with
those that the headers of a request carry, and hides each one wherever it stands: as it is, as JSON and addresses
escape it, and once more escaped, as in JSON within a text of JSON. Whatever else an escape could spell is found after
decoding (json.py).

A word that is no secret at all, such as the `anything` that people give a server that wants no key, would be hidden in
every sentence. So a secret needs eight characters and must not look like an ordinary word.

Must stay true (tests/redaction/test_known.py): a known secret is found however it is escaped, and no half of one is
left where a text is cut (`margin`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import quote

from indelible.logs import find_secrets
from indelible.redaction.patterns import REDACTED, is_secret_header
from indelible.settings import Settings, list_secrets

_SHORTEST: Final = 8
_LONGEST_WORD: Final = 20
_SIGN: Final = re.compile(r"[^A-Za-z0-9._~\-]")
_HEX: Final = re.compile(r"%[0-9A-F]{2}")
_COOKIE_ATTRIBUTES: Final = frozenset({"path", "domain", "expires", "max-age", "samesite", "priority"})


class KnownSecrets:
    """Secrets, in every form that is searched for. `margin` is the length of the longest form."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.secrets: Final = tuple(dict.fromkeys(filter(_is_distinct, secrets)))
        forms = {form for secret in self.secrets for form in list_forms(secret)}
        self._forms = sorted(forms, key=len, reverse=True)
        self.margin: Final = len(self._forms[0]) if self._forms else 0

    def sent_with(self, headers: Mapping[str, str]) -> KnownSecrets:
        """These, and those that the headers of a request carry: a provider may repeat them."""
        words = [word for name, value in headers.items() if is_secret_header(name) for word in _list_words(name, value)]
        return KnownSecrets((*self.secrets, *words)) if words else self

    def hide(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, REDACTED)
        return text


def _is_distinct(secret: str) -> bool:
    """Whether it is no ordinary word: it is long, or its letters are of many kinds."""
    if len(secret) < _SHORTEST or not any(map(str.isalpha, secret)):
        return False
    is_mixed = any(map(str.islower, secret)) and any(map(str.isupper, secret[1:]))
    return is_mixed or len(secret) >= _LONGEST_WORD or any(map(str.isdigit, secret))


def list_forms(secret: str) -> Iterator[str]:
    """The secret as it may stand in a text: escaped in JSON, in a URL, or in both."""
    once = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    once |= {form.replace("/", "\\/") for form in once}
    once |= {_SIGN.sub(_escape, secret), _SIGN.sub(lambda sign: _escape(sign).upper().replace("U", "u"), secret)}
    quoted = {quote(secret, safe=""), quote(secret, safe="/"), quote(secret, safe="/+=:")}
    quoted |= {_HEX.sub(lambda code: code[0].lower(), form) for form in quoted}
    quoted |= {form.replace("%", "%25") for form in quoted}
    yield from once | {json.dumps(form, ensure_ascii=False)[1:-1] for form in once} | quoted


def _escape(sign: re.Match[str]) -> str:
    return f"\\u{ord(sign[0]):04x}"


def _list_words(name: str, value: str) -> Iterator[str]:
    """The words of a sensitive header that may be secrets."""
    if "cookie" not in name.lower():
        yield value.rpartition(" ")[2]
        return
    for part in re.split(r"[;,]\s*", value):
        key, _, word = part.strip().partition("=")
        if key.lower() not in _COOKIE_ATTRIBUTES:
            yield word.strip('"')


def list_process_secrets(settings: Settings) -> list[str]:
    """The secrets among the settings and in the environment."""
    return [*list_secrets(settings), *find_secrets(os.environ.items())]


NO_SECRETS: Final = KnownSecrets()
