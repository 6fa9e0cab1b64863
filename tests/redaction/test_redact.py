"""Bodies and headers as they are kept: no canary in them, and everything else as it came.

What looks like a secret is test_secrets.py's; here it stands in headers, documents, event streams, forms, and beside a
gap. Random ones are in test_redact_property.py.
"""

from __future__ import annotations

import gc
import json
import time
from typing import Any, Final
from urllib.parse import quote

import pytest
from tests.recording.canaries import (
    CANARY,
    LOOKS,
    NAMES,
    ORDINARY,
    ORDINARY_NAMES,
    PRIVATE_KEY,
    PRIVATE_KEY_WITH_A_BLANK_LINE,
)

from indelible.redaction.redact import (
    GAP,
    REDACTED,
    hide_known,
    list_secrets,
    redact_address,
    redact_body,
    redact_headers,
    redact_json,
    redact_line,
)

SSE: Final = "text/event-stream"
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
FORM: Final = "application/x-www-form-urlencoded"
TEXT: Final = "text/plain"
USAGE: Final = {
    "input_tokens": 12,
    "output_tokens": 34,
    "output_tokens_details": {"reasoning_tokens": 5},
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 7}],
    "max_tokens": 4096,
    "token_count": 9,
    "total_token": 3,
    "logprob_token": 0.5,
}


def check_hidden(body: str, content_type: str) -> str:
    """The body as it is kept. No canary is in it, and redacting it once more changes nothing."""
    kept = redact_body(body.encode(), content_type)
    assert CANARY not in kept.lower(), body
    assert REDACTED in kept or "[not " in kept or "[binary" in kept, body
    assert redact_body(kept.encode(), content_type) == kept or "[not a JSON" in kept
    return kept


def check_kept(body: str, content_type: str) -> None:
    assert redact_body(body.encode(), content_type) == body


# --- headers -----------------------------------------------------------------------------


@pytest.mark.parametrize("change", [str.lower, str.upper, str.title])
def test_sensitive_headers_are_hidden_in_any_case(change: Any) -> None:
    names = ["authorization", "cookie", "set-cookie", "x-api-key", "api-key", "x-auth-token", "x-client-secret"]
    headers = {change(name): "canary" for name in names}
    assert redact_headers(headers) == dict.fromkeys(headers, REDACTED)


def test_counters_of_headers_stay() -> None:
    headers = {
        "content-type": "application/json; charset=utf-8",
        "retry-after": "20",
        "retry-after-ms": "1200",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-reset-tokens": "6m0s",
        "anthropic-ratelimit-input-tokens-reset": "2026-01-01T00:00:00Z",
        "x-request-id": "req_0123456789abcdef0123456789abcdef",
        "openai-processing-ms": "123",
        "x-empty-token": "",
        "link": '<https://host/v1?page=2>; rel="next"',
    }
    assert redact_headers(headers) == headers


def test_a_secret_in_any_header_is_hidden() -> None:
    for secret in LOOKS:
        assert CANARY not in str(redact_headers({"x-note": secret, "warning": f'199 - "{secret}"'})).lower()
        assert CANARY not in str(redact_headers({secret: "x"})).lower()


def test_the_parameters_of_an_address_without_a_host_are_looked_at() -> None:
    assert redact_headers({"location": "/back?code=canary&state=1"}) == {"location": "/back?code=[redacted]&state=1"}


def test_long_headers_are_cut_before_they_are_searched() -> None:
    redacted = redact_headers({"x-note": "word " * 2000 + "sk-canarycanary", "y" * 9000: "x"})
    assert redacted["x-note"].startswith("word word")
    assert redacted["x-note"].endswith("letters are missing here …]")
    assert all(len(line) <= 4096 for pair in redacted.items() for line in pair)


def test_long_errors_and_addresses_are_cut_before_they_are_searched() -> None:
    assert len(redact_line("sk-canarycanary " * 9000)) < 4096
    assert CANARY not in redact_line("a " * 2013 + "sk-canarycanary " * 9)
    address = redact_address("https://me:canary@host/" + "a/" * 5000 + "?key=canary")
    assert address.startswith("https://[redacted]@host/a/a/")
    assert CANARY not in address


