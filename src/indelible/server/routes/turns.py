"""Turns: interrupt, retry, continue, compact, submit tool results."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from indelible.api.shapes import Accepted, InterruptResult
from indelible.server.dependencies import Writes, answer_json
from indelible.server.openapi.response_schemas import answers, may_stream
from indelible.server.schemas import Interruption, ToolResultsRequest, TurnRequest, model_of
from indelible.server.streaming.reply_stream import Streams

router = APIRouter(tags=["turns"])


@router.post("/chats/{chat_id}/interrupt", **answers(InterruptResult))
async def interrupt(chat_id: str, service: Writes, body: Interruption | None = None) -> Response:
    """Stop the running reply; what was written is saved. If nothing is running, nothing happens: it is not an error.

    With `wait_s` the response is sent when the turn has ended, or after that many seconds.
    """
    body = body or Interruption()
    return answer_json(await service.interrupt(chat_id, turn=body.turn, wait_s=body.wait_s))


@router.post("/chats/{chat_id}/retry", **may_stream(answers(Accepted, status=202)))
async def retry(chat_id: str, service: Writes, streams: Streams, body: TurnRequest | None = None) -> Response:
    """Retry after an error, or a message that has no complete reply, optionally with another model."""
    return streams.answer(chat_id, await service.retry(chat_id, model=model_of(body)), 202)


@router.post("/chats/{chat_id}/continue", **may_stream(answers(Accepted, status=202)))
async def continue_reply(chat_id: str, service: Writes, streams: Streams, body: TurnRequest | None = None) -> Response:
    """Continue an interrupted reply."""
    return streams.answer(chat_id, await service.continue_(chat_id, model=model_of(body)), 202)


@router.post("/chats/{chat_id}/compact", **answers(Accepted, status=202))
async def compact(chat_id: str, service: Writes) -> Response:
    """Replace older turns by a summary in the model's prompt."""
    return answer_json(await service.compact(chat_id), 202)


@router.post("/chats/{chat_id}/tool-results", **may_stream(answers(Accepted, status=202)))
async def submit_tool_results(chat_id: str, body: ToolResultsRequest, service: Writes, streams: Streams) -> Response:
    """Submit the results of the tool calls that the reply is waiting for: all of them, exactly once."""
    results = [given.to_result() for given in body.results]
    return streams.answer(chat_id, await service.submit_tool_results(chat_id, results, turn=body.turn), 202)
