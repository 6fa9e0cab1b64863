"""What is a secret: by the name it has, or by how it looks.

Two questions, both answered without knowing where the text came from. A *name* (of a header, a JSON key, a query
parameter) is sensitive if its words say so, in any spelling: `apiKey`, `API-KEY`, `api key`. Counters are not:
`input_tokens` is a number that people want to see. A *text* may hold something that looks like a key wherever it
stands: `sk-…`, a bearer token, a JWT, a private key, the password in an address, a value that is given to a sensitive
name (`OPENAI_API_KEY=…`). The percent signs of an address are looked through, up to three deep.

When in doubt it is a secret: a record that hides too much is a nuisance, one that shows too much is a leak. Every
pattern looks at the text as it came, and what they find is hidden together: none can take another's beginning away.

Every pattern begins with letters of its own, and whatever it may have to give back is bounded, so the time is linear.
Most texts hold none of the letters that any pattern begins with; `may_hold_secret` sees that with a few substring
searches, and those texts are not looked at again.

Must stay true (tests/debug/test_secrets.py): no form of a secret passes, ordinary prose, code and counters do, the
time is linear, and a name or a text that `may_hold_secret` denies is one that nothing would be done to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from urllib.parse import unquote_plus

REDACTED: Final = "[redacted]"

Place = tuple[int, int]
"""From where to where a secret stands."""

_MAX_ROUNDS: Final = 4
_MAX_DECODINGS: Final = 3

BEGINNINGS: Final = (
    *("sk-", "rk-", "pk-", "sk_", "rk_", "pk_", "whsec_", "hf_", "xai-", "r8_", "pplx-", "nvapi-", "glpat-", "tvly-"),
    *("dop_v1_", "pat_", "npm_", "pypi-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "xox", "akia", "asia", "aiza"),
    *("ya29.", "eyj", "basic", "digest", "://", "\\/"),
    *("secret", "pass", "pwd", "jwt", "bearer", "credential", "auth", "cookie", "key", "token"),
    *("sig=", "signature=", "code=", "session", "sid=", "pw="),
)
"""In lower case: the letters without which there is neither a sensitive name nor anything that looks like a secret."""


def may_hold_secret(lowered: str) -> bool:
    """Whether a text, given in lower case, holds the beginning of anything that `redact_text` would hide."""
    return any(beginning in lowered for beginning in BEGINNINGS)


# --- names ---

_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_NAME: Final = re.compile(
    r"secret|pass[^a-z0-9]?(?:word|wd|phrase|code)|pwd|jwt|bearer|credential|authori[sz]ation|cookie"
    r"|(?:api|access|private|signing|encryption|auth|refresh|master|service|subscription|ssh|shared|account|storage"
    r"|client|session|host|deploy|license)[^a-z0-9]?(?:key|tokens)"
    r"|token(?!s|i[sz]|[^a-z]?(?:count|limit|usage|budget|type|detail|estimate|expir|id|index))"
)
_HEADER_PARTS: Final = ("key", "secret", "password", "credential", "auth", "cookie", "signature", "session")
_PARAMETER_WORDS: Final = frozenset({"key", "sig", "signature", "auth", "session", "sid", "pass", "pw"})


def is_secret_name(name: str) -> bool:
    """Whether what stands under this JSON key is nobody's business."""
    return bool(_SECRET_NAME.search(name.lower()) or _SECRET_NAME.search(_part_words(name)))


def is_secret_header(name: str) -> bool:
    """Whether a header's value is nobody's business. The tokens that a rate limit counts are everybody's."""
    squashed = name.lower().replace("-", "").replace("_", "")
    is_token = "token" in squashed and "ratelimit" not in squashed
    return is_token or any(part in squashed for part in _HEADER_PARTS)


def is_secret_parameter(name: str) -> bool:
    """Whether a query parameter's value is nobody's business. In a query a `key` is one, and a `code` opens doors."""
    plain = _decode(name)
    words = re.split(r"[^a-z]+", _part_words(plain))
    return is_secret_name(plain) or words == ["code"] or not _PARAMETER_WORDS.isdisjoint(words)


def _part_words(name: str) -> str:
    return _HUMP.sub("_", name).lower()


# --- looks ---

_LETTER: Final = r"[A-Za-z0-9_\-]"
_ESCAPED: Final = r"(?<=\\[nrt])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2})"
_START: Final = rf"(?:(?<![A-Za-z0-9])|{_ESCAPED})"
"""Not within a word, whatever the word's alphabet; an escape sequence is no part of one."""