def test_the_secrets_of_headers_are_those_that_a_provider_may_repeat() -> None:
    headers = {
        "Authorization": "Bearer canary-Canary",
        "Cookie": 'sid=canary0canary; theme=dark; other="canary1canary"',
        "set-cookie": "id=canary2canary; Path=/somewhere/else; Domain=host.example; Expires=Wed, 21 Oct 2015 07:28:00",
        "x-author": "Somebody",
        "x-session-mode": "interactive",
        "x-session": "canary3canary",
        "x-api-key": "canary-canary-canary",
        "api-key": "short",
        "accept": "application/json",
    }
    assert list_secrets(headers) == [
        *("canary-Canary", "canary0canary", "canary1canary", "canary2canary", "canary3canary", "canary-canary-canary"),
    ]


@pytest.mark.parametrize(
    "word", ["messages", "anything", "Anything", "NOTHING-AT-ALL", "lm-studio", "12345678", "1" * 40, "a1b2c3d"]
)
def test_an_ordinary_word_that_is_sent_for_a_key_is_hidden_nowhere_else(word: str) -> None:
    headers = {"authorization": f"Bearer {word}", "x-api-key": word, "cookie": f"sid={word}"}
    assert list_secrets(headers) == []
    assert redact_headers(headers) == dict.fromkeys(headers, REDACTED)


def test_a_known_secret_is_hidden_once_and_for_all_even_if_it_is_a_part_of_the_mark() -> None:
    for secret in ("redacted", "[redacted]", "dacted]", "canarycanary"):
        text = f"a {secret} and {REDACTED}, {secret}{secret}."
        hidden = hide_known(text, [secret, "redacted"])
        assert hidden == f"a {REDACTED} and {REDACTED}, {REDACTED}{REDACTED}."
        assert hide_known(hidden, [secret, "redacted"]) == hidden


KNOWN: Final = "canary+of/no-known=look"


@pytest.mark.parametrize(
    "written",
    [
        *(KNOWN.replace("/", "\\/"), KNOWN.replace("/", "\\\\/"), KNOWN.replace("=", "\\u003d"), quote(KNOWN)),
        *(quote(KNOWN, safe=""), quote(KNOWN, safe="").lower(), quote(quote(KNOWN, safe=""), safe="")),
        *("".join(f"\\u{ord(letter):04X}" for letter in KNOWN), "".join(f"%{ord(letter):02x}" for letter in KNOWN)),
        *(f"\\\\u0063{KNOWN[1:]}", f"{KNOWN[:-1]}\\u006b", KNOWN.replace("+", "\\u002B").replace("/", "\\/")),
    ],
)
def test_a_known_secret_is_hidden_however_its_letters_are_escaped(written: str) -> None:
    for around in ("{}", "a {} b", "100% \\u00e9 {}, {}" + " words" * 500 + " {} %20", "%20" * 999 + "{}{}"):
        assert hide_known(around.replace("{}", written), [KNOWN]) == around.replace("{}", REDACTED)
    kept = redact_body(f'{{"error": "no such key: {written}", "n": 1}}'.encode(), JSON, secrets=[KNOWN])
    assert CANARY not in kept
    assert "look" not in kept
    assert json.loads(kept)["n"] == 1


# --- JSON --------------------------------------------------------------------------------


def test_what_is_under_a_sensitive_key_goes_at_any_depth() -> None:
    for name in NAMES:
        for value in ("canary", ["canary"], {"a": {"b": "canary"}}):
            document = {"a": [{"b": {name: value, "kept": 1}}], "c": [[{name: value}]]}
            hidden = {"a": [{"b": {name: REDACTED, "kept": 1}}], "c": [[{name: REDACTED}]]}
            assert redact_json(document) == hidden
            assert json.loads(check_hidden(json.dumps(document), JSON)) == hidden
            assert json.loads(check_hidden(json.dumps([json.dumps(document)]), JSON)) == [json.dumps(hidden)]


def test_a_text_that_looks_like_a_secret_goes_at_any_depth() -> None:
    for secret in LOOKS:
        for document in (secret, [secret], {"a": [{"b": secret}]}, {secret: 1}, {"a": f"see {secret} here"}):
            assert CANARY not in json.dumps(redact_json(document)).lower()
            once = json.dumps({"arguments": json.dumps(document)})
            twice = json.dumps([json.dumps(once), {"a": once}], indent=2)
            for body in (json.dumps(document), once, twice, json.dumps(twice)):
                check_hidden(body, JSON)


