"""A small OpenID Connect provider over real HTTP, with a real RS256 key. A test may bend what it says.

It logs everybody in as `email`, and checks the client as a provider does: the redirect address, the code once, the
secret, and PKCE.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from joserfc import jwk, jwt

CLIENT_ID = "indelible"
CLIENT_SECRET = "oidc-secret-canary"  # noqa: S105  (nobody's)


@cache
def make_key(number: int) -> jwk.RSAKey:
    """A key of a process: making one takes a second on a busy machine."""
    return jwk.RSAKey.generate_key(2048, {"kid": "1", "use": "sig", "alg": "RS256"})


class Provider:
    def __init__(self) -> None:
        self.url = ""
        self.key = make_key(1)
        self.signing_key: Any = self.key
        self.algorithm = "RS256"
        self.bend: Callable[[dict[str, Any]], None] = lambda _claims: None
        self.email = "ada@example.com"
        self.codes: dict[str, dict[str, str]] = {}
        self.seen: list[str] = []
        self.padding = ""

    async def describe(self, _request: web.Request) -> web.Response:
        places = {name: f"{self.url}/{name}" for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")}
        return web.json_response({"issuer": self.url, **places})

    async def authorize(self, request: web.Request) -> web.Response:
        asked = dict(request.query)
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        assert asked["client_id"] == CLIENT_ID
        code = f"code-canary-{len(self.codes)}"
        self.codes[code] = asked
        self.seen += [code, asked["state"], asked["nonce"]]
        back = urlencode({"code": code, "state": asked["state"]})
        raise web.HTTPFound(f"{asked['redirect_uri']}?{back}")

    async def give_token(self, request: web.Request) -> web.Response:
        form = await request.post()
        basic = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        asked = self.codes.pop(str(form["code"]), None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(str(form["code_verifier"]).encode()).digest())
        self.seen.append(str(form["code_verifier"]))
        if (
            asked is None
            or request.headers.get("Authorization") != f"Basic {basic}"
            or asked["code_challenge"] != challenge.rstrip(b"=").decode()
            or asked["redirect_uri"] != form["redirect_uri"]
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": self.url,
            "aud": CLIENT_ID,
            "sub": "1",
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            "email": self.email,
            "email_verified": True,
        }
        self.bend(claims)
        token = jwt.encode({"alg": self.algorithm, "kid": "1"}, claims, self.signing_key, algorithms=[self.algorithm])
        self.seen.append(token)
        return web.json_response({"access_token": "access-canary", "token_type": "Bearer", "id_token": token})

    async def list_keys(self, _request: web.Request) -> web.Response:
        return web.json_response({"keys": [self.key.as_dict(private=False)], "padding": self.padding})


@asynccontextmanager
async def run_provider() -> AsyncIterator[Provider]:
    provider = Provider()
    application = web.Application()
    application.router.add_get("/.well-known/openid-configuration", provider.describe)
    application.router.add_get("/authorization_endpoint", provider.authorize)
    application.router.add_post("/token_endpoint", provider.give_token)
    application.router.add_get("/jwks_uri", provider.list_keys)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    provider.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield provider
    finally:
        await runner.cleanup()
