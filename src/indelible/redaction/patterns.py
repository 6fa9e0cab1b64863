"""What is a secret by its looks, wherever it stands in a text.

A text may hold something that looks like a key: `sk-…`, a bearer token, a JWT, a private key, the password in an
address, a value that is given to a sensitive name (`OPENAI_API_KEY=…`; a list or an object goes as a whole). The
percent signs of an address are looked through. When in doubt it is a secret. Every pattern looks at the text as it
came, and what they find is hidden together: none can take another's beginning away.

Patterns are slow, and long texts of source code are sent again with every step. So no pattern is searched for: each has
beginnings without which it can not match, those are looked for quickly (beginnings.py), and a pattern is only tried
where one of its own stands. The outcome is that of a search through the whole text. It is also why nobody waits for
long: a try takes what it matches, and whatever it may have to give back is bounded. The time is linear.

Must stay true (tests/redaction/test_patterns.py, test_secrets_property.py): no form of a secret passes, ordinary prose,
code and counters do, the time is linear, no try lasts long, and it finds what a plain search for every pattern finds.

Names are names.py; bodies, headers and lines are redact.py.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from indelible.redaction.beginnings import Beginnings
from indelible.redaction.names import decode, is_secret_name, is_secret_parameter

REDACTED: Final = "[redacted]"

Place = tuple[int, int]
"""From where to where a secret stands."""

_MAX_ROUNDS: Final = 4

BEGINNINGS: Final = Beginnings({
    "k": ("key", "token", "cookie", "sk-", "rk-", "pk-", "sk_", "rk_", "pk_", "gsk_", "akia"),
    "p": ("pass", "pwd", "npm_", "pypi-", "glpat-", "shpat_", "github_pat_"),
    "cre": ("secret", "credential"),
    ":": ("://", ":\\", ":/\\"),
    "?": ("?",),
    "h": ("authori", "whsec_", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    "b": ("bearer", "basic", "-----begin "),
    "digest": ("digest",),
    "x": ("xai-", "pplx-"),
    "ox": ("xox",),
    "v": ("nvapi-", "tvly-", "dop_v1_"),
    "w": ("jwt",),
    "j": ("eyj",),
    "z": ("aiza",),
    "sia": ("asia",),
    "8": ("r8_",),
    "9": ("ya29.",),
})  # fmt: skip
"""The letters without which there is neither a sensitive name nor anything that looks like a secret."""

_PRIVATE_KEY_BEGINNINGS: Final = frozenset({"-----begin "})
_SCHEME_BEGINNINGS: Final = frozenset({"bearer", "basic", "digest", "token"})
_ADDRESS_BEGINNINGS: Final = frozenset({"://", ":\\", ":/\\", "?"})
_NAME_BEGINNINGS: Final = frozenset({
    *("secret", "pass", "pwd", "jwt", "bearer", "credential", "authori", "cookie", "key", "token"),
})  # fmt: skip
_LOOK_BEGINNINGS: Final = frozenset(string for strings in BEGINNINGS.by_anchor.values() for string in strings) - (
    _PRIVATE_KEY_BEGINNINGS | _SCHEME_BEGINNINGS | _ADDRESS_BEGINNINGS | _NAME_BEGINNINGS
)


class _Traces(NamedTuple):
    """Where the beginnings of each kind of pattern stand, in order."""

    private_keys: list[int]
    looks: list[int]
    schemes: list[int]
    names: list[int]
    addresses: list[int]


Beginning = tuple[int, str]
"""Where one of the beginnings stands, and which it is."""


def _sort_traces(found: Sequence[Beginning]) -> _Traces:
    kinds = (_PRIVATE_KEY_BEGINNINGS, _LOOK_BEGINNINGS, _SCHEME_BEGINNINGS, _NAME_BEGINNINGS, _ADDRESS_BEGINNINGS)
    return _Traces(*(sorted(place for place, string in found if string in kind) for kind in kinds))


def _try_at(pattern: re.Pattern[str], text: str, places: Iterable[int], end: int) -> Iterator[re.Match[str]]:
    """What a search for the pattern would find in the text up to `end`, if it can begin at these places only."""
    done = 0
    for place in places:
        if place >= done and (found := pattern.match(text, place, end)):
            done = found.end()
            yield found


def redact_text(text: str) -> str:
    """A text without what looks like a secret."""
    return _hide(text, _find_in_text)


def redact_url(url: str) -> str:
    """An address without the name and password in it, and without the values of sensitive parameters."""
    return _hide(url, _find_in_url)


def _hide(text: str, find: Callable[[str, _Traces], Iterable[Place]]) -> str:
    """The text without what is found in it; nor, since two halves may have come together, in what is left."""
    beginnings = list(BEGINNINGS.find(text))
    for _ in range(_MAX_ROUNDS):
        hidden = [place for place in _merge(find(text, _sort_traces(beginnings))) if text[slice(*place)] != REDACTED]
        if not hidden:
            break
        text, beginnings = _replace(text, hidden, beginnings)
    return text


def _merge(places: Iterable[Place]) -> list[Place]:
    """In order, and those that touch as one."""
    merged: list[Place] = []
    for start, end in sorted(places):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _replace(text: str, hidden: Sequence[Place], beginnings: Sequence[Beginning]) -> tuple[str, list[Beginning]]:
    """The text without these places, and where its beginnings stand then: they moved, and some are new at the seams."""
    starts = [start for start, _ in hidden]
    removed = list(accumulate((end - start - len(REDACTED) for start, end in hidden), initial=0))
    ends = [0, *(end for _, end in hidden)]
    kept = [text[end:start] for end, start in zip(ends, [*starts, len(text)], strict=True)]
    moved = []
    for place, string in beginnings:
        before = bisect_right(starts, place)
        if place >= ends[before] and (before == len(starts) or place + len(string) <= starts[before]):
            moved.append((place - removed[before], string))
    shorter = REDACTED.join(kept)
    seams = [start - gone for start, gone in zip(starts, removed, strict=False)]
    return shorter, list({*moved, *_find_at_seams(shorter, seams)})


def _find_at_seams(text: str, seams: Sequence[int]) -> Iterator[Beginning]:
    """The beginnings in what stands around these marks; all of it is searched at once."""
    reach = BEGINNINGS.longest
    around = [(max(0, seam - reach), seam + len(REDACTED) + reach) for seam in seams]
    pieces = [text[start:end] for start, end in around]
    offsets = list(accumulate((len(piece) + 1 for piece in pieces), initial=0))
    for place, string in BEGINNINGS.find("\n".join(pieces)):
        number = bisect_right(offsets, place) - 1
        start = around[number][0]
        within = place - offsets[number]
        if within + len(string) >= reach or start == 0:  # else a longer one may stand there, and it was known before
            yield start + within, string


def _find_in_text(text: str, traces: _Traces) -> Iterator[Place]:
    yield from _find_secrets(text, traces)
    for address in _try_at(_ADDRESS, text, traces.addresses, len(text)):
        yield from _find_in_address(text, *address.span())


def _find_in_url(url: str, traces: _Traces) -> Iterator[Place]:
    yield from _find_secrets(url, traces)
    yield from _find_in_address(url, 0, len(url))


def _find_secrets(text: str, traces: _Traces) -> Iterator[Place]:
    yield from _find_private_keys(text, traces.private_keys)
    yield from (found.span() for found in _try_at(_LOOK, text, traces.looks, len(text)) if not _is_in_blob(found))
    yield from (found.span(found.lastindex or 0) for found in _try_at(_SCHEME, text, traces.schemes, len(text)))
    yield from _find_values(text, traces.names)
    yield from _find_options(text)


# --- looks ---

_LETTER: Final = r"[A-Za-z0-9_\-]"
_ESCAPED: Final = r"(?<=\\[nrt])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2})"
_START: Final = rf"(?:(?<![A-Za-z0-9])|{_ESCAPED})"
"""Not within a word, whatever the word's alphabet; an escape sequence is no part of one."""

