"""Every route × everybody who may come: the rules of route_rules.py hold, and a route without a rule fails.

One server, asked without a network: what a client sends is an ASGI request, so a thousand of them take a second. The
status is all that is compared, because what matters is whether somebody got in: a request that was let in may still be
refused for its content (404 for a queued message that is not there, 409, 422).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import Message
from tests.server.route_rules import BODIES, RULES, Rule
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer

from indelible.app.app import App
from indelible.server.authentication import COOKIE

pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)

TOKEN: Final = "the-first-admins"  # noqa: S105  (nobody's)
ADDRESSES: Final = itertools.count(1)
GOT_IN: Final = None
"""Whatever the route answers, but none of the refusals of a login."""

NOBODY: Final[dict[Rule, int | None]] = {rule: GOT_IN if rule in ("open", "link") else 401 for rule in RULES.values()}
EVERYBODY: Final[dict[Rule, int | None]] = dict.fromkeys(RULES.values(), GOT_IN)
EXPECTED: Final[dict[str, Mapping[Rule, int | None]]] = {
    "owner": EVERYBODY | {"admin": 403, "metrics": 403},
    "owner, by cookie": EVERYBODY | {"admin": 403, "metrics": 403},
    "first admin": EVERYBODY | {"read": 404, "own": 404, "write": 404},
    "other user": EVERYBODY | {"admin": 403, "metrics": 403, "read": 404, "own": 404, "write": 404},
    "user with a share": EVERYBODY | {"admin": 403, "metrics": 403, "own": 403, "write": 403},
    "read-only token": EVERYBODY | {"admin": 403, "metrics": 403, "manage": 403, "write": 403, "create": 403},
    "anonymous": NOBODY,
    "revoked token": NOBODY,
    "expired session": NOBODY,
    "disabled user": NOBODY,
    "cookie from another site": dict.fromkeys(RULES.values(), 403),
    "cookie without proof": EVERYBODY | {"admin": 403, "metrics": 403, "write": 403, "create": 403},
}
NEEDS_PROOF: Final = {
    ("POST", "/api/v1/tokens"),
    ("DELETE", "/api/v1/tokens/{token_id}"),
    ("DELETE", "/api/v1/session"),
}


class World(NamedTuple):
    server: RunningServer
    names: dict[str, str]
    headers: dict[str, dict[str, str]]


def list_routes(server: RunningServer) -> set[tuple[str, str]]:
    """Every route of the application, as (method, path)."""
    application: Any = server.server.application
    while not isinstance(application, FastAPI):
        application = application._application
    found: set[tuple[str, str]] = set()
    routes: list[Any] = application.routes
    for route in routes:
        methods = getattr(route, "methods", None) or ()
        found |= {(method, route.path) for method in methods if method != "HEAD"}
        assert isinstance(route, APIRoute) or route.path in ("/openapi.json", "/web"), route
    return found


@pytest.fixture
async def world(harness: AppHarness) -> World:
    server = await harness.start_server(
        worker=False, token=TOKEN, oidc_issuer="http://127.0.0.1:9", oidc_client_id="indelible"
    )
    app, accounts = server.app, server.app.accounts
    ada = await accounts.add_user("ada")
    service = app.service_of(ada.id)
    chat = await service.create_chat("Hello")
    queued = await service.send(chat.id, "And Bergen?")
    link, key = await app.shares.share_by_link(chat.id, owner_id=ada.id)
    grace = await accounts.add_user("grace")
    await app.shares.share_with_user(chat.id, "grace", owner_id=ada.id)
    bearers = {
        "owner": await make_token(app, ada.id),
        "other user": await make_token(app, (await accounts.add_user("ida")).id),
        "user with a share": await make_token(app, grace.id),
        "read-only token": await make_token(app, ada.id, "read"),
        "revoked token": await make_token(app, ada.id, revoked=True),
        "disabled user": await make_token(app, (await accounts.add_user("eve")).id),
        "first admin": TOKEN,
    }
    await accounts.update_user("eve", disabled=True)
    now = app.clock.now()
    sessions = {
        name: await accounts.add_session(
            ada.id, method="oidc", scopes=["read", "write", "admin"], expires_at=expires_at
        )
        for name, expires_at in {
            "owner, by cookie": now + timedelta(hours=1),
            "cookie from another site": now + timedelta(hours=1),
            "cookie without proof": now + timedelta(hours=1),
            "expired session": now - timedelta(seconds=1),
        }.items()
    }
    headers = {name: {"authorization": f"Bearer {token}"} for name, token in bearers.items()}
    headers |= {name: {"cookie": f"{COOKIE}={secret}"} for name, secret in sessions.items()}
    for name in ("owner, by cookie", "expired session"):
        headers[name]["origin"] = "http://chats.example"
    headers["cookie from another site"] |= {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    headers["anonymous"] = {}
    message = str(chat.message)
    names = {"chat_id": chat.id, "message_id": message, "queued_id": str(queued.queued), "run_id": "run_1"}
    names |= {"file_id": "file_1"}
    names |= {"share_id": "share_1", "token_id": "token_1", "name": "nobody", "key": key, "new_name": link.id}
    return World(server, names, headers)


async def make_token(app: App, user_id: str, *scopes: Any, revoked: bool = False) -> str:
    made, secret = await app.accounts.create_token(user_id, label="", scopes=scopes or ("read", "write", "admin"))
    if revoked:
        await app.accounts.revoke_token(made.id)
    return secret


async def ask(world: World, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str]]:
    """Send a request to the application itself, and leave as soon as it answers. The status, and the headers."""
    body = BODIES.get((method, path))
    written = json.dumps(body).replace("{message_id}", world.names["message_id"]) if body is not None else ""
    written = written.replace("{new_name}", f"{world.names['new_name']}{len(headers)}")
    sent = {"host": "chats.example", "content-type": "application/json", **headers}
    place = path.format(**world.names)
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": place,
        "raw_path": place.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in sent.items()],
        "client": (f"2001:db8::{next(ADDRESSES):x}", 1),  # so that nobody has guessed too often
        "server": ("127.0.0.1", 80),
    }
    received: list[Message] = [
        {"type": "http.request", "body": written.encode(), "more_body": False},
        {"type": "http.disconnect"},
    ]
    answers: list[Message] = []

    async def receive() -> Message:
        return received.pop(0) if len(received) > 1 else received[0]

    async def send(message: Message) -> None:
        answers.append(message)

    await world.server.server.application(scope, receive, send)
    found = {name.decode().lower(): value.decode("latin-1") for name, value in answers[0].get("headers", ())}
    return int(answers[0]["status"]), found


async def test_every_route_has_a_rule_and_every_rule_a_route(world: World) -> None:
    assert list_routes(world.server) == set(RULES)


async def test_nobody_gets_in_whom_the_rules_do_not_name(world: World) -> None:
    wrong = []
    # What destroys comes last, and for the owner alone: after it the chat is gone for the others too.
    order = sorted(RULES, key=lambda route: (route[0] == "DELETE" and route[1].endswith("{chat_id}"), route))
    for who, expected in EXPECTED.items():
        for method, path in order:
            rule = RULES[method, path]
            if (method, path) == ("DELETE", "/api/v1/chats/{chat_id}") and who.startswith("owner"):
                continue
            if (method, path) == ("DELETE", "/api/v1/session") and expected[rule] is GOT_IN:
                continue  # it would end the session of the others
            wanted = expected[rule]
            if who == "cookie without proof" and ((method, path) in NEEDS_PROOF or path.endswith("/events")):
                wanted = 403
            status, _ = await ask(world, method, path, world.headers[who])
            got_in = status not in (401, 403) and not (rule in ("read", "own", "write") and wanted == 404)
            if who == "cookie from another site" and rule == "open" and method == "GET":
                got_in, wanted = True, GOT_IN  # health checks
            if (
                (status != wanted)
                if wanted is not GOT_IN
                else not got_in and (method, path) != ("POST", "/api/v1/session")
            ):
                wrong.append((who, method, path, rule, wanted, status))
    assert wrong == []


async def test_every_answer_has_the_headers_that_bind_a_browser(world: World) -> None:
    without = []
    for who in ("owner", "anonymous"):
        for method, path in sorted(RULES):
            if method == "GET":
                _, headers = await ask(world, method, path, world.headers[who])
                if not {"content-security-policy", "referrer-policy", "cache-control"} <= set(headers):
                    without.append((who, path, sorted(headers)))
    assert without == []


async def test_nothing_of_what_others_tried_has_changed_the_chat(world: World) -> None:
    app, chat_id = world.server.app, world.names["chat_id"]
    before = await app.store.view(chat_id)
    for who in ("other user", "user with a share", "read-only token", "anonymous", "cookie from another site"):
        for (method, path), rule in RULES.items():
            if rule == "write":
                await ask(world, method, path, world.headers[who])
    assert await app.store.view(chat_id) == before
