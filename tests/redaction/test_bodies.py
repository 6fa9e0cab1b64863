"""Bodies of every type as they are kept: no kestrel in them, and everything else as it came.

JSON itself is test_json.py's; here it stands in event streams, on lines, beside a gap, and under no name at all. Random
bodies are in test_redaction_property.py.
"""

from __future__ import annotations

import json
from typing import Final

import pytest
from tests.recording.canaries import KESTREL, LOOKS, NAMES, ORDINARY

from indelible.redaction.redact import GAP, KEPT_BYTES, redact_body
from indelible.redaction.secrets import REDACTED, KnownSecrets

SSE: Final = "text/event-stream"
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
FORM: Final = "application/x-www-form-urlencoded"
TEXT: Final = "text/plain"
USAGE: Final = {"input_tokens": 12, "output_tokens_details": {"reasoning_tokens": 5}, "max_tokens": 4096}
KNOWN: Final = KnownSecrets(["kestrel0/KESTREL"])


def check_hidden(body: str, content_type: str) -> str:
    """The body as it is kept. No kestrel is in it, and redacting it once more changes nothing."""
    kept = redact_body(body.encode(), content_type, known=KNOWN)
    assert KESTREL not in kept.lower(), body
    assert REDACTED in kept or "[not " in kept or "[binary" in kept, body
    assert redact_body(kept.encode(), content_type, known=KNOWN) == kept or "[not a JSON" in kept
    return kept


def check_kept(body: str, content_type: str) -> None:
    assert redact_body(body.encode(), content_type, known=KNOWN) == body


def test_what_people_and_models_wrote_is_kept_letter_by_letter() -> None:
    """It stands in the messages of the same database. What looks like a key in it is hidden when it is shown."""
    for text in (*ORDINARY, *LOOKS):
        check_kept(f"event: delta\ndata: {json.dumps({'text': text})}\n\n", SSE)
        check_kept(json.dumps([text]) + "\n", NDJSON)
        check_kept(text, TEXT)


@pytest.mark.parametrize("content_type", [SSE, NDJSON, JSON, TEXT, FORM, "", "text/html"])
def test_a_known_secret_is_hidden_in_any_body(content_type: str) -> None:
    for body in (
        "not kestrel0/KESTREL!",
        '{"a": "kestrel0\\/KESTREL", "b": 1}',
        'id: kestrel0/KESTREL\ndata: {"a": "x kestrel0/KESTREL", "b": 2}\n\n',
        "data: kestrel0/KESTREL\n\n",
        "a=1&b=kestrel0%2FKESTREL&c=2",
        "<p>kestrel0/KESTREL</p>",
    ):
        check_hidden(body, content_type)


@pytest.mark.parametrize(
    "body", ["{", '{"password": "kestrel"', "sk-kestrelkestrel", "<html>kestrel</html>", '"kestrel', "{}{}"]
)
def test_what_should_be_json_and_is_not_is_replaced(body: str) -> None:
    assert redact_body(body.encode(), JSON) == f"[not a JSON document that could be read, {len(body)} bytes]"
    assert redact_body(body.encode(), "application/problem+json; charset=utf-8").startswith("[not a JSON document")


@pytest.mark.parametrize("content_type", ["", TEXT, SSE, "text/html"])
@pytest.mark.parametrize(
    "body",
    [
        *(
            '{"error": {"api_keys": ["kestrel"',
            ' \n{\n "a": "kestrel',
            '[{"a": "kestrel"',
            '[ [\n"kestrel", ',
            '["kestrel',
        ),
        *('{"a": 1} kestrel', '{"a": 1}\n{"b": "kestrel', "{}[kestrel]", "[{}, kestrel", '[[{"a": kestrel}]]'),
        '{"a": "kestrel\ndata: kestrel\n\n',
    ],
)
def test_what_begins_as_only_json_does_and_is_none_is_replaced(body: str, content_type: str) -> None:
    note = f"[not a JSON document that could be read, {len(body)} bytes]"
    assert check_hidden(body, content_type) == note
    assert redact_body(note.encode(), content_type) == note


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


def test_json_is_known_without_a_content_type() -> None:
    for content_type in ("", TEXT, SSE, "text/html"):
        assert check_hidden('{"credentials": {"a": "kestrel"}}', content_type) == '{"credentials": "[redacted]"}'
        assert check_hidden('\ufeff {"credentials": {"a": "kestrel"}}', content_type) == '{"credentials": "[redacted]"}'


# --- event streams -----------------------------------------------------------------------

