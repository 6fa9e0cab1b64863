"""Documents that are too large to be kept whole: what comes out is one, fits, and no half of a secret is left in it."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from tests.recording.canaries import CANARY, LOOKS

from indelible.recording.body import RecordedBody, keep_body
from indelible.redaction.large import MAX_BODY_BYTES, MAX_PARSED_BYTES
from indelible.redaction.redact import KEPT_BYTES, REDACTED, redact_body

JSON = "application/json"
IMAGE = b64encode(bytes(range(256)) * 4000).decode()


def fail(bug: Exception) -> None:
    raise bug


def keep(body: bytes, secrets: tuple[str, ...] = ()) -> str:
    """The text of a request's body in a record."""
    text = RecordedBody(keep_body(body), {"content-type": JSON}, on_bug=fail, secrets=secrets).text
    assert len(text.encode()) <= KEPT_BYTES
    assert CANARY not in text.lower()
    return text


def keep_document(document: Any, secrets: tuple[str, ...] = ()) -> Any:
    body = json.dumps(document).encode()
    assert len(body) > KEPT_BYTES
    return json.loads(keep(body, secrets))


def test_of_an_image_only_the_beginning_is_kept_and_the_rest_stays_as_it_was() -> None:
    text = "some words\n" * 9000
    for start in ("", "data:image/png;base64,"):
        message = {"role": "user", "content": [{"type": "text", "text": text}, {"url": start + IMAGE}]}
        kept = keep_document({"model": "m", "messages": [message]})
        assert kept["model"] == "m"
        (same, image) = kept["messages"][0]["content"]
        assert same == {"type": "text", "text": text}
        assert image["url"].startswith(start + IMAGE[:64])
        assert image["url"].endswith(f"[… {len(IMAGE) - 64:,} letters are missing here …]")


def test_images_are_found_wherever_they_begin_and_end() -> None:
    for shift in (*range(5), 2047, 2048, 2049):
        for size in (4095, 4096, 4097, 6143, 6145, 300_000):
            blob = "x" * size
            kept = keep_document({"a": "," * shift, "b": [blob, "," + blob + ",", IMAGE]})
            for one in kept["b"]:
                assert "are missing here" in one or size < 6145
            assert kept["b"][1][0] == kept["b"][1][-1] == ","


def test_a_long_text_keeps_how_it_begins_and_how_it_ends() -> None:
    text = "first words, " + "more words " * 100_000 + "last words"
    kept = keep_document([text])[0]
    assert kept.startswith("first words")
    assert kept.endswith("last words")
    assert "letters are missing here" in kept


def test_a_long_list_keeps_how_it_begins_and_how_it_ends() -> None:
    messages = [{"role": "user", "content": f"message {number} " + "words " * 100} for number in range(3000)]
    kept = keep_document({"messages": messages})["messages"]
    assert kept[0] == messages[0]
    assert kept[-1] == messages[-1]
    (note,) = [item for item in kept if isinstance(item, str)]
    assert note == f"[… {3000 - len(kept) + 1:,} items are missing here …]"


def test_letters_that_take_several_bytes_or_escapes_fit_too() -> None:
    for letter in ("密", "\n", "\x01", '"', "\ud800", "🌧"):
        keep_document({"a": [letter * 1000 + " "] * 400, "b": letter * 100_000})