_LOOK: Final = re.compile(
    rf"{_START}(?:"
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
    + rf")|(?P<jwt>(?:(?:(?<!{_LETTER})|{_ESCAPED})eyJ{_LETTER}{{8,}}+|(?<=[_\-])eyJ{_LETTER}{{8,1024}}+)"
    rf"(?:\.{_LETTER}*+){{0,3}}\.{_LETTER}{{4,}})"
)
_SCHEME: Final = re.compile(
    rf"{_START}(?:(?ai:bearer)\s++"
    r"([A-Za-z0-9._~+/=\-]{16,}|(?=[A-Za-z._~+/=\-]{0,16}[0-9])[A-Za-z0-9._~+/=\-]{8,})"
    r"|(?ai:basic|digest|token)\s++"
    r"((?=[A-Za-z._~+/\-]{0,64}[0-9]|(?:[A-Za-z]{0,32}?[a-z][A-Z]){2})[A-Za-z0-9._~+/\-]{8,}=*"
    r"|[A-Za-z0-9+/]{4,}={1,2}(?![A-Za-z0-9=])))"
)
"""What follows such a word is one if a digit is in it, its case goes up and down or it is padded; behind `bearer` also
if it is longer than any word."""

_BLOB_LETTERS: Final = 64
_BLOB_SIGNS: Final = 16