def test_a_value_beside_its_name_goes() -> None:
    for name in ("api_key", "Authorization", "client secret", "password"):
        for document, hidden in (
            ({"name": name, "value": "canary"}, {"name": name, "value": REDACTED}),
            ({"val": "canary", "Key": name, "a": 1}, {"val": REDACTED, "Key": name, "a": 1}),
            ({"header": name, "content": ["canary"]}, {"header": name, "content": REDACTED}),
            ({"field": name, "text": {"a": "canary"}}, {"field": name, "text": REDACTED}),
            ([name, "canary"], [name, REDACTED]),
            ([["accept", "x"], [name, "canary"]], [["accept", "x"], [name, REDACTED]]),
        ):
            assert redact_json(document) == hidden
            assert json.loads(check_hidden(json.dumps(document), JSON)) == hidden
            assert check_hidden(f"data: {json.dumps(document)}\n\n", SSE) == f"data: {json.dumps(hidden)}\n\n"


def test_what_stands_beside_another_word_stays() -> None:
    for document in (
        {"name": "city", "value": "Oslo"},
        {"name": "get_token_count", "content": "12"},
        {"name": "max_token", "value": 12},
        {"name": "api_key", "description": "what opens the door", "type": "string"},
        {"name": {"api_key": None}, "value": "Oslo"},
        {"required": ["api_key", "city"], "enum": ["password", "token"]},
        ["password", None],
        ["password", {"type": "string"}],
        ["password", "token", "city"],
        ["Is this a good password?", "Yes."],
        ["city", "Oslo"],
    ):
        assert redact_json(document) == document
        check_kept(json.dumps(document), JSON)


@pytest.mark.parametrize("escaped", ["\\u%04x", "\\u%04X"])
def test_letters_may_be_written_as_escapes(escaped: str) -> None:
    def spell(text: str) -> str:
        return "".join(escaped % ord(letter) for letter in text)

    assert check_hidden(f'{{"{spell("password")}": "canary"}}', JSON) == '{"password": "[redacted]"}'
    assert check_hidden(f'{{"p{spell("a")}ssword": "canary"}}', JSON) == '{"password": "[redacted]"}'
    assert check_hidden(f'["{spell("sk")}-canarycanary"]', JSON) == '["[redacted]"]'
    assert check_hidden(f'data: ["{spell("sk-canarycanary")}"]\n\n', SSE) == 'data: ["[redacted]"]\n\n'
    assert check_hidden('["https:\\/\\/me:canary@host\\/"]', JSON) == '["https://[redacted]@host/"]'
    assert check_hidden('data: ["https:\\/\\/me:canary@host\\/"]\n\n', SSE) == 'data: ["https://[redacted]@host/"]\n\n'


def test_a_key_that_comes_twice_does_not_unsay_itself() -> None:
    assert redact_body(b'{"password": "canary", "password": null}', JSON) == '{"password": null}'
    assert redact_body(b'{"password": null, "password": "canary"}', JSON) == '{"password": "[redacted]"}'
    assert redact_body(b'{"a": {"token": "canary"}, "a": 1}', JSON) == '{"a": 1}'
    check_kept('{"a": 1, "a": 2}', JSON)
    check_kept('{"token": null, "token": 12}', JSON)


def test_a_number_can_be_a_password_but_not_a_token() -> None:
    assert redact_json({"password": 12345678, "pin_secret": 1.5, **USAGE}) == {
        "password": REDACTED,
        "pin_secret": REDACTED,
        **USAGE,
    }


def test_a_number_is_a_token_if_its_name_leaves_no_doubt() -> None:
    for name in ("access_token", "refreshToken", "API-TOKEN", "session token"):
        assert redact_json({name: 31337, f"{name}s": 12}) == {name: REDACTED, f"{name}s": 12}


def test_some_names_hide_texts_only() -> None:
    for name in ("auth", "pass", "tokens", "Auth"):
        for value in ("canary", ["canary"], ["canary", "canary"]):
            hidden = json.dumps({"a": [{name: REDACTED}]})
            assert check_hidden(json.dumps({"a": [{name: value}]}), JSON) == hidden
            assert check_hidden(f"data: {json.dumps({'a': [{name: value}]})}\n\n", SSE) == f"data: {hidden}\n\n"
            inner = json.dumps([json.dumps(json.dumps({"a": [{name: value}]}))])
            assert CANARY not in redact_body(inner.encode(), JSON)
        for ordinary in (12, [1, 2], {"type": "none"}, ["some text", 1], [], "", None, True):
            check_kept(json.dumps({name: ordinary}), JSON)