_LOOKS: Final = re.compile(
    rf"{_START}(?<!{_LETTER}{{64}})(?:"  # in the midst of so many letters it is one of a blob's accidents
    + "|".join(
        (
            rf"(?:[srp]k-|whsec_|xox[a-z]-){_LETTER}{{8,}}",
            rf"[srp]k_(?:live_|test_|(?=[A-Za-z]{{0,32}}[0-9])){_LETTER}{{8,}}",
            rf"(?:gsk_|xai-|r8_|pplx-|nvapi-|glpat-|tvly-|dop_v1_|shpat_){_LETTER}{{12,}}",
            rf"pypi-(?=[A-Za-z_\-]{{0,40}}[0-9]){_LETTER}{{12,}}",
            rf"(?:hf|npm|gh[pousr])_[A-Za-z0-9]{{16,}}{_LETTER}*",
            rf"(?:github_pat_|ya29\.){_LETTER}{{16,}}",
            rf"(?:AKIA|ASIA)[A-Z0-9]{{12,}}{_LETTER}*",
            rf"AIza{_LETTER}{{20,}}",
        )
    )
    + rf")|(?:(?<!{_LETTER})|{_ESCAPED})eyJ{_LETTER}{{8,}}(?:\.{_LETTER}*){{0,3}}\.{_LETTER}{{4,}}"
)
_PRIVATE_KEYS: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END [A-Z0-9 ]{0,40}-----|\Z)"
)
_SCHEMES: Final = re.compile(
    rf"{_START}(?:bearer\s+([A-Za-z0-9._~+/=\-]{{16,}}|(?=[A-Za-z._~+/=\-]{{0,16}}[0-9])[A-Za-z0-9._~+/=\-]{{8,}})"
    r"|(?:basic|digest|token)\s+"
    r"((?=[A-Za-z._~+/\-]{0,64}[0-9]|(?-i:(?:[A-Za-z]{0,32}?[a-z][A-Z]){2}))[A-Za-z0-9._~+/\-]{8,}=*"
    r"|[A-Za-z0-9+/]{4,}={1,2}(?![A-Za-z0-9=])))",
    re.IGNORECASE,
)
"""What follows such a word is one if a digit is in it, its case goes up and down or it is padded; behind `bearer` also
if it is longer than any word."""


def redact_text(text: str) -> str:
    """A text without what looks like a secret."""
    return _hide(text, _find_in_text) if may_hold_secret(text.lower()) else text


def redact_url(url: str) -> str:
    """An address without the name and password in it, and without the values of sensitive parameters."""
    return _hide(url, _find_in_url)


def _hide(text: str, find: Callable[[str], Iterable[Place]]) -> str:
    """The text without what is found in it; nor, since two halves may have come together, in what is left."""
    for _ in range(_MAX_ROUNDS):
        kept: list[str] = []
        done = 0
        for start, end in sorted(find(text)):
            if start > done or not kept:
                kept += text[done:start], REDACTED
            done = max(done, end)
        hidden = "".join((*kept, text[done:]))
        if hidden == text:
            break
        text = hidden
    return text


def _find_in_text(text: str) -> Iterator[Place]:
    yield from _find_secrets(text)
    for address in _ADDRESSES.finditer(text):
        yield from _find_in_address(text, *address.span())


def _find_in_url(url: str) -> Iterator[Place]:
    yield from _find_secrets(url)
    yield from _find_in_address(url, 0, len(url))


def _find_secrets(text: str) -> Iterator[Place]:
    yield from (found.span() for found in _PRIVATE_KEYS.finditer(text))
    yield from (found.span() for found in _LOOKS.finditer(text))
    yield from (found.span(found.lastindex or 0) for found in _SCHEMES.finditer(text))
    yield from _find_values(text)


# --- values that are given to names ---

_NAMED: Final = re.compile(
    r"(?<![A-Za-z0-9_.\-])(?P<name>[A-Za-z0-9_.\-]++(?: (?i:key|token|secret)s?(?![A-Za-z0-9_.\-]))?)"
    r"\\{0,8}[\"'`]?\]?(?: provided| given)?"
    r"(?:\s{0,4}(?P<sign>:=|=>|=(?!=)|:(?!:|//))\s{0,4}|\s(?:is|was)\s)"
)
_PIECE: Final = r"(?:\[redacted\]|[^\s\"'`&,;)}\]])"
_QUOTED: Final = re.compile(r"(?P<quote>\\{0,8}[\"'`])(?P<value>(?:(?!(?P=quote))(?:\\.|[^\\\r\n])){4,}+)")
_ASSIGNED: Final = re.compile(rf"(?P<value>{_PIECE}{{4,}}+)")
_TOLD: Final = re.compile(rf"(?={_PIECE}{{0,32}}[0-9]|{_LETTER}{{20}})(?P<value>{_PIECE}{{6,}}+)")
"""What is quoted or assigned is one; what follows a colon may be the next word of a sentence, unless a digit is in it.
Without quotes a value ends at a blank or one of `& , ; ) } ]`."""