def _is_in_blob(look: re.Match[str]) -> bool:
    """Whether it is an accident in the midst of many letters. Those of a blob are letters indeed, and few are signs."""
    before = look.string[max(0, look.start() - _BLOB_LETTERS) : look.start()]
    letters = before.replace("-", "").replace("_", "")
    is_blob = len(before) == _BLOB_LETTERS and len(letters) >= _BLOB_LETTERS - _BLOB_SIGNS
    return is_blob and look["jwt"] is None and letters.isascii() and letters.isalnum()


_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END: Final = re.compile(r"-----END [A-Z0-9 ]{0,40}-----")


def _find_private_keys(text: str, places: Iterable[int]) -> Iterator[Place]:
    done = 0
    for place in places:
        if place >= done and (found := _PRIVATE_KEY.match(text, place)):
            ends = _try_at(_KEY_END, text, _find_all(text, "-----END ", found.end(), len(text)), len(text))
            end = next(ends, None)
            done = len(text) if end is None else end.end()
            yield place, done


def _find_all(text: str, part: str, start: int, end: int) -> Iterator[int]:
    place = text.find(part, start, end)
    while place >= 0:
        yield place
        place = text.find(part, place + 1, end)


# --- values that are given to names ---

_NAME_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_GIVEN: Final = (
    r"\\{0,8}[\"'`]?\]?(?: provided| given)?(?:\s{0,4}(?P<sign>:=|=>|=(?!=)|:(?!:|//))\s{0,4}|\s(?:is|was)\s"
    r"|(?P<tag>>)(?=[^<>\s]{4,256}</))"
)
_NAMED: Final = re.compile(
    rf"(?<![A-Za-z0-9_.\-])(?P<name>[A-Za-z0-9_.\-]++(?: (?ai:keys?|tokens)(?![A-Za-z0-9_.\-]))?){_GIVEN}"
)
_REST_OF_NAME: Final = re.compile(rf"(?P<rest>[A-Za-z0-9_.\-]*+)(?P<given>{_GIVEN})?")
_PIECE: Final = r"(?:\[redacted\]|[^\s\"'`&,;)}\]])"
_PIECES: Final = r"(?:[^\s\"'`&,;)}\]\[]++|\[redacted\]|\[)++"
_INSIDE: Final = r"(?:(?!(?P=quote))(?:\\.|[^\\\r\n]))"
_QUOTED: Final = re.compile(rf"(?P<quote>\\{{0,8}}[\"'`])(?={_INSIDE}{{4}}+)(?P<value>(?:[^\\\r\n\"'`]++|{_INSIDE})++)")
_ASSIGNED: Final = re.compile(rf"(?={_PIECE}{{4}}+)(?P<value>{_PIECES})")
_TOLD: Final = re.compile(rf"(?={_PIECE}{{0,32}}[0-9]|{_LETTER}{{20}})(?={_PIECE}{{6}}+)(?P<value>{_PIECES})")
"""What is quoted or assigned is one; what follows a colon may be the next word of a sentence, unless a digit is in it.
Without quotes a value ends at a blank or one of `& , ; ) } ]`."""

