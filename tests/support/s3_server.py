"""`S3Server`: storage that speaks as much S3 as we do, over real HTTP, and believes no signature but botocore's.

Every request is signed once more by botocore, from what arrived; if that differs from the header that came with it, the
answer is 403, as it would be from AWS. The body's hash is compared too. `fail_next` lets requests fail first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Self

from aiohttp import web
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

ACCESS_KEY: Final = "AKIAKESTREL"
SECRET_KEY: Final = "kestrel/secret+key"  # noqa: S105
REGION: Final = "eu-north-1"
BUCKET: Final = "bucket"


class S3Server:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.statuses: list[int] = []
        self.fail_next: list[int] = []
        self.url = ""

    @classmethod
    @asynccontextmanager
    async def run(cls) -> AsyncIterator[Self]:
        server = cls()
        application = web.Application(client_max_size=2**30)
        application.router.add_route("*", "/{key:.*}", server._answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield server
        finally:
            await runner.cleanup()

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}

    @property
    def place(self) -> str:
        return f"s3://{BUCKET}/some/files?endpoint={self.url}&region={REGION}"

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        response = self._choose(request, body)
        self.statuses.append(response.status)
        return response

    def _choose(self, request: web.Request, body: bytes) -> web.Response:
        if self.fail_next:
            return web.Response(status=self.fail_next.pop(0))
        if not is_signed(request) or hashlib.sha256(body).hexdigest() != request.headers["x-amz-content-sha256"]:
            return web.Response(status=403)
        key = request.path
        if request.method == "PUT":
            self.objects[key] = body
            return web.Response()
        if request.method == "DELETE":
            self.objects.pop(key, None)
            return web.Response(status=204)
        if key not in self.objects:
            return web.Response(status=404)
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        if found is None:
            return web.Response(body=self.objects[key])
        stop = int(found[2]) + 1 if found[2] else None
        return web.Response(status=206, body=self.objects[key][int(found[1]) : stop])


def is_signed(request: web.Request) -> bool:
    """Whether botocore would have sent this request with this signature."""
    given = request.headers["authorization"]
    names = re.search(r"SignedHeaders=([^,]+)", given)
    assert names is not None
    headers = {name: request.headers[name] for name in names[1].split(";")}
    again = AWSRequest(method=request.method, url=f"http://{request.host}{request.raw_path}", headers=headers)
    again.context["timestamp"] = request.headers["x-amz-date"]
    judge = S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION)
    text = judge.string_to_sign(again, judge.canonical_request(again))
    return given.endswith(f"Signature={judge.signature(text, again)}") and f"Credential={ACCESS_KEY}/" in given