def test_what_says_nothing_stays_under_a_sensitive_key() -> None:
    nothing: dict[str, Any] = {
        "token": None,
        "password": "",
        "secret": False,
        "api_key": [],
        "cookies": {},
        "jwt": REDACTED,
    }
    assert redact_json(nothing) == nothing


def test_usage_counters_stay_letter_by_letter() -> None:
    for body in (json.dumps(USAGE), json.dumps(USAGE, indent=1), json.dumps({"usage": USAGE}, separators=(",", ":"))):
        check_kept(body, JSON)
        check_kept(f"data: {body}\n\n" if "\n" not in body else "", SSE)


def test_what_is_under_an_ordinary_key_stays() -> None:
    for name in ORDINARY_NAMES:
        document = {name: ["some text", {"a": "another 42"}]}
        assert redact_json(document) == document
        check_kept(json.dumps(document), JSON)


def test_ordinary_texts_stay_letter_by_letter() -> None:
    for text in ORDINARY:
        check_kept(json.dumps({"text": text, "list": [text]}), JSON)
        check_kept(json.dumps({"text": text}, ensure_ascii=False, indent=4), JSON)
        check_kept(json.dumps({"arguments": json.dumps({"text": text})}), JSON)
        check_kept(f"event: delta\ndata: {json.dumps({'text': text})}\n\n", SSE)
        check_kept(json.dumps([text]) + "\n", NDJSON)
        check_kept(text, TEXT)


def test_a_tuple_is_a_list_and_other_values_are_left_alone() -> None:
    assert redact_json(("sk-canarycanary", 1)) == [REDACTED, 1]
    thing = object()
    assert redact_json({"a": thing, 1: "x"}) == {"a": thing, "1": "x"}


@pytest.mark.parametrize("depth", [99, 101, 500, 5_000, 100_000])
def test_deep_documents_are_safe(depth: int) -> None:
    inside = '{"password": "canary", "a": "sk-canarycanary"}'
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        body = opening * depth + inside + closing * depth
        for written in (body, json.dumps([body])):
            assert CANARY not in redact_body(written.encode(), JSON)
            assert CANARY not in redact_body(f"data: {written}\n\n".encode(), SSE)
            assert CANARY not in redact_body(written.encode(), TEXT)


def test_a_document_that_is_too_deep_to_be_read_becomes_one_that_says_so() -> None:
    body = check_hidden("[" * 100_000 + '"sk-canarycanary"' + "]" * 100_000, JSON)
    assert json.loads(body) == f"{REDACTED}: nested too deeply"


def test_a_deep_value_is_safe() -> None:
    value: Any = {"password": "canary"}
    for _ in range(3_000):
        value = [{"a": value}]
    seen = redact_json(value)
    for _ in range(200):
        seen = seen[0]["a"] if isinstance(seen, list) else seen
    assert seen == f"{REDACTED}: nested too deeply"


@pytest.mark.parametrize(
    "body", ["{", '{"password": "canary"', "sk-canarycanary", "<html>canary</html>", '"canary', "{}{}"]
)
def test_what_should_be_json_and_is_not_is_replaced(body: str) -> None:
    assert redact_body(body.encode(), JSON) == f"[not a JSON document that could be read, {len(body)} bytes]"
    assert redact_body(body.encode(), "application/problem+json; charset=utf-8").startswith("[not a JSON document")


@pytest.mark.parametrize("content_type", ["", TEXT, SSE, "text/html"])
@pytest.mark.parametrize(
    "body",
    [
        *('{"error": {"api_keys": ["canary"', ' \n{\n "a": "canary', '[{"a": "canary"', '[ [\n"canary", ', '["canary'),
        *('{"a": 1} canary', '{"a": 1}\n{"b": "canary', "{}[canary]", "[{}, canary", '[[{"a": canary}]]'),
        '{"a": "canary\ndata: canary\n\n',
    ],
)
def test_what_begins_as_only_json_does_and_is_none_is_replaced(body: str, content_type: str) -> None:
    note = f"[not a JSON document that could be read, {len(body)} bytes]"
    assert check_hidden(body, content_type) == note
    assert redact_body(note.encode(), content_type) == note