_HEADER: Final = re.compile(
    r"(?P<value>(?ai:bearer|basic|token|negotiate|api-?key)\s+[^\s\"']+|(?ai:digest)\s[^\r\n]+|[^\s=;&\"']{1,80}=[^\r\n&\"']+)"
)
_OPTION: Final = re.compile(
    r" --(?P<name>[a-z][a-z\-]{2,40}) [\"']?(?P<value>(?!-)(?=[^\s\"'`]{0,64}[0-9]|[^\s\"'`]{20})[^\s\"'`]{6,})"
)
_NEAR_LETTERS: Final = 4096
_BRACKET_OR_QUOTE: Final = re.compile(r"[{}\[\]]|\\{0,8}[\"']")
_LINE_END: Final = re.compile(r"[\r\n]")
_PLACEHOLDER: Final = re.compile(r"\{\s{0,4}\}|\[\s{0,4}\]|\{{1,2} ?[A-Za-z_][A-Za-z_.]{0,60} ?\}{1,2}")
_CONSTANTS: Final = frozenset({"none", "null", "nil", "true", "false", "undefined"})
_LOOKED_FOR: Final = re.compile(r"[\"'] (?:not )?in ")
"""`is_token = "token" in name` gives nothing away."""

_COUNT: Final = re.compile(r"[0-9][0-9.,_]*[km%]?")
_CALL: Final = re.compile(r"[A-Za-z_][\w.]{2,60}[(\[][\w.]{0,60}[\"')\],]")


def _find_values(text: str, places: Iterable[int]) -> Iterator[Place]:
    """The values of sensitive names: `password=…`, `"api_key": "…"`, `Cookie: …`."""
    named_to = hidden_to = 0
    brackets = _Brackets(text)
    for place in places:
        if place < named_to or not (behind := _REST_OF_NAME.match(text, place)):
            continue
        named_to = behind.end("rest")
        if behind["given"] is None or behind.end() < hidden_to or not (found := _match_name(text, place)):
            continue
        value = _find_value(found, brackets) if is_secret_name(found["name"]) else None
        if value is not None:
            hidden_to = value[1]
            yield value


def _find_options(text: str) -> Iterator[Place]:
    """The values of sensitive options on the line of a command: `--api-key …`."""
    for option in _try_at(_OPTION, text, _find_all(text, " --", 0, len(text)), len(text)):
        if is_secret_name(option["name"]):
            yield option.span("value")


def _match_name(text: str, place: int) -> re.Match[str] | None:
    """The name that this place is in, with what stands behind it. Some are two words: `api key`."""
    start = _find_name_start(text, place)
    if start == place and text[place - 1 : place] == " ":
        two_words = _NAMED.match(text, _find_name_start(text, place - 1))
        if two_words:
            return two_words
    return _NAMED.match(text, start)


def _find_name_start(text: str, place: int) -> int:
    while place > 0:
        before = text[max(0, place - 64) : place]
        rest = before.rstrip(_NAME_LETTERS)
        place -= len(before) - len(rest)
        if rest:
            break
    return place


def _find_value(found: re.Match[str], brackets: _Brackets) -> Place | None:
    """What is given to this name, unless it is harmless. A list or an object goes as a whole."""
    text, place = found.string, found.end()
    if found["tag"]:
        end = text.index("<", place)
        return None if _COUNT.fullmatch(text, place, end) else (place, end)
    if found["sign"] and text[place : place + 1] in ("{", "[") and not text.startswith(REDACTED, place):
        end = brackets.find_end(place)
        return None if _PLACEHOLDER.fullmatch(text, place, end) else (place, end)
    is_header = found["name"].lower().endswith(("authorization", "cookie"))
    bare = _ASSIGNED if "=" in (found["sign"] or "") else _TOLD
    value = _QUOTED.match(text, place) or (is_header and _HEADER.match(text, place)) or bare.match(text, place)
    return None if not value or _is_harmless(found["name"], value) else value.span("value")


