"""What OpenAI's APIs share: names, models, errors, pages, usage.

The names of responses, conversations and items are derived, so none is stored. A conversation is a chat: `conv_…` and
`chat_…` have the same end. A response is a turn from where it started or was resumed: `resp_`, the end of the chat's
id, and the number of the event there (service/turns.py). A turn that waited for results is two responses, as it is two
requests. An item of a response has the end of the response's name and its place in the output; an item of a
conversation has the ends of the chat's and the message's ids and the place of its block. So an item that a client only
refers to is found again, in the user's own chats and without a search (responses_stored.py).

Programs written for OpenAI say `gpt-5.1` where we say `openai:gpt-5.1`. The short name of a model is understood if
exactly one of the server's models has it; everything else is left as it is, and refused with the names that exist (404,
as by OpenAI; tests/server/compat/test_chat_completions.py).

An error on `/v1` is `{"error": {"message", "type", "param", "code"}}`. Every error of this server is a problem
(problems.py), wherever it was raised: a refused token, a body that is too large, a command that the chat's state
forbids. One middleware around everything turns the problems of these paths into what the clients of that API read, so
no route and no check has to know of it. A refusal that is ours as 422 is 400 here, which is what OpenAI answers.
`RefusedByName` is for refusals that programs know by their status and code.

Must stay true (tests/server/compat/test_openai_errors.py): no answer above 399 under `/v1` is a problem.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from indelible.content import Usage, encode
from indelible.errors import Invalid, NotFound
from indelible.ids import ULID
from indelible.server.problems import MEDIA_TYPE
from indelible.server.router import Router
from indelible.server.state import Reads, answer_json
from indelible.service.chats import LocalService

PREFIX: Final = "/v1"
_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES: Final = {
    "invalid": None,
    "bad_request": None,
    "unauthorized": "invalid_api_key",
    "not_allowed": "conversation_locked",
    "too_many": "rate_limit_exceeded",
}
_STATUSES: Final = {
    "rate_limit": 429,
    "usage_limit": 429,
    "overloaded": 503,
    "timeout": 504,
    "context_overflow": 400,
    "content_filter": 400,
    "config": 400,
}
MAX_ITEMS: Final = 100
_RESPONSE: Final = re.compile(rf"resp_({ULID})([1-9][0-9]{{0,15}})")
_CONVERSATION: Final = re.compile(rf"conv_({ULID})")
_ITEM: Final = re.compile(rf"[a-z]{{2,4}}_({ULID})(?:([1-9][0-9]{{0,15}})_([0-9]{{1,6}})|({ULID})([0-9]{{2,6}}))")


# --- names ---


class ResponseName(NamedTuple):
    chat_id: str
    seq: int

    def __str__(self) -> str:
        return f"resp_{self.chat_id.rpartition('_')[2]}{self.seq}"


class ItemName(NamedTuple):
    """Where an item stands: at a place in the output of a response, or in a message."""

    parent: ResponseName | MessageName
    place: int


class MessageName(NamedTuple):
    chat_id: str
    message_id: str


def find_response_name(text: str) -> ResponseName | None:
    found = _RESPONSE.fullmatch(text)
    return None if found is None else ResponseName(f"chat_{found[1]}", int(found[2]))


def read_response_name(text: str) -> ResponseName:
    found = find_response_name(text)
    if found is None:
        raise NotFound(f"Response with id {text[:100]!r} not found.")
    return found


def name_response_item(prefix: str, response_id: str, place: int) -> str:
    return f"{prefix}_{response_id.rpartition('_')[2]}_{place}"


def name_message_item(prefix: str, chat_id: str, message_id: str, place: int) -> str:
    return f"{prefix}_{chat_id.rpartition('_')[2]}{message_id.rpartition('_')[2]}{place:02d}"


def find_item_name(text: str) -> ItemName | None:
    found = _ITEM.fullmatch(text)
    if found is None:
        return None
    chat_id = f"chat_{found[1]}"
    if found[2] is not None:
        return ItemName(ResponseName(chat_id, int(found[2])), int(found[3]))
    return ItemName(MessageName(chat_id, f"message_{found[4]}"), int(found[5]))


def name_conversation(chat_id: str) -> str:
    return f"conv_{chat_id.rpartition('_')[2]}"


def read_conversation_name(text: str) -> str:
    """The id of its chat."""
    found = _CONVERSATION.fullmatch(text)
    if found is None:
        raise NotFound(f"Conversation with id {text[:100]!r} not found.")
    return f"chat_{found[1]}"


# --- failures and refusals by name ---


class RefusedByName(Invalid):
    """A refusal with the status and the code that OpenAI has for it."""

    def __init__(self, message: str, *, status: int, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"message": message, "type": "invalid_request_error", "param": param, "code": code}


async def answer_refusal_by_name(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedByName)
    return answer_json({"error": error.body}, error.status)


def answer_failure(error: dict[str, Any] | None) -> Response:
    """The provider's key is the server's business: a failure of it is no 401 of the client.

    The worker has tried again as often as that could help, so the SDKs are told not to: they would pay again.
    """
    kind = (error or {}).get("kind") or "server_error"
    status = _STATUSES.get(kind, 502)
    problem = {
        "message": (error or {}).get("message") or "The reply failed.",
        "type": "invalid_request_error" if status == 400 else "server_error",
        "param": None,
        "code": "context_length_exceeded" if kind == "context_overflow" else kind,
    }
    answer = answer_json({"error": problem}, status)
    answer.headers["x-should-retry"] = "false"
    return answer


# --- pages and usage ---


def show_page(items: Sequence[dict[str, Any]], *, limit: int, after: str | None, order: str) -> dict[str, Any]:
    """One page of these items, which are oldest first. The client has chosen `limit`."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        at = next((at for at, item in enumerate(ordered) if item["id"] == after), None)
        if at is None:
            raise Invalid("after: there is no such item.")
        ordered = ordered[at + 1 :]
    page = ordered[: max(1, min(limit, MAX_ITEMS))]
    return show_list(page, has_more=len(ordered) > len(page))