@pytest.mark.parametrize("content_type", ["", TEXT, SSE])
def test_documents_that_follow_each_other_are_redacted_one_by_one(content_type: str) -> None:
    check_kept('{"a": 1}{"b": [2]}', content_type)
    check_kept('{"a": 1, "a": 1}\n\n [{"b": 2.50}]\n', content_type)
    kept = check_hidden('{"a":1}\n{"password": "canary"} {"b": ["sk-canarycanary"]}[2 ]\n', content_type)
    assert kept == '{"a":1}\n{"password": "[redacted]"} {"b": ["[redacted]"]}[2 ]\n'
    kept = check_hidden('{"credentials": {"a": "canary"}}\n["x-api-key", "canary"]', content_type)
    assert kept == '{"credentials": "[redacted]"}\n["x-api-key", "[redacted]"]'


@pytest.mark.parametrize("content_type", ["", TEXT, "text/html"])
@pytest.mark.parametrize(
    "body",
    [
        *(
            "[INFO] started",
            "[a](b) and more",
            "[redacted] is gone",
            "[binary, 12 bytes]",
            "[1] A note",
            "[[a page]] x",
        ),
        *("{name} said", "{{ template }} x", "{'a': 1} is a dict", "[2024-05-06 07:08] late", "[ ] to do", "{", "["),
        *("[… 12 bytes are missing here …]", "[not JSON, 3 bytes] x", "[x for x in y]", "{\n  color: red;\n}"),
    ],
)
def test_a_text_may_begin_with_a_bracket(body: str, content_type: str) -> None:
    check_kept(body, content_type)


def test_json_within_a_text_loses_what_is_under_a_sensitive_name() -> None:
    for inside in (
        '["canary"]',
        '{"a": {"b": ["canary"]}}',
        '[\n  "canary]",\n  "can\\"ary"\n]',
        "['canary', {}]",
        "[canary]",
    ):
        for text in (
            'Result: {"api_keys": %s} end',
            '```json\n{"a": 1, "secrets":%s}\n```\n end',
            "credentials = %s end",
        ):
            body = text % inside
            assert check_hidden(body, TEXT) == text % REDACTED
            assert json.loads(check_hidden(json.dumps({"text": body}), JSON)) == {"text": text % REDACTED}
            escaped = json.dumps(body)[1:-1]
            assert CANARY not in redact_line(escaped)
    rows = '{"a": 1}\n{"api_keys": ["canary"]}'
    assert redact_json([rows]) == ['{"a": 1}\n{"api_keys": [redacted]}']
    assert check_hidden(': {"api_keys": ["canary"]}\ndata: {}\n\n', SSE) == ': {"api_keys": [redacted]}\ndata: {}\n\n'


def test_a_bracket_that_nothing_closes_hides_the_line() -> None:
    for opened in ("[canary, canary", "{'a': ['canary'], canary", "[" + "canary, " * 1000 + "]"):
        assert check_hidden(f"see secrets: {opened}\nmore words", TEXT) == f"see secrets: {REDACTED}\nmore words"


def test_json_is_known_without_a_content_type() -> None:
    for content_type in ("", TEXT, SSE, "text/html"):
        assert check_hidden('{"credentials": {"a": "canary"}}', content_type) == '{"credentials": "[redacted]"}'
        assert check_hidden('\ufeff {"credentials": {"a": "canary"}}', content_type) == '{"credentials": "[redacted]"}'


# --- event streams -----------------------------------------------------------------------