def _is_harmless(name: str, value: re.Match[str]) -> bool:
    """Whether it is no value but a counter, or code: a constant, a call, or a name."""
    said = value["value"]
    if "token" in name.lower() and _COUNT.fullmatch(said):
        return True
    if value.re is _QUOTED:
        return _LOOKED_FOR.match(value.string, value.end()) is not None and said.isidentifier() and is_secret_name(said)
    if value.re is not _ASSIGNED:
        return False
    is_variable = len(said) <= 100 and _get_last_part(said.lstrip("${<")) == _get_last_part(name)
    is_code = is_variable or said.lower() in _CONSTANTS
    return is_code or _CALL.match(value.string, value.start("value")) is not None


def _get_last_part(path: str) -> str:
    return path.rpartition(".")[2].lower()


class _Brackets:
    """Which bracket ends what another begins. No part of a text is looked through twice, however many are asked for."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends: dict[int, int] = {}
        self._known_to = 0

    def find_end(self, start: int) -> int:
        """Where it ends that begins at this bracket: if that is not near, at the end of the line."""
        if start >= self._known_to:
            self._look_through(start)
        if start in self._ends:
            return self._ends[start]
        line_end = _LINE_END.search(self._text, start)
        return line_end.start() if line_end else len(self._text)

    def _look_through(self, start: int) -> None:
        """Brackets in quotes are none. A quote that is escaped ends at one that is escaped alike."""
        open_at: list[int] = []
        quote = ""
        self._known_to = start + _NEAR_LETTERS
        for found in _BRACKET_OR_QUOTE.finditer(self._text, start, self._known_to):
            sign = found[0]
            if quote:
                is_end = sign == quote or (sign[-1] == quote and len(sign) % 2 == 1)
                quote = "" if is_end else quote
            elif sign in ("{", "["):
                open_at.append(found.start())
            elif sign not in ("}", "]"):
                quote = sign
            else:
                self._ends[open_at.pop()] = found.end()
                if not open_at:
                    self._known_to = found.end()
                    break


# --- addresses ---

_SLASHES: Final = r":(?:\\{0,8}/){2}"
_ADDRESS: Final = re.compile(rf"{_SLASHES}(?:[^\s\"<>`/?#]*@)?[^\s\"'<>`]+|\?[A-Za-z][\w.%\[\]\-]{{0,80}}=[^\s\"'<>`]*")
_USER_INFO: Final = re.compile(
    rf"{_SLASHES}(?P<user>[^/?#\s@:\[]*:(?![0-9]{{1,5}}(?:[/?#]|\Z))\S{{0,256}}(?=@)|[^/?#\s]*(?=@))"
)
"""What stands before the last @ of a host, or behind a colon that no port follows: passwords with a slash exist."""

_QUERY: Final = re.compile(r"[?&#;][^&#\s]*")
_PARAMETERS: Final = re.compile(r"[?&#;]([^=&#;?]++)=(?=.)")
_COMPONENTS: Final = re.compile(r"[^/?&#;=\s]+")


def _find_in_address(text: str, start: int, end: int) -> Iterator[Place]:
    yield from _find_parts(text, start, end)
    if text.find("%", start, end) < 0 and text.find("+", start, end) < 0:
        return
    for found in _COMPONENTS.finditer(text, start, end):
        if "%" in found[0] or "+" in found[0]:
            plain = decode(found[0])
            if plain != found[0] and any(plain[slice(*place)] != REDACTED for place in _find_plain(plain)):
                yield found.span()


def _find_plain(text: str) -> Iterator[Place]:
    yield from _find_secrets(text, _sort_traces(list(BEGINNINGS.find(text))))
    yield from _find_parts(text, 0, len(text))


def _find_parts(text: str, start: int, end: int) -> Iterator[Place]:
    """User-info and sensitive parameters. Such a value may go on behind a semicolon or a question mark."""
    if text.find("@", start, end) >= 0:
        users = _try_at(_USER_INFO, text, _find_all(text, ":", start, end), end)
        yield from (found.span("user") for found in users)
    signs = sorted(place for sign in "?&#;" for place in _find_all(text, sign, start, end))
    for query in _try_at(_QUERY, text, signs, end):
        for parameter in _PARAMETERS.finditer(text, *query.span()):
            if is_secret_parameter(parameter[1]):
                yield parameter.end(), query.end()
                break