ENDS = ["\n", "\r\n", "\r"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("space", ["", " ", "  "])
def test_the_data_of_an_event_is_redacted_whatever_ends_its_lines(space: str, end: str) -> None:
    events = [json.dumps({"delta": "hello"}), json.dumps({"password": "kestrel"}), json.dumps(USAGE), "[DONE]"]
    kept = check_hidden("".join(f"event: x{end}data:{space}{data}{end}{end}" for data in events), SSE)
    assert json.dumps(USAGE) in kept
    assert kept.count(end + end) == 4
    assert kept.endswith(f"data:{space}[DONE]{end}{end}")


@pytest.mark.parametrize("end", ENDS)
def test_several_lines_of_data_are_one_document(end: str) -> None:
    lines = json.dumps({"usage": USAGE, "list": [{"a": "b"}]}, indent=2).split("\n")
    check_kept(end.join(f"data: {line}" for line in lines) + end + end, SSE)
    secret = json.dumps({"credentials": {"a": ["kestrel", "kestrel"]}}, indent=2).split("\n")
    kept = check_hidden(f"id: 1{end}" + "".join(f"data: {line}{end}" for line in secret) + f"event: x{end}{end}", SSE)
    assert kept == f'id: 1{end}data: {{"credentials": "[redacted]"}}{end}event: x{end}{end}'


def test_letters_that_are_longer_in_lower_case_do_not_shift_what_is_looked_at() -> None:
    stretched = f'data: ["{"İ" * 100}"]\n\n'
    kept = check_hidden(f'{stretched}data: {{"password": "kestrel"}}\n\n{stretched}', SSE)
    assert kept == f'{stretched}data: {{"password": "[redacted]"}}\n\n{stretched}'


def test_fields_keep_their_order() -> None:
    check_kept(
        'data: {"a": 1}\nid: 7\nevent: delta\n\n: a comment\n\nretry: 10\ndata: {"token_count": 1}\nid: 8\n\n', SSE
    )


def test_events_without_empty_lines_between_them_are_redacted_one_by_one() -> None:
    check_kept('data: {"a": 1}\ndata: {"token_count": 2}\ndata: [DONE]\n', SSE)
    kept = check_hidden('data: {"a": 1}\ndata: {"password": "kestrel"}\ndata: [DONE]', SSE)
    assert kept == 'data: {"a": 1}\ndata: {"password": "[redacted]"}\ndata: [DONE]'


@pytest.mark.parametrize(
    "data", ['{"password": "kestrel', "{'a': 'kestrel'}", "[DONE] kestrel", '"kestrel', "[kestrel]"]
)
def test_data_that_was_to_be_json_and_is_none_is_replaced(data: str) -> None:
    assert check_hidden(f"data: {data}\n\n", SSE) == f"data: [not JSON, {len(data)} bytes]\n\n"
    assert check_hidden(f"data: hello\ndata: {data}\n\n", SSE) == f"data: [not JSON, {len(data) + 6} bytes]\n\n"


def test_data_of_words_stays() -> None:
    check_kept("data: hello\ndata:  and more, 12 tokens\n\ndata: bye\n\n", SSE)


def test_half_a_document_on_several_lines_is_not_taken_for_whole_ones() -> None:
    check_hidden('data: {"password":\ndata: "kestrel"\n\n', SSE)
    check_hidden('data: {"password":\ndata: "kestrel"\ndata: ,"b": {"c":\ndata: "kestrel"', SSE)


def test_empty_data_and_the_end_stay() -> None:
    check_kept("data:\n\ndata: \n\ndata: [DONE]\n\ndata:[DONE]\n\ndata\n\n", SSE)


def test_a_byte_order_mark_does_not_hide_the_first_event() -> None:
    assert check_hidden('\ufeffdata: {"credentials": {"a": "kestrel"}}\n\n', SSE) == (
        'data: {"credentials": "[redacted]"}\n\n'
    )


def test_an_event_stream_is_known_without_its_content_type() -> None:
    for content_type in ("", TEXT, "application/octet-streams"):
        check_hidden('event: x\ndata: {"credentials": {"a": "kestrel"}}\n\n', content_type)


def test_what_is_called_an_event_stream_may_be_something_else() -> None:
    check_hidden('{"credentials":\n{"a": "kestrel"}}', SSE)


@pytest.mark.parametrize(
    "content_type", [NDJSON, "application/jsonl", "application/json-seq", "application/stream+json"]
)
@pytest.mark.parametrize("end", ENDS)
def test_documents_on_lines_are_not_one_document_and_are_not_kept(content_type: str, end: str) -> None:
    """No provider sends them; one line alone is a document."""
    rows = f'{{"a": 1}}{end}{{"credentials": ["kestrel"]}}{end}'
    assert check_hidden(rows, content_type) == f"[not a JSON document that could be read, {len(rows)} bytes]"
    assert check_hidden(f'{{"credentials": ["kestrel"]}}{end}', content_type) == '{"credentials": "[redacted]"}'


# --- other bodies ------------------------------------------------------------------------


def test_the_fields_of_a_form_are_redacted_by_name() -> None:
    for name in NAMES:
        kept = check_hidden(f"a=1&{name.replace(' ', '+')}=kestrel;kestrel?x&b=%41", FORM)
        assert kept.startswith("a=1&")
        assert kept.endswith("=[redacted]&b=%41")


def test_ordinary_forms_stay() -> None:
    check_kept("grant_type=refresh&max_tokens=12&text=a+b%20c", FORM)


@pytest.mark.parametrize(
    "content_type", ["image/png", "application/octet-stream", "application/vnd.amazon.eventstream"]
)
def test_binary_bodies_are_not_kept(content_type: str) -> None:
    assert redact_body(b"kestrel", content_type) == "[binary, 7 bytes]"


@pytest.mark.parametrize("content_type", [SSE, NDJSON, JSON, TEXT, ""])
def test_a_body_with_a_null_is_binary(content_type: str) -> None:
    assert redact_body(b"data: kestrel\0", content_type) == "[binary, 14 bytes]"
    assert "\0" not in redact_body(b"data: {}\n\n", content_type, b"\n\0kestrel\n", 5)


def test_bytes_that_are_no_text_become_marks() -> None:
    assert redact_body(b"a\xffb", TEXT) == "a\ufffdb"
    assert redact_body(b'data: ["\xff \\ud800"]\n\n', SSE) == 'data: ["\ufffd \\ud800"]\n\n'


def test_an_empty_body_is_empty() -> None:
    for content_type in (SSE, NDJSON, JSON, TEXT, FORM, ""):
        assert redact_body(b"", content_type) == ""


# --- a gap -------------------------------------------------------------------------------

MARK = "\n[… 1,234 bytes are missing here …]\n"


def redact_gap(head: str, tail: str, content_type: str) -> str:
    kept = redact_body(head.encode(), content_type, tail.encode(), 1234)
    assert GAP.search(kept) or "[not" in kept
    assert KESTREL not in kept.lower()
    return kept


def test_a_tail_without_a_gap_is_the_rest() -> None:
    assert redact_body(b'{"a": "\xc3', JSON, b'\xa9"}') == '{"a": "é"}'
    assert redact_body(b"data: {}\n\nda", SSE, b"ta: {}\n\n") == "data: {}\n\ndata: {}\n\n"
    assert redact_body(b"kestrel0", TEXT, b"/KESTREL", known=KNOWN) == REDACTED


@pytest.mark.parametrize("end", ENDS)
def test_events_that_are_cut_by_a_gap_are_not_kept(end: str) -> None:
    event = f'data: {{"a": 1}}{end}{end}'
    head = f'{event}data: {{"password": "cana'
    tail = f'ry kestrel"}}{end}{end}{event}data: {{"password": "kestrel"}}{end}{end}'
    hidden = f'data: {{"password": "[redacted]"}}{end}{end}'
    assert redact_gap(head + "ry", tail, SSE) == f"{event}{MARK}{end}{event}{hidden}"


def test_halves_of_events_are_not_taken_for_whole_ones() -> None:
    redact_gap('data: {"password":\ndata: "kestrel",', 'x\ndata: "kestrel"\ndata: }\n\ndata: {}\n\n', SSE)
    redact_gap('data: {"password": "kestrel', 'data: kestrel"}', SSE)


def test_no_half_of_a_known_secret_is_left_beside_a_gap() -> None:
    (secret,) = KNOWN.secrets
    for place in range(len(secret) + 1):
        for around in ("", " ", "\n"):
            head = f"first{' word' * 20}{around}{secret}{around}{secret[:place]}"
            tail = f"{secret[place:]}{around}{secret}{' word' * 20}\nlast words"
            kept = redact_body(head.encode(), TEXT, tail.encode(), 1234, KNOWN)
            assert not any(secret[at : at + 4] in kept for at in range(len(secret) - 3)), kept
            assert kept.startswith("first")
            assert kept.endswith("last words")


def test_json_with_a_gap_is_shortened_to_what_is_there() -> None:
    kept = redact_body(b'{"a": 1, "password": "kestrel", "b": [1, 2, "kest', JSON, b'rel"]}', 10)
    assert json.loads(kept) == {"a": 1, "password": REDACTED, "b": [1, 2]}


def test_a_form_is_cut_at_its_fields() -> None:
    assert redact_gap("a=1&password=kestrel", "kestrel&token=kestrel&b=2", FORM) == f"a=1{MARK}token=[redacted]&b=2"


def test_a_body_that_is_no_json_keeps_both_ends() -> None:
    body = b"{first}\n" + b"some words\n" * 50_000 + b"last"
    for content_type in ("text/plain", ""):
        kept = redact_body(body, content_type)
        assert kept.startswith("{first}\n")
        assert kept.endswith("\nlast")
        assert "bytes are missing here" in kept
        assert len(kept.encode()) < KEPT_BYTES + 100
    assert redact_body(b'{"a": 1}\n' * 50_000, NDJSON) == "[not a JSON document that could be read, 450,000 bytes]"


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


def repeat(content_type: str, piece: str, length: int) -> bytes:
    return (('["' if content_type == JSON else "") + piece * (length // len(piece))).encode()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_is_redacted_once_and_for_all(name: str) -> None:
    """bench/growth.py measures that its cost grows with its length and no faster."""
    content_type, piece = HOSTILE[name]
    redacted = redact_body(repeat(content_type, piece, LENGTH // 4), content_type)
    assert redact_body(redacted.encode(), content_type) == redacted