ENDS = ["\n", "\r\n", "\r"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("space", ["", " ", "  "])
def test_the_data_of_an_event_is_redacted_whatever_ends_its_lines(space: str, end: str) -> None:
    for secret in LOOKS:
        events = [
            json.dumps({"delta": "hello"}),
            json.dumps({"a": secret, "password": "canary"}),
            json.dumps(USAGE),
            "[DONE]",
        ]
        kept = check_hidden("".join(f"event: x{end}data:{space}{data}{end}{end}" for data in events), SSE)
        assert json.dumps(USAGE) in kept
        assert kept.count(end + end) == 4
        assert kept.endswith(f"data:{space}[DONE]{end}{end}")


@pytest.mark.parametrize("end", ENDS)
def test_several_lines_of_data_are_one_document(end: str) -> None:
    lines = json.dumps({"usage": USAGE, "list": [{"a": "b"}]}, indent=2).split("\n")
    check_kept(end.join(f"data: {line}" for line in lines) + end + end, SSE)
    secret = json.dumps({"credentials": {"a": ["canary", "canary"]}}, indent=2).split("\n")
    kept = check_hidden(f"id: 1{end}" + "".join(f"data: {line}{end}" for line in secret) + f"event: x{end}{end}", SSE)
    assert kept == f'id: 1{end}data: {{"credentials": "[redacted]"}}{end}event: x{end}{end}'


def test_letters_that_are_longer_in_lower_case_do_not_shift_what_is_looked_at() -> None:
    stretched = f'data: ["{"İ" * 100}"]\n\n'
    kept = check_hidden(f'{stretched}data: {{"password": "canary"}}\n\n{stretched}', SSE)
    assert kept == f'{stretched}data: {{"password": "[redacted]"}}\n\n{stretched}'


def test_fields_keep_their_order() -> None:
    check_kept(
        'data: {"a": 1}\nid: 7\nevent: delta\n\n: a comment\n\nretry: 10\ndata: {"token_count": 1}\nid: 8\n\n', SSE
    )


def test_events_without_empty_lines_between_them_are_redacted_one_by_one() -> None:
    check_kept('data: {"a": 1}\ndata: {"token_count": 2}\ndata: [DONE]\n', SSE)
    kept = check_hidden('data: {"a": 1}\ndata: {"password": "canary"}\ndata: [DONE]', SSE)
    assert kept == 'data: {"a": 1}\ndata: {"password": "[redacted]"}\ndata: [DONE]'


@pytest.mark.parametrize("data", ['{"password": "canary', "{'a': 'canary'}", "[DONE] canary", '"canary', "[canary]"])
def test_data_that_was_to_be_json_and_is_none_is_replaced(data: str) -> None:
    assert check_hidden(f"data: {data}\n\n", SSE) == f"data: [not JSON, {len(data)} bytes]\n\n"
    assert check_hidden(f"{data}\n", NDJSON) == f"[not JSON, {len(data)} bytes]\n"
    assert check_hidden(f"data: hello\ndata: {data}\n\n", SSE) == f"data: [not JSON, {len(data) + 6} bytes]\n\n"


def test_data_of_words_stays_and_is_looked_at() -> None:
    check_kept("data: hello\ndata:  and more, 12 tokens\n\ndata: bye\n\n", SSE)
    assert check_hidden("data: it is\ndata: sk-canarycanary\n\n", SSE) == "data: it is\ndata: [redacted]\n\n"
    private_key = PRIVATE_KEY.replace("\n", "\ndata: ")
    assert check_hidden(f"data: {private_key}\n\n", SSE) == "data: [redacted]\n\n"


def test_half_a_document_on_several_lines_is_not_taken_for_whole_ones() -> None:
    check_hidden('data: {"password":\ndata: "canary"\n\n', SSE)
    check_hidden('data: {"password":\ndata: "canary"\ndata: ,"b": {"c":\ndata: "canary"', SSE)


def test_empty_data_and_the_end_stay() -> None:
    check_kept("data:\n\ndata: \n\ndata: [DONE]\n\ndata:[DONE]\n\ndata\n\n", SSE)


def test_other_fields_and_comments_are_looked_at() -> None:
    for secret in LOOKS:
        flat = secret.replace("\n", " ")
        for field in (f": {flat}", f"id: {flat}", f"event: {flat}", flat):
            check_hidden(f'{field}\ndata: {{"a": 1}}\n\n', SSE)


def test_a_byte_order_mark_does_not_hide_the_first_event() -> None:
    assert check_hidden('\ufeffdata: {"credentials": {"a": "canary"}}\n\n', SSE) == (
        'data: {"credentials": "[redacted]"}\n\n'
    )


def test_an_event_stream_is_known_without_its_content_type() -> None:
    for content_type in ("", TEXT, "application/octet-streams"):
        check_hidden('event: x\ndata: {"credentials": {"a": "canary"}}\n\n', content_type)


@pytest.mark.parametrize(
    "body",
    ['{"credentials":\n{"a": "canary"}}', f"Sorry.\n\n{PRIVATE_KEY_WITH_A_BLANK_LINE}\n", "<p>sk-canarycanary</p>"],
)
def test_what_is_called_an_event_stream_may_be_something_else(body: str) -> None:
    check_hidden(body, SSE)


@pytest.mark.parametrize(
    "content_type", [NDJSON, "application/jsonl", "application/json-seq", "application/stream+json"]
)
@pytest.mark.parametrize("end", ENDS)
def test_documents_on_lines_are_redacted_one_by_one(content_type: str, end: str) -> None:
    for start in ("", "\x1e"):
        lines = ['{"a": 1}', "", json.dumps(USAGE), "[DONE]"]
        check_kept("".join(start + line + end for line in lines), content_type)
        kept = check_hidden(
            "".join(start + line + end for line in [*lines, '{"credentials": ["canary"]}']), content_type
        )
        assert kept.endswith(f'{start}{{"credentials": "[redacted]"}}{end}')


# --- other bodies ------------------------------------------------------------------------


def test_the_fields_of_a_form_are_redacted_by_name() -> None:
    for name in NAMES:
        kept = check_hidden(f"a=1&{name.replace(' ', '+')}=canary;canary?x&b=%41", FORM)
        assert kept.startswith("a=1&")
        assert kept.endswith("=[redacted]&b=%41")


def test_ordinary_forms_stay() -> None:
    check_kept("grant_type=refresh&max_tokens=12&text=a+b%20c", FORM)


def test_plain_text_and_errors_in_sentences_are_redacted() -> None:
    for secret in LOOKS:
        for body in (secret, f"Error: {secret}", f"<html>\n<p>{secret}\n</p></html>", f"line\n\t{secret}\nline"):
            check_hidden(body, TEXT)
            check_hidden(body, "text/html; charset=utf-8")
            check_hidden(body, "")


@pytest.mark.parametrize(
    "content_type", ["image/png", "application/octet-stream", "application/vnd.amazon.eventstream"]
)
def test_binary_bodies_are_not_kept(content_type: str) -> None:
    assert redact_body(b"canary", content_type) == "[binary, 6 bytes]"


@pytest.mark.parametrize("content_type", [SSE, NDJSON, JSON, TEXT, ""])
def test_a_body_with_a_null_is_binary(content_type: str) -> None:
    assert redact_body(b"data: canary\0", content_type) == "[binary, 13 bytes]"
    assert "\0" not in redact_body(b"data: {}\n\n", content_type, b"\n\0canary\n", 5)


def test_bytes_that_are_no_text_become_marks() -> None:
    assert redact_body(b"a\xffb", TEXT) == "a\ufffdb"
    assert redact_body(b'data: ["\xff \\ud800 sk-canarycanary"]\n\n', SSE) == 'data: ["\ufffd \ufffd [redacted]"]\n\n'


def test_an_empty_body_is_empty() -> None:
    for content_type in (SSE, NDJSON, JSON, TEXT, FORM, ""):
        assert redact_body(b"", content_type) == ""


# --- a gap -------------------------------------------------------------------------------

MARK = "\n[… 1,234 bytes are missing here …]\n"


def redact_gap(head: str, tail: str, content_type: str) -> str:
    kept = redact_body(head.encode(), content_type, tail.encode(), 1234)
    assert GAP.search(kept) or "[not" in kept
    assert CANARY not in kept.lower()
    return kept


def test_a_tail_without_a_gap_is_the_rest() -> None:
    assert redact_body(b'{"a": "\xc3', JSON, b'\xa9"}') == '{"a": "é"}'
    assert redact_body(b"data: {}\n\nda", SSE, b"ta: {}\n\n") == "data: {}\n\ndata: {}\n\n"
    assert redact_body(b"sk-can", TEXT, b"arycanary") == REDACTED


def test_json_with_a_gap_is_replaced() -> None:
    assert redact_body(b'{"a": 1}', JSON, b'{"b": 2}', 10) == "[not a JSON document that could be read, 26 bytes]"


@pytest.mark.parametrize("end", ENDS)
def test_events_that_are_cut_by_a_gap_are_not_kept(end: str) -> None:
    event = f'data: {{"a": 1}}{end}{end}'
    head = f'{event}data: {{"password": "cana'
    tail = f'ry canary"}}{end}{end}{event}data: {{"password": "canary"}}{end}{end}'
    hidden = f'data: {{"password": "[redacted]"}}{end}{end}'
    assert redact_gap(head + "ry", tail, SSE) == f"{event}{MARK}{end}{event}{hidden}"


def test_halves_of_events_are_not_taken_for_whole_ones() -> None:
    redact_gap('data: {"password":\ndata: "canary",', 'x\ndata: "canary"\ndata: }\n\ndata: {}\n\n', SSE)
    redact_gap('data: {"password": "canary', 'data: canary"}', SSE)
    redact_gap('{"password": "canary', 'canary"}\n{"password": "canary"}\n{"a": "can', NDJSON)


def test_halves_of_a_secret_beside_a_gap_are_not_kept() -> None:
    for secret in [look for look in LOOKS if "BEGIN" not in look or "END" in look]:
        for place in range(1, len(secret)):
            for line_end in ("\n", " "):
                head = f"first{line_end}second{line_end}{secret[:place]}"
                tail = f"{secret[place:]}\nlast words"
                kept = redact_gap(head, tail, TEXT)
                assert kept.startswith("first")
                assert kept.endswith("last words")


def test_a_private_key_whose_beginning_is_missing_is_hidden() -> None:
    tail = "canary\ncanary\n-----END RSA PRIVATE KEY-----\nlast words"
    assert redact_gap("first\nsecond", tail, TEXT) == f"first\n{MARK}[redacted]last words"
    again = f"{tail}\n{PRIVATE_KEY}\nlast words"
    assert redact_gap("first\nsecond", again, TEXT).endswith("last words\n[redacted]\nlast words")


def test_text_of_one_line_is_cut_at_its_words() -> None:
    tail = "canary" + " words" * 100 + " three four"
    mark = MARK.replace("1,234", "1,751")
    assert redact_gap("one two canary", tail, TEXT) == f"one two{mark}{tail[1751 - 1234 :]}"
    assert redact_gap("canary", "canary", TEXT) == MARK.replace("1,234", "1,240")
    assert redact_gap("canary", "canary\nlast", TEXT) == f"{MARK}last"


@pytest.mark.parametrize(
    "cut",
    [
        *("Bearer canarycanary0", "password = canary", "api_key: canary0", "the password is canary0canary"),
        *("= canary", 'secret="canary canary canary"', "is canary0canary", "Basic Y2FuYXJ5canary=="),
    ],
)
def test_behind_a_gap_in_a_long_line_a_value_goes_even_if_its_name_is_cut(cut: str) -> None:
    for place in range(cut.index("canary") + 1):
        for end in (" more words" * 100, " more words" * 9000 + "\nlast line"):
            kept = redact_gap("first words" + cut[:place], cut[place:] + end, TEXT)
            assert kept.endswith(end[-99:])
            missing, shown = kept.split(" bytes are missing here …]\n")
            assert int(missing.rpartition(" ")[2].replace(",", "")) == 1234 + len(cut[place:] + end) - len(shown)


def test_a_form_is_cut_at_its_fields() -> None:
    assert redact_gap("a=1&password=canary", "canary&token=canary&b=2", FORM) == f"a=1{MARK}token=[redacted]&b=2"


# --- cost --------------------------------------------------------------------------------

LENGTH = 120_000
HOSTILE: Final[dict[str, tuple[str, str]]] = {
    "plain events": (SSE, 'event: x\ndata: {"delta": "some words"}\n\n'),
    "suspicious events": (SSE, 'data: {"delta": "some words", "token": "x"}\n\n'),
    "one event": (SSE, 'data: {"token": "x"}\n'),
    "one broken event": (SSE, "data: [\n"),
    "carriage returns": (SSE, "\r"),
    "data": (SSE, "data:"),
    "comments": (SSE, ": secret\n"),
    "rows": (NDJSON, '{"secret": 1}\n'),
    "broken rows": (NDJSON, "token\n"),
    "keys": (TEXT, "key"),
    "brackets": (JSON, "["),
    "inner brackets": (JSON, '"['),
    "quotes": (JSON, '\\"'),
    "back-slashes": (TEXT, "\\"),
    "fields": (FORM, "token=a&"),
    "percent": (FORM, "%25"),
    "long letters": (SSE, "İ key\n"),
    "documents": (TEXT, "{}"),
    "broken documents": (TEXT, '{"a'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_four_times_the_body_costs_four_times_the_time(name: str) -> None:
    content_type, piece = HOSTILE[name]

    def measure_cpu_s(length: int) -> float:
        whole = (
            '["' + piece * (length // len(piece)) if content_type == JSON else piece * (length // len(piece))
        ).encode()
        gc.collect()
        gc.disable()  # it would count what other tests left, too
        try:
            started = time.process_time()
            redact_body(whole, content_type)
            redact_body(whole, content_type, whole, 1)
            redact_json([whole.decode()])
            return time.process_time() - started
        finally:
            gc.enable()

    quarter_cpu_s = min(measure_cpu_s(LENGTH // 4) for _ in range(2))
    assert any(measure_cpu_s(LENGTH) < 8 * quarter_cpu_s for _ in range(5))