def show_list(items: Sequence[dict[str, Any]], *, has_more: bool = False) -> dict[str, Any]:
    """These items, all of them."""
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }


class RunningUsage:
    """Unknown until a step reports its own."""

    def __init__(self) -> None:
        self._total: Usage | None = None

    def add(self, reported: dict[str, Any] | None) -> None:
        if reported is not None:
            self._total = (self._total or Usage()) + msgspec.convert(reported, Usage)

    def show_for_response(self) -> dict[str, Any] | None:
        total = self._total
        if total is None:
            return None
        return {
            "input_tokens": total.input_tokens,
            "input_tokens_details": {
                "cached_tokens": total.cache_read_tokens,
                "cache_write_tokens": total.cache_write_tokens,
            },
            "output_tokens": total.output_tokens,
            "output_tokens_details": {"reasoning_tokens": total.reasoning_tokens},
            "total_tokens": total.total_tokens,
        }

    def show_for_completion(self) -> dict[str, Any] | None:
        total = self._total
        if total is None:
            return None
        return {
            "prompt_tokens": total.input_tokens,
            "prompt_tokens_details": {"cached_tokens": total.cache_read_tokens},
            "completion_tokens": total.output_tokens,
            "completion_tokens_details": {"reasoning_tokens": total.reasoning_tokens},
            "total_tokens": total.total_tokens,
        }


# --- problems as errors ---


class OpenAIErrors:
    """Wraps the whole application, access control included."""

    def __init__(self, application: ASGIApp, *, base_path: str = "") -> None:
        self._application = application
        self._prefixes = (f"{PREFIX}/", f"{base_path}{PREFIX}/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(self._prefixes):
            await self._application(scope, receive, send)
            return
        await self._application(scope, receive, _Rewriter(send).send)


class _Rewriter:
    """Holds a problem back until it is whole, and sends it in the other shape."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_problem(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_error(self._start)

    async def _send_error(self, start: Message) -> None:
        status, body = rewrite(start["status"], self._body)
        kept = [(name, value) for name, value in start["headers"] if name not in (b"content-type", b"content-length")]
        headers = [*kept, (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


def rewrite(status: int, body: bytes) -> tuple[int, bytes]:
    """A problem in OpenAI's shape."""
    problem: dict[str, Any] = msgspec.json.decode(body)
    status = 400 if status == 422 else status
    kind = problem["kind"]
    default = "invalid_request_error" if status < 500 else "server_error"
    error = {
        "message": problem["detail"],
        "type": _TYPES.get(status, default),
        "param": problem.get("param"),
        "code": "unsupported_parameter" if "param" in problem else _CODES.get(kind, kind),
    }
    return status, encode({"error": error})


def _is_problem(start: Message) -> bool:
    named: dict[bytes, bytes] = dict(start.get("headers", ()))
    return named.get(b"content-type", b"").startswith(MEDIA_TYPE.encode())


# --- models ---

router = Router(prefix=PREFIX)


@router.get("/models")
async def list_models(service: Reads) -> Response:
    """List the models."""
    page = await service.list_models()
    return answer_json({"object": "list", "data": [_show(model.id) for model in page.items]})


@router.get("/models/{model_id:path}")
async def get_model(model_id: str, service: Reads) -> Response:
    """Get one model."""
    page = await service.list_models()
    if all(model.id != model_id for model in page.items):
        raise _refuse(f"The model {model_id[:100]!r} does not exist.")
    return answer_json(_show(model_id))


async def find_model_name(service: LocalService, given: str | None) -> str | None:
    """The name of a model that may be used: the given one, or the only one that ends so. Raises `RefusedByName`."""
    name = given
    if given is not None and ":" not in given:
        names = [model.id for model in (await service.list_models()).items]
        meant = [name for name in names if name.partition(":")[2].partition("@")[0] == given]
        name = meant[0] if len(meant) == 1 and given not in names else given
    try:
        service.check_model(name)
    except Invalid as error:
        raise _refuse(str(error)) from error
    return name


def _refuse(message: str) -> RefusedByName:
    return RefusedByName(message, status=404, code="model_not_found", param="model")


def _show(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "indelible"}
