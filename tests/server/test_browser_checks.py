"""Which requests of browsers pass, by every line of the rule. tests/server/test_access.py sends some of them."""

from __future__ import annotations

from typing import Literal, NamedTuple

import pytest
from starlette.datastructures import Headers

from indelible.server.access import BrowserChecks
from indelible.settings import load_settings

TOKEN = "a-token-of-more-than-twenty-letters"  # noqa: S105  (nobody's)
OWN = {"Origin": "https://chats.example"}
LISTED = {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "cross-site"}
FOREIGN = [
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Origin": "https://evil.example"},
    {"Origin": "https://chats.example.evil.example"},
    {"Origin": "null"},
    {**OWN, "Sec-Fetch-Site": "same-site"},
]
STREAMS = ["/api/v1/chats/c/events", "/api/v1/shared/k/events", "/ai-sdk/chat/c/stream", "/v1/responses/resp_1"]
Who = Literal["everybody", "without a cookie", "nobody"]


class Sent(NamedTuple):
    """A request of a browser, or of a program, and who may send it."""

    method: str
    headers: dict[str, str]
    who: Who
    path: str = "/api/v1/chats"


SENT = [
    Sent("GET", {}, "everybody"),
    Sent("POST", {}, "without a cookie"),  # a program
    Sent("DELETE", {}, "without a cookie"),
    *(Sent(method, OWN, "everybody") for method in ("GET", "POST")),
    *(Sent(method, {"Origin": "HTTPS://CHATS.EXAMPLE"}, "everybody") for method in ("GET", "POST")),
    *(Sent(method, {"Sec-Fetch-Site": "same-origin"}, "everybody") for method in ("GET", "POST")),
    *(Sent(method, headers, "nobody") for method in ("GET", "POST") for headers in FOREIGN),
    Sent("GET", {"Sec-Fetch-Site": "none"}, "everybody"),  # an address that was typed
    Sent("POST", {"Sec-Fetch-Site": "none"}, "without a cookie"),
    Sent("GET", NAVIGATION, "everybody"),
    Sent("POST", NAVIGATION, "nobody"),
    Sent("POST", {**NAVIGATION, "Sec-Fetch-Site": "same-site"}, "nobody"),
    Sent("GET", LISTED, "without a cookie"),
    Sent("POST", LISTED, "without a cookie"),
    *(Sent("GET", {}, "without a cookie", path) for path in STREAMS),
    *(Sent("GET", OWN, "everybody", path) for path in STREAMS),
    Sent("GET", {}, "everybody", "/v1/responses"),
]


@pytest.mark.parametrize("sent", SENT, ids=str)
def test_which_requests_of_browsers_pass(sent: Sent) -> None:
    checks = BrowserChecks(load_settings(token=TOKEN, cors_origins=["https://app.example"]))
    headers = Headers({"Host": "chats.example", **sent.headers})
    passed = [
        has_cookie
        for has_cookie in (True, False)
        if checks.check_origin(headers, sent.method, sent.path, has_cookie=has_cookie) is None
    ]
    assert passed == {"everybody": [True, False], "without a cookie": [False], "nobody": []}[sent.who]