_HEADER: Final = re.compile(
    r"(?P<value>(?:bearer|basic|token|negotiate)\s+[^\s\"']+|digest\s[^\r\n]+|[^\s=;&\"']{1,80}=[^\r\n&\"']+)",
    re.IGNORECASE,
)
_COUNT: Final = re.compile(r"[0-9][0-9.,_]*[km%]?")
_CALL: Final = re.compile(r"[A-Za-z_][\w.]{2,60}[(\[][\w.]{0,60}[\"')\],]")


def _find_values(text: str) -> Iterator[Place]:
    """The values of sensitive names: `password=…`, `"api_key": "…"`, `Cookie: …`."""
    done = 0
    for found in _NAMED.finditer(text):
        if found.end() < done or not is_secret_name(found["name"]):
            continue
        value = _find_value(text, found)
        if value is not None and not _is_harmless(found["name"], value):
            done = value.end("value")
            yield value.span("value")


def _find_value(text: str, found: re.Match[str]) -> re.Match[str] | None:
    place = found.end()
    is_header = found["name"].lower().endswith(("authorization", "cookie"))
    bare = _ASSIGNED if "=" in (found["sign"] or "") else _TOLD
    return _QUOTED.match(text, place) or (is_header and _HEADER.match(text, place)) or bare.match(text, place)


def _is_harmless(name: str, value: re.Match[str]) -> bool:
    """Whether it is no value but a counter, or code: a call, or a variable of the same name."""
    said = value["value"]
    if "token" in name.lower() and _COUNT.fullmatch(said):
        return True
    if value.re is not _ASSIGNED:
        return False
    is_variable = len(said) <= 100 and _get_last_part(said.lstrip("${<")) == _get_last_part(name)
    return is_variable or _CALL.match(value.string, value.start("value")) is not None


def _get_last_part(path: str) -> str:
    return path.rpartition(".")[2].lower()


# --- addresses ---

_SLASHES: Final = r":(?:\\{0,8}/){2}"
_ADDRESSES: Final = re.compile(
    rf"{_SLASHES}(?:[^\s\"<>`/?#]*@)?[^\s\"'<>`]+|\?[A-Za-z][\w.%\[\]\-]{{0,80}}=[^\s\"'<>`]*"
)
_USER_INFO: Final = re.compile(
    rf"{_SLASHES}(?P<user>[^/?#\s@:\[]*:(?![0-9]{{1,5}}(?:[/?#]|\Z))\S{{0,256}}(?=@)|[^/?#\s]*(?=@))"
)
"""What stands before the last @ of a host, or behind a colon that no port follows: passwords with a slash exist."""

_QUERIES: Final = re.compile(r"[?&#;][^&#\s]*")
_PARAMETERS: Final = re.compile(r"[?&#;]([^=&#;?]+)=(?=.)")
_COMPONENTS: Final = re.compile(r"[^/?&#;=\s]+")


def _find_in_address(text: str, start: int, end: int) -> Iterator[Place]:
    yield from _find_parts(text, start, end)
    for found in _COMPONENTS.finditer(text, start, end):
        if "%" in found[0] or "+" in found[0]:
            plain = _decode(found[0])
            if any(plain[slice(*place)] != REDACTED for place in _find_plain(plain)):
                yield found.span()


def _find_plain(text: str) -> Iterator[Place]:
    yield from _find_secrets(text)
    yield from _find_parts(text, 0, len(text))


def _find_parts(text: str, start: int, end: int) -> Iterator[Place]:
    """User-info and sensitive parameters. Such a value may go on behind a semicolon or a question mark."""
    yield from (found.span("user") for found in _USER_INFO.finditer(text, start, end))
    for query in _QUERIES.finditer(text, start, end):
        for parameter in _PARAMETERS.finditer(text, *query.span()):
            if is_secret_parameter(parameter[1]):
                yield parameter.end(), query.end()
                break


def _decode(text: str) -> str:
    for _ in range(_MAX_DECODINGS):
        text = unquote_plus(text)
    return text