@pytest.mark.parametrize("secret", ["sk-canary" + "canary" * 9, "password=canary0canary", *LOOKS[:3], LOOKS[-1]])
def test_no_half_of_a_secret_is_left_where_a_text_is_cut(secret: str) -> None:
    for limit in (64 * 1024, 16 * 1024, 4 * 1024, 2048):
        for shift in range(-len(secret) - 1, 2, 3):
            before = "," * (limit // 2 + shift - 1) + " "
            text = f"{before}{secret} {', ' * 2 * limit} {secret}{before[::-1]}"
            keep_document([text] * (KEPT_BYTES // limit // 2))


def test_what_runs_into_a_blob_is_hidden_with_it() -> None:
    blob = "A0b1" * 90_000
    for text in (
        f"sk-canarycanary{blob}",
        f"Bearer canary0canary{blob}",
        f"eyJcanarycanary.{blob}.canarycanary",
        f"password={blob}canary!canary",
        f"password={blob}!canary",
        f"https://user:{blob}canary@host/",
        f"https://host/?sig={blob}~canary",
        f"-----BEGIN PRIVATE KEY-----{blob}canary-----END PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{blob}\ncanary",
    ):
        assert REDACTED in json.dumps(keep_document({"a": text})), text[:20]
    assert keep_document({"api_key": f"{blob}canary"}) == {"api_key": REDACTED}


@pytest.mark.parametrize(
    "ending",
    [
        *("=Bearer canary0canary", "/Basic Y2FuYXJ5canary==", ".password: canary0canary", '-api_key: "canary canary"'),
        *(
            "_password='canary canary'",
            "-OPENAI_API_KEY = canary",
            ".token is canary0canary",
            "/api key: canary0canary",
        ),
        *("-----BEGIN PRIVATE KEY-----\ncanary", "/sk-canarycanary", "-Authorization: Digest a=canary, b=canary"),
        *("/password=" + "x" * 100 + "!canary", "_x_https://me:canary@host/", "/?sig=canary", '.secrets: ["canary"]'),
    ],
)
def test_a_name_or_a_scheme_that_ends_a_blob_still_hides_what_follows(ending: str) -> None:
    for blob in ("A0b1" * 90_000, "A" * 300_001, "A" * 4096):
        (kept, _) = keep_document([f"see {blob}{ending} and more", IMAGE])
        assert kept.startswith(f"see {blob[:64]}[… ")
        assert "letters are missing here …]" in kept
        assert kept.endswith(" and more") or "BEGIN" in ending or "Digest" in ending


def test_a_key_that_is_a_blob_may_end_in_a_sensitive_name() -> None:
    blob = "A0b1" * 90_000
    (key,) = document = keep_document({f"{blob}_password": "canary"})
    assert key == f"{blob[:64]}[… {len(blob) + 9 - 64:,} letters are missing here …]"
    assert document[key] == REDACTED


def test_of_the_end_of_a_blob_no_letter_is_left_since_it_may_be_half_a_secret() -> None:
    known = "canary+/CANARY" * 6 + "!canary"
    for shift in range(50, 100):
        (kept, _) = keep_document([f"{'A' * 5000}/sk-canarycanary/{'y' * shift}, and more", IMAGE])
        assert kept.endswith("letters are missing here …], and more")
        keep_document(["A" * 5000 + known + "y" * shift, "A" * 5000 + known, IMAGE], secrets=(known,))
    keep_document(["A" * 5000 + "canary/CANARY0" + "y" * 55, IMAGE], secrets=("canary/CANARY0",))


def test_a_known_secret_is_not_cut_either() -> None:
    known = "canaryCANARYcanary"
    for place in range(80):
        keep_document(["x" * place + known + "y" * 400_000], secrets=(known,))
    for shift in range(40):
        keep_document(["," * (32 * 1024 - shift) + known + ", " * 400_000], secrets=(known,))


def test_what_is_no_json_or_is_far_too_large_is_replaced() -> None:
    for body in (
        b'{"password": "canary' + b" canary" * 100_000,
        b"[" + b'"canary",' * (MAX_PARSED_BYTES // 8) + b"1]",
        b'["' + b"canary" * (MAX_BODY_BYTES // 6) + b'"]',
        json.dumps({f"canary {number}": 1 for number in range(40_000)}).encode(),
        b"\xff" * 400_000,
    ):
        assert keep(body) == f"[not a JSON document that could be read, {len(body):,} bytes]"


def test_a_body_that_is_no_json_keeps_both_ends() -> None:
    body = b"{first}\n" + b"some words\n" * 50_000 + b"last"
    for content_type in ("text/plain", ""):
        kept = redact_body(body, content_type)
        assert kept.startswith("{first}\n")
        assert kept.endswith("\nlast")
        assert "bytes are missing here" in kept
    rows = redact_body(b'{"a": 1}\n' * 50_000, "application/x-ndjson")
    assert rows.startswith('{"a": 1}\n')
    assert "bytes are missing here" in rows


def test_a_record_says_how_many_bytes_it_holds_on_to() -> None:
    for body, held_bytes in ((b"{}", 2), (b"[" + b" " * 2**20, 2**20 + 1), (b"a" * 2**20, KEPT_BYTES)):
        recorded = RecordedBody(keep_body(body), {}, on_bug=fail)
        assert recorded.size_bytes == held_bytes
    assert keep_body(body[:9]).head is not body
    document = b"[" + b" " * 2**20
    assert keep_body(document).head is document
