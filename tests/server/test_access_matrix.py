"""Every route × everybody who may come: the rules of route_rules.py hold, and a route without a rule fails.

One server, asked without a network: what a client sends is an ASGI request, so a thousand of them take a second. The
status is all that is compared, because what matters is whether somebody got in: a request that was let in may still be
refused for its content (404 for a queued message that is not there, 409, 422).
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

import pytest
from PIL import Image
from starlette.types import Message
from tests.server.route_rules import BODIES, DESTROYS, RULES, Rule
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer

from indelible.api.inputs import CreateChat, NewMessage
from indelible.app.app import App
from indelible.content import Text
from indelible.server.authentication import COOKIE
from indelible.server.compat.openai import ResponseName, name_conversation, name_message_item, name_response_item
from indelible.service.files import Upload

pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)

TOKEN: Final = "the-first-admins"  # noqa: S105  (nobody's)
ADDRESSES: Final = itertools.count(1)
GOT_IN: Final = None
"""Whatever the route answers, but none of the refusals of a login."""

OTHERS: Final[dict[Rule, int | None]] = {"read": 404, "own": 404, "write": 404, "file": 404, "unfile": 404}
"""To those who have no right to them, chats and files do not exist."""
NOT_ADMIN: Final[dict[Rule, int | None]] = {"admin": 403, "metrics": 403}
NO_WRITING: Final[dict[Rule, int | None]] = {"write": 403, "create": 403, "unfile": 403}
NO_READING: Final[dict[Rule, int | None]] = dict.fromkeys(("user", "read", "own", "named", "file"), 403)
GUESTS: Final[dict[Rule, int | None]] = {
    **OTHERS,
    "read": GOT_IN,
    "file": GOT_IN,
    "own": 403,
    "write": 403,
    "named": 403,
}
NOBODY: Final[dict[Rule, int | None]] = {rule: GOT_IN if rule in ("open", "link") else 401 for rule in RULES.values()}
EVERYBODY: Final[dict[Rule, int | None]] = dict.fromkeys(RULES.values(), GOT_IN)
EXPECTED: Final[dict[str, Mapping[Rule, int | None]]] = {
    "owner": EVERYBODY | NOT_ADMIN,
    "owner, by cookie": EVERYBODY | NOT_ADMIN,
    "first admin": EVERYBODY | OTHERS,
    "other user": EVERYBODY | NOT_ADMIN | OTHERS,
    "user with a share": EVERYBODY | NOT_ADMIN | GUESTS,
    "admin's token for chats": EVERYBODY | OTHERS | {"admin": 403, "manage": 403},
    "read-only token": EVERYBODY | NOT_ADMIN | NO_WRITING | {"manage": 403},
    "write-only token": EVERYBODY | NOT_ADMIN | NO_READING | {"manage": 403},
    "anonymous": NOBODY,
    "revoked token": NOBODY,
    "expired session": NOBODY,
    "disabled user": NOBODY,
    "cookie from another site": dict.fromkeys(RULES.values(), 403),
    "cookie without proof": EVERYBODY | NOT_ADMIN | NO_WRITING,
}
STREAMS: Final = ("/events", "/stream", "/v1/responses/{response_id}")
"""Whoever opens one with a cookie has to prove that it is from our own page."""
NEEDS_PROOF: Final = {
    ("POST", "/api/v1/tokens"),
    ("DELETE", "/api/v1/tokens/{token_id}"),
    ("DELETE", "/api/v1/session"),
}


ENDS_SESSION: Final = {("DELETE", "/api/v1/session")}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class World(NamedTuple):
    server: RunningServer
    names: dict[str, str]
    headers: dict[str, dict[str, str]]


async def list_routes(world: World) -> set[tuple[str, str]]:
    """Every route of the application, as (method, path)."""
    listed = json.loads((await ask(world, "GET", "/web/routes.json", {})).body)
    return {(method, path) for method, path in map(str.split, listed)}


@pytest.fixture
async def world(harness: AppHarness) -> World:
    server = await harness.start_server(
        worker=False, token=TOKEN, oidc_issuer="http://127.0.0.1:9", oidc_client_id="indelible"
    )
    app, accounts = server.app, server.app.accounts
    ada = await accounts.add_user("ada")
    service = app.service_of(ada.id)
    picture = await service.files.upload(Upload(make_picture(), "cat.png").open_chunks, name="cat.png")
    chat = await service.create_chat(CreateChat(message=[picture.to_block(), Text("Hello")]))
    queued = await service.send(chat.id, NewMessage(text="And Bergen?"))
    link, key = await app.shares.share_by_link(chat.id, owner_id=ada.id)
    grace = await accounts.add_user("grace")
    await app.shares.share_with_user(chat.id, "grace", owner_id=ada.id)
    bearers = {
        "owner": await make_token(app, ada.id),
        "other user": await make_token(app, (await accounts.add_user("ida")).id),
        "user with a share": await make_token(app, grace.id),
        "admin's token for chats": await make_token(
            app, (await accounts.add_user("alan", role="admin")).id, "read", "write"
        ),
        "read-only token": await make_token(app, ada.id, "read"),
        "write-only token": await make_token(app, ada.id, "write"),
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
    names |= {"file_id": picture.id, "model_id": "demo-1", "item_id": "msg_1"}
    names |= {"response_id": str(ResponseName(chat.id, (await app.store.status(chat.id)).seq))}
    names |= {"conversation_id": name_conversation(chat.id)}
    names |= {"share_id": "share_1", "token_id": "token_1", "name": "nobody", "key": key, "new_name": link.id}
    return World(server, names, headers)


async def make_token(app: App, user_id: str, *scopes: Any, revoked: bool = False) -> str:
    made, secret = await app.accounts.create_token(user_id, label="", scopes=scopes or ("read", "write", "admin"))
    if revoked:
        await app.accounts.revoke_token(made.id)
    return secret


def make_picture() -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (2, 2)).save(written, "PNG")
    return written.getvalue()


async def ask(
    world: World, method: str, path: str, headers: Mapping[str, str], *, body: object | None = None
) -> Answer:
    """Send a request to the application itself, and leave as soon as it answers."""
    body = BODIES.get((method, path)) if body is None else body
    written = json.dumps(body) if body is not None else ""
    for name in ("message_id", "chat_id", "response_id", "conversation_id"):
        written = written.replace(f"{{{name}}}", world.names[name])
    written = written.replace("{new_name}", f"{world.names['new_name']}{len(headers)}")
    sent = {"host": "chats.example", "content-type": "application/json", **headers}
    names = world.names | ({"name": world.names["chat_id"]} if path.startswith("/ai-sdk/") else {})
    place = path.replace(":path}", "}").format(**names)
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
        "client": (f"2001:db8:0:{next(ADDRESSES):x}::1", 1),  # so that nobody has guessed too often
        "server": ("127.0.0.1", 80),
    }
    received: list[Message] = [
        {"type": "http.request", "body": written.encode(), "more_body": False},
        {"type": "http.disconnect"},
    ]
    answers: list[Message] = []

    has_begun = asyncio.Event()

    async def receive() -> Message:
        if len(received) > 1:
            return received.pop(0)
        if place.endswith("/preview"):  # nobody makes a picture for a client that has left
            await has_begun.wait()
        return received[0]

    async def send(message: Message) -> None:
        answers.append(message)
        has_begun.set()

    await world.server.server.application(scope, receive, send)
    found = {name.decode().lower(): value.decode("latin-1") for name, value in answers[0].get("headers", ())}
    return Answer(int(answers[0]["status"]), found, b"".join(answer.get("body", b"") for answer in answers))


async def test_every_route_has_a_rule_and_every_rule_a_route(world: World) -> None:
    assert await list_routes(world) == set(RULES)


@pytest.mark.may_log("a login by OpenID Connect failed")
async def test_nobody_gets_in_whom_the_rules_do_not_name(world: World) -> None:
    wrong = []
    for who, expected in EXPECTED.items():
        for method, path in sorted(RULES):
            rule = RULES[method, path]
            if (method, path) in DESTROYS and who.startswith("owner"):
                continue  # after it the chat is gone for the others too
            if (method, path) in ENDS_SESSION and expected[rule] is GOT_IN:
                continue  # it would end the session of the others
            wanted = expected[rule]
            if who == "cookie without proof" and ((method, path) in NEEDS_PROOF or path.endswith(STREAMS)):
                wanted = 403
            if who == "write-only token" and path.endswith("/api/v1/session"):
                wanted = GOT_IN
            elif who == "write-only token" and (path.startswith(("/v1/", "/ai-sdk/")) or path.endswith("/shares")):
                wanted = 403  # the reply comes with the response; a link would let everybody read
            status = (await ask(world, method, path, world.headers[who])).status
            got_in = status == 200 if rule == "file" else status not in (401, 403)
            if who == "cookie from another site" and rule == "open" and method == "GET":
                got_in, wanted = True, GOT_IN  # health checks
            if (
                (status != wanted)
                if wanted is not GOT_IN
                else not got_in and (method, path) != ("POST", "/api/v1/session")
            ):
                wrong.append((who, method, path, rule, wanted, status))
    assert wrong == []


async def test_every_answer_has_a_status_that_the_document_has(world: World) -> None:
    """Refusals of a login included, which no request of test_any_request.py gets."""
    document = json.loads((await ask(world, "GET", "/openapi.json", world.headers["first admin"])).body)
    described = {
        (method.upper(), path): set(operation["responses"])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    undocumented = []
    for who in EXPECTED:
        for method, path in sorted(described):
            if (method, path) not in ENDS_SESSION:
                status = (await ask(world, method, path, world.headers[who])).status
                if str(status) not in described[method, path]:
                    undocumented.append((who, method, path, status))
    assert len(described) > 40
    assert undocumented == []


@pytest.mark.may_log("a login by OpenID Connect failed")
async def test_every_answer_has_the_headers_that_bind_a_browser(world: World) -> None:
    without = []
    for who in ("owner", "anonymous"):
        for method, path in sorted(RULES):
            if method == "GET":
                headers = (await ask(world, method, path, world.headers[who])).headers
                if not {"content-security-policy", "referrer-policy", "cache-control"} <= set(headers):
                    without.append((who, path, sorted(headers)))
    assert without == []


async def test_nothing_of_what_others_tried_has_changed_the_chat(world: World) -> None:
    app, chat_id = world.server.app, world.names["chat_id"]
    before = await app.store.view(chat_id)
    for who in ("other user", "user with a share", "read-only token", "anonymous", "cookie from another site"):
        for (method, path), rule in RULES.items():
            if rule in ("write", "unfile"):
                await ask(world, method, path, world.headers[who])
    assert await app.store.view(chat_id) == before


async def test_an_id_in_a_body_or_a_header_opens_no_more_than_one_in_a_path(world: World) -> None:
    """Which chat goes on, and which files a message has."""
    app, chat_id = world.server.app, world.names["chat_id"]
    before, hers = await app.store.view(chat_id), {"type": "file", "file_id": world.names["file_id"]}
    said = {"messages": [{"role": "user", "content": "Hi"}]}
    item = name_response_item("msg", world.names["response_id"], 0)
    message = name_message_item("msg", chat_id, world.names["message_id"], 0)
    for who, status in (("other user", 404), ("first admin", 404), ("user with a share", 403)):
        headers = world.headers[who]
        refers = [{"input": [{"type": "item_reference", "id": name}]} for name in (item, message)]
        asked: list[tuple[str, dict[str, str], dict[str, Any]]] = [
            ("/v1/responses", {}, {"input": "Hi", "previous_response_id": "{response_id}"}),
            ("/v1/responses", {}, {"input": "Hi", "conversation": "{conversation_id}"}),
            *((path, {}, each) for each in refers for path in ("/v1/responses", "/v1/responses/input_tokens")),
            ("/v1/chat/completions", {"x-indelible-chat": chat_id}, said),
        ]
        for path, more, body in asked:
            answer = await ask(world, "POST", path, {**headers, **more}, body=body)
            is_gone = "previous_response_id" in body and status == 404  # in OpenAI's words
            assert answer.status == (400 if is_gone else status), (who, body)
        refused = await ask(world, "POST", "/api/v1/chats", headers, body={"message": [hers]})
        assert refused.status == 404, (who, refused.body)
    assert await app.store.view(chat_id) == before


async def test_every_refusal_on_openais_wire_has_openais_shape(world: World) -> None:
    for who in ("anonymous", "other user", "user with a share", "read-only token", "cookie from another site"):
        for method, path in sorted(RULES):
            if path.startswith("/v1/"):
                answer = await ask(world, method, path, world.headers[who])
                if answer.status >= 400:
                    assert answer.headers["content-type"] == "application/json", (who, path)
                    assert {"message", "type", "param", "code"} == set(json.loads(answer.body)["error"]), (who, path)
