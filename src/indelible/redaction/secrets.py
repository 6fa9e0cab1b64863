"""Secrets: the ones that this process knows, names that stand for one, and values that look like one.

*Known* secrets are provider keys, tokens, passwords. No pattern has to guess what a secret looks like if we sent it.
`KnownSecrets` holds those of the settings together with those that the headers of a request carry, and hides each one
wherever it stands: as it is, as JSON and addresses escape it, and once more escaped, as in JSON within a text of JSON.
Whatever else an escape could spell is found after decoding (redact.py). A word that is no secret at all, such as the
`anything` that people give a server that wants no key, would be hidden in every sentence. So a secret needs eight
characters and must not look like an ordinary word.

A *name* is judged when an exchange is recorded: whatever stands under a sensitive header, JSON key or query parameter
is hidden before it reaches the database. A name is sensitive in any spelling (`apiKey`, `API-KEY`, `api key`).
Counters are not: `input_tokens` is a number that people want to see. When in doubt a name is sensitive, because a
record that hides too much is a nuisance and one that shows too much is a leak.

A *value* that looks like a key (`sk-…`, `Bearer …`, a JWT) is hidden when a record is exported or shown, and in the
failure texts that people read (models/failures/facts.py), by the dozen plain patterns below. Not earlier: what people
themselves wrote stands in the messages of the same database, so a search of it at record time would guard nothing. The
patterns run over JSON as it is written, so none of them consumes a quote or half of an escape: a document stays a
document. A search for a dozen patterns takes seconds in a long text, and a search for fixed strings takes none. So each
pattern comes with the *anchors* that its matches begin with, and is tried only where one of them stands. Each
repetition is possessive or bounded, so the time is linear, and no single call is long: other threads get their turn.

Must stay true (tests/redaction/test_known.py, test_patterns.py): a known secret is found however it is escaped, and no
half of one is left where a text is cut (`margin`); names are recognised in every style, counters and rate limits are
not hidden, no canary survives, JSON stays JSON, and four times the text costs four times the time.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote_plus

from indelible.logs import find_secrets
from indelible.settings import Settings, list_secrets

REDACTED: Final = "[redacted]"

# --- names ---

_MAX_NAME_CHARS: Final = 1000
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_NAME: Final = re.compile(
    r"secret|pass[^a-z0-9]?(?:word|wd|phrase|code)|pwd|jwt|bearer|credential|authori[sz]ation|cookie"
    r"|(?:api|access|private|signing|encryption|auth|refresh|master|service|subscription|ssh|shared|account|storage"
    r"|client|session|host|deploy|license)[^a-z0-9]?(?:key|tokens)"
    r"|token(?!s|i[sz]|[^a-z]?(?:count|limit|usage|budget|type|detail|estimate|expir|id|index))"
)
NAME_PARTS: Final = ("secret", "pass", "pwd", "jwt", "bearer", "credential", "authori", "cookie", "key", "token")
"""Every sensitive name holds one of these: text without any of them need not be parsed."""

_SECRET_HEADER: Final = re.compile(
    r"key|secret|password|credential|auth(?!or(?:$|[^i]|i[^sz]))|cookie|signature|session|[cx]srf"
)
_PARAMETER_WORDS: Final = frozenset({"key", "sig", "signature", "auth", "session", "sid", "pass", "pw"})


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether the value under this JSON key is to be hidden."""
    name = name[-_MAX_NAME_CHARS:]
    return bool(_SECRET_NAME.search(name.lower()) or _SECRET_NAME.search(_split_words(name)))


@lru_cache(maxsize=512)
def is_secret_header(name: str) -> bool:
    """Whether this header's value is to be hidden. The tokens that a rate limit counts are not."""
    squashed = name[-_MAX_NAME_CHARS:].lower().replace("-", "").replace("_", "")
    if "ratelimit" in squashed:
        squashed = squashed.replace("tokens", "")
    is_token = "token" in squashed and "ratelimit" not in squashed
    return is_token or is_secret_name(squashed) or _SECRET_HEADER.search(squashed) is not None


def is_secret_parameter(name: str) -> bool:
    """Whether to hide this query parameter's value. In a query a `key` is sensitive, and a `code` grants access."""
    plain = unquote_plus(unquote_plus(name[-_MAX_NAME_CHARS:]))
    words = re.split(r"[^a-z]+", _split_words(plain))
    return is_secret_name(plain) or words == ["code"] or not _PARAMETER_WORDS.isdisjoint(words)


def _split_words(name: str) -> str:
    return _HUMP.sub("_", name).lower()


# --- values that look like a key ---

_START: Final = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2}))"
"""Not within a word; an escape sequence is no part of a word."""

_WORD: Final = r"[A-Za-z0-9_*\-]"
_TOKEN: Final = r"[A-Za-z0-9._~+/=\-]"  # noqa: S105 - the alphabet of tokens
_BLANKS: Final = r"(?:\s|\\{1,31}[nrt]){1,3}"
_VALUE: Final = r"[^\s\"'`,;&\\{}\[\]()<>]"
_QUOTE: Final = r"\\{0,31}[\"'`]"


