"""`POST /v1/chat/completions`: one turn, with the messages as they are given, or in a durable chat.

Without a header, every request is a chat of its own that begins with the given messages. It is archived when its reply
is complete, unless the request says `store`: a program that calls this a thousand times a day would fill the list of
chats. With `X-Indelible-Chat`, the request continues that chat: the server has its history, and only what is new in
the messages counts, what the user says last or the results of tools. Any name will do; the first request creates the
chat. Every answer has the chat's id in the same header.

A completion is one message, however many steps and attempts the turn took: the text continues where it was interrupted,
and tools that the server runs are not shown, because their calls would be the client's to answer. Calls of the client's
tools are sent when the turn waits for them, whole: a call that a crash has cut could not be taken back, and clients run
what they were given. Reasoning is `reasoning_content`, as the servers that have it call it.

The setting `completions_on_disconnect` says what happens to a reply whose client has left: it is finished (the default)
or stopped. Either way it is kept.

Must stay true (tests/server/compat/test_projections.py): the first chunk names the role, exactly one has a finish
reason, and nothing but usage and `[DONE]` follows it; the chunks' text is the completion's.
(tests/server/compat/test_chat_completions.py): the official SDK gets what it expects, with and without a chat.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Final

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from indelible.api.inputs import ChatChanges, Interruption
from indelible.content import Block, Message, Reasoning, ReasoningDelta, TextDelta, ToolCall, ToolResult, encode
from indelible.errors import Invalid
from indelible.ids import new_id
from indelible.server.compat import requests
from indelible.server.compat.openai import PREFIX, RunningUsage, answer_failure, find_model_name
from indelible.server.compat.openai_items import check_objects, make_result, read_content
from indelible.server.compat.projection import PartHandlers, TurnProjection, answer_stream, collect
from indelible.server.router import HEADER, Router
from indelible.server.state import Reads, ReadyState, Writes, answer_json
from indelible.service.turns import TurnService, TurnSettings, TurnStart

DONE: Final = b"data: [DONE]\n\n"
_REASONS: Final = {"length": "length", "content_filter": "content_filter"}


class CompletionProjection(TurnProjection):
    """See the module header. `with_usage` adds a chunk with the tokens."""

    def __init__(self, id: str, *, model: str, created_at: int, with_usage: bool = False) -> None:
        super().__init__()
        self._head: dict[str, Any] = {"id": id, "created": created_at, "model": model}
        self._with_usage = with_usage
        self._texts: list[str] = []
        self._reasonings: list[str] = []
        self._usage = RunningUsage()
        opening = {"object": "chat.completion.chunk", **self._head}
        tail = b',"usage":null}' if with_usage else b"}"
        self._delta_head = b"data: " + encode(opening)[:-1] + b',"choices":[{"index":0,"delta":{"content":'
        self._delta_tail = b'},"finish_reason":null,"logprobs":null}]' + tail + b"\n\n"

    def show(self) -> dict[str, Any]:
        """The whole completion."""
        calls = [_show_call(call) for call in self.awaited]
        text = "".join(self._texts)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text or (None if calls else ""),
            "refusal": None,
            "annotations": [],
        }
        if self._reasonings:
            message["reasoning_content"] = "".join(self._reasonings)
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason(), "logprobs": None}
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": self._usage.show_for_completion(),
        }

    def _finish_reason(self) -> str:
        return "tool_calls" if self.outcome == "waiting" else _REASONS.get(self.reason or "", "stop")

    # --- the turn ---

    def open(self) -> None:
        self._send({"role": "assistant", "content": ""})

    def add_message(self, message: dict[str, Any]) -> None:
        if message["role"] == "assistant":
            self._usage.add(message["usage"])

    def close(self) -> None:
        if self.outcome == "failed":
            error = self.error or {}
            message = error.get("message") or "The reply failed."
            problem = {"message": message, "type": "server_error", "param": None, "code": error.get("kind")}
            self.emit(b"data: %b\n\n" % encode({"error": problem}))
            return
        for index, call in enumerate(self.awaited):
            self._send({"tool_calls": [{"index": index, **_show_call(call)}]})
        self._send({}, self._finish_reason())
        if self._with_usage:
            usage: dict[str, Any] = {"choices": [], "usage": self._usage.show_for_completion()}
            self.emit(b"data: %b\n\n" % encode({"object": "chat.completion.chunk", **self._head, **usage}))
        self.emit(DONE)

    # --- parts ---

    def _read_text(self, part: TextDelta) -> None:
        self._texts.append(part.delta)
        self.emit(b"%b%b%b" % (self._delta_head, encode(part.delta), self._delta_tail))

    def _read_reasoning(self, part: ReasoningDelta) -> None:
        if part.delta:
            self._reasonings.append(part.delta)
            self._send({"reasoning_content": part.delta})

    def _send(self, delta: dict[str, Any], finish_reason: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        chunk = {"object": "chat.completion.chunk", **self._head, "choices": [choice]}
        if self._with_usage:
            chunk["usage"] = None
        self.emit(b"data: %b\n\n" % encode(chunk))

    parts: ClassVar[PartHandlers] = {TextDelta: _read_text, ReasoningDelta: _read_reasoning}


def _show_call(call: dict[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": call.get("arguments", "")}
    return {"id": call["id"], "type": "function", "function": function}


class CompletionFunction(requests.FunctionTool, kw_only=True):
    type: str = "function"


class CompletionTool(requests.WireBody, kw_only=True):
    """A tool of another type has no function; it is left out, as in Responses."""

    type: str = "function"
    function: CompletionFunction | None = None
    custom: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.type == "function" and self.function is None:
            raise ValueError("a tool of type function needs its function")

    def to_tool(self) -> requests.FunctionTool:
        named = self.function or CompletionFunction(name=str((self.custom or {}).get("name") or ""))
        return replace(named, type=self.type)


class CompletionRequest(requests.ToolRequest, kw_only=True):
    off: ClassVar = {
        "n": [1],
        "logprobs": [False],
        "top_logprobs": [0],
        "logit_bias": [{}],
        "modalities": [[], ["text"]],
        "audio": [],
        "functions": [[]],
        "function_call": ["none", "auto"],
        "web_search_options": [],
    }

    messages: list[dict[str, Any]]
    stream_options: dict[str, Any] | None = None
    tools: list[CompletionTool] | None = None
    response_format: dict[str, Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None

    @property
    def wants_usage(self) -> bool:
        return bool((self.stream_options or {}).get("include_usage"))

    def to_settings(self, system: str | None) -> TurnSettings:
        parameters = self.name_parameters(
            max_tokens=self.max_completion_tokens or self.max_tokens,
            seed=self.seed,
            stop=self.stop,
            effort=self.reasoning_effort,
            verbosity=self.verbosity,
            format=_read_format(self.response_format),
        )
        return TurnSettings(model=self.model, system=system, parameters=parameters, tools=self.to_specs())

    @property
    def declared(self) -> list[requests.FunctionTool]:
        return [tool.to_tool() for tool in self.tools or ()]


def _read_format(given: dict[str, Any] | None) -> dict[str, Any] | None:
    if given is None or given.get("type") == "text":
        return None
    schema = given.get("json_schema")
    return {"type": "json_schema", **schema} if isinstance(schema, dict) else given


def read_messages(given: Sequence[dict[str, Any]]) -> list[Message]:
    """The messages of the request."""
    return requests.join_neighbours([_read_message(message) for message in given])


def _read_message(given: dict[str, Any]) -> Message:
    match given.get("role"):
        case "system" | "developer":
            return Message(role="system", blocks=_read_parts(given.get("content")))
        case "user":
            return Message(role="user", blocks=_read_parts(given.get("content")))
        case "assistant":
            return Message(role="assistant", blocks=_read_reply(given))
        case "tool":
            call_id, name = str(given.get("tool_call_id")), str(given.get("name") or "")
            result = make_result(call_id, _read_parts(given.get("content")), name=name)
            return Message(role="tool", blocks=[result])
        case role:
            raise Invalid(f"messages: the role {str(role)[:40]!r} is not supported.")


def _read_reply(given: dict[str, Any]) -> list[Block]:
    """What the assistant said, in this form: thinking, text, calls. What has no place here is refused."""
    for name in ("audio", "function_call"):
        if given.get(name) is not None:
            raise Invalid(f"messages: {name!r} of an assistant's message is not supported.")
    thought, refusal = given.get("reasoning_content"), given.get("refusal")
    texts = [*_read_parts(given.get("content") or ""), *_read_parts(refusal or "")]
    return [
        *([Reasoning(thought)] if isinstance(thought, str) and thought else []),
        *(block for block in texts if getattr(block, "text", "x")),
        *map(_read_call, check_objects(given.get("tool_calls") or [], "tool_calls")),
    ]


def _read_call(call: dict[str, Any]) -> ToolCall:
    function = call.get("function")
    if not isinstance(function, dict):
        raise Invalid("messages: only calls of functions are supported.")
    return ToolCall(id=str(call.get("id")), name=str(function.get("name")), arguments=str(function.get("arguments")))


def _read_parts(content: Any) -> list[Block]:
    if not isinstance(content, list):
        return read_content(content)
    return [block for part in check_objects(content, "content") for block in _read_part(part)]


def _read_part(part: dict[str, Any]) -> list[Block]:
    kind, body = part.get("type"), part.get(str(part.get("type")))
    if kind == "image_url" and isinstance(body, dict) and isinstance(body.get("url"), str):
        return [requests.read_file(body["url"], media_type=None if body["url"].startswith("data:") else "image/png")]
    if kind == "file" and isinstance(body, dict):
        return read_content([{"type": "input_file", **body}])
    return read_content([part])


CHAT: Final = "x-indelible-chat"
router = Router(prefix=PREFIX)


@router.post("/chat/completions")
async def create_completion(
    request: Request,
    state: ReadyState,
    service: Reads,
    once: Writes,
    x_indelible_chat: Annotated[str | None, HEADER] = None,
) -> Response:
    """Create a chat completion: streamed, or when it is complete."""
    body = await requests.read_body(request, CompletionRequest)
    body.model = await find_model_name(service, body.model)
    if body.stream:
        state.feed_slots.check(await service.get_user_id())
    conversations = TurnService(once)
    messages = read_messages(body.messages)
    start = await conversations.start_turn(partial(_start, conversations, x_indelible_chat, messages, body))
    headers = {CHAT: start.chat_id, **body.left_out}
    is_archived = x_indelible_chat is None and not body.store
    projection = CompletionProjection(
        f"chatcmpl-{start.chat_id.rpartition('_')[2]}{start.seq}",
        model=body.model or state.settings.model,
        created_at=int(time.time()),
        with_usage=body.wants_usage,
    )

    async def stop() -> None:
        await service.interrupt(start.chat_id, Interruption(turn=start.turn_id))

    async def archive() -> None:
        if projection.outcome == "waiting":  # the results come with another request, which brings everything along
            await stop()
        await service.update_chat(start.chat_id, ChatChanges(archived=True))

    on_leave = stop if state.settings.completions_on_disconnect == "stop" else None
    on_end = archive if is_archived else None
    if body.stream:
        user_id = await service.get_user_id()
        return answer_stream(state, start, projection, user_id, headers=headers, on_leave=on_leave, on_end=on_end)
    await collect(request, state.app.feed, start, projection, on_leave=on_leave)
    if on_end is not None:
        await on_end()
    answer = answer_failure(projection.error) if projection.outcome == "failed" else answer_json(projection.show())
    answer.headers.update(headers)
    return answer


async def _start(
    conversations: TurnService, name: str | None, messages: list[Message], body: CompletionRequest
) -> TurnStart:
    """Go on with the chat of this name, or begin it. Without a name, begin one."""
    chat_id = new_id("chat") if name is None else await conversations.find_chat_id(name)
    system, given = requests.divide(messages)
    settings = body.to_settings(system)
    if name is None or not await conversations.exists(chat_id):
        return await conversations.create(chat_id, given, settings)
    if given.progress and (await conversations.get_status(chat_id)).status == "requires_action":
        awaited = {call.id for call in (await conversations.service.get_chat(chat_id)).action.calls}  # type: ignore[union-attr]
        results: list[ToolResult] = requests.continue_with(given.progress).results
        wanted = [result for result in results if result.call_id in awaited]
        return await conversations.submit(chat_id, wanted, settings=settings.to_patch(given_only=True))
    if given.progress:
        raise Invalid("No call of this chat waits for the output of a tool.")
    patch = settings.to_patch(given_only=True)
    return await conversations.send(chat_id, given.blocks, model=body.model, settings=patch)