def _compile(anchors: str, *pattern: str) -> tuple[list[str], re.Pattern[str]]:
    return anchors.split(), re.compile("".join(pattern), re.ASCII | re.IGNORECASE)


_PATTERNS: Final = (
    # a private key, with its end or without
    _compile(
        "-----begin",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----",
        r"(?:[A-Z0-9+/=:,.\s]|\\{1,31}[nrt]|-(?!----))*+(?:-----END [A-Z0-9 ]{0,40}-----)?",
    ),
    # the keys of providers, which say what they are
    _compile("sk- rk- pk- whsec_", rf"{_START}(?:[srp]k-|whsec_){_WORD}{{3,}}+(?:\.{_WORD}++)*+"),
    _compile("xox sk_ rk_ pk_", rf"{_START}(?:xox[a-z]-|[srp]k_(?:live|test)_){_WORD}{{8,}}+"),
    _compile(
        "sk_ rk_ pk_ gsk_ hf_ r8_ npm_ ghp_ gho_ ghu_ ghs_ ghr_ dop_v1_ shpat_ xai- pplx- nvapi- glpat- tvly- pypi-",
        rf"{_START}[a-z0-9_]{{2,6}}[_\-](?=[A-Z_\-]{{0,64}}+[0-9]|[A-Z0-9]{{16}}){_WORD}{{6,}}+",
    ),
    _compile("github_pat_ ya29.", rf"{_START}(?:github_pat_|ya29\.){_WORD}{{16,}}+"),
    _compile("akia asia aiza", rf"{_START}(?-i:(?:AKIA|ASIA)[A-Z0-9]{{12,}}+|AIza[A-Za-z0-9_\-]{{10,}}+)"),
    # a JWT
    _compile("eyj", rf"(?<![_\-]){_START}(?-i:eyJ)[A-Z0-9_\-]{{5,}}+(?:\.[A-Z0-9_\-]*+){{1,4}}+"),
    # what follows the name of a scheme, if it is no ordinary word
    _compile(
        "bearer", rf"{_START}bearer{_BLANKS}(?P<hidden>{_TOKEN}{{16,}}+|(?=[A-Z]{{0,64}}+[0-9._~+/=\-]){_TOKEN}{{4,}}+)"
    ),
    _compile("basic token", rf"{_START}(?:basic|token){_BLANKS}(?P<hidden>(?=[A-Z+/\-]{{0,64}}+[0-9]){_TOKEN}{{8,}}+)"),
    _compile(
        "authorization",
        rf"authorization(?:{_QUOTE})?\s{{0,3}}[:=]\s{{0,3}}(?:{_QUOTE})?",
        rf"(?:(?:bearer|basic|digest|token|apikey|negotiate){_BLANKS})?+(?P<hidden>{_VALUE}{{4,}}+)",
    ),
    # what is assigned to a sensitive name; what follows a colon may be the next word of a sentence
    _compile(
        "api access account auth private refresh secret passw credential",
        r"(?:(?:api|access|account|auth|private|refresh)[ _\-]?(?:key|token)|secret|password|passwd|credentials?)",
        rf"(?:{_QUOTE}\s{{0,3}}[:=]\s{{0,3}}{_QUOTE}|\s{{0,3}}=\s{{0,3}}(?:{_QUOTE})?|:\s{{0,3}}{_QUOTE}",
        rf"|(?: provided)?:\s{{0,3}}(?=[^\s\"'`,;&\\\[\]0-9]{{0,40}}+[0-9]|{_WORD}{{16}}))",
        rf"(?P<hidden>(?!None|null|true|false){_VALUE}{{3,}}+)",
    ),
    # the parts of an address
    _compile(
        "key= sig= signature= code= token= credential=",
        r"(?:(?<=[?&;])(?:key|sig|code)|(?<=[?&;\-])(?:signature|credential)|(?<![A-Z0-9_\-])token)=",
        r"(?P<hidden>(?![0-9]{1,12}(?![A-Z0-9]))[^\s\"'`&,;)\\<>\[\]]++)",
    ),
    _compile(":// :\\", r":(?:\\{0,31}/){2}(?P<hidden>[^\s\"'`<>/?#@\\\[\]]{1,256}+)(?=@)"),
)


def redact_keys(text: str, mark: str = REDACTED) -> str:
    """The text without what looks like a key. What stands before a value is kept: it says what was hidden."""
    lowered = text.replace("\u0130", "i").lower()  # the one letter that becomes two
    hidden = sorted(span for anchors, pattern in _PATTERNS for span in _find(text, lowered, anchors, pattern))
    pieces: list[str] = []
    done = 0
    for start, end in hidden:
        if start >= done:
            pieces += text[done:start], mark
        done = max(done, end)
    return "".join((*pieces, text[done:])) if pieces else text


def _find(text: str, lowered: str, anchors: list[str], pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    for anchor in anchors:
        place = lowered.find(anchor)
        while place >= 0:
            found = pattern.match(text, place)
            end = place + 1
            if found is not None:
                end = found.end()
                yield found.span("hidden" if "hidden" in pattern.groupindex else 0)
            place = lowered.find(anchor, end)


# --- secrets that we know ---

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
