"""Turns: stop one, or go on: retry, continue, compact, submit tool results."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from indelible.server.dependencies import Writes, answer_json
from indelible.server.openapi import answers
from indelible.server.schemas import Interruption, ModelChoice, ToolResultsInput, model_of
from indelible.service.results import Accepted, InterruptResult

router = APIRouter(tags=["turns"])


@router.post("/chats/{chat_id}/interrupt", **answers(InterruptResult))
async def interrupt(chat_id: str, service: Writes, body: Interruption | None = None) -> Response:
    """Stop the running reply and keep what it said. If nothing is running, nothing happens, and that is no error.

    With `wait_s` the answer comes when the turn has ended, or when the time is over.
    """
    body = body or Interruption()
    return answer_json(await service.interrupt(chat_id, turn=body.turn, wait_s=body.wait_s))


@router.post("/chats/{chat_id}/retry", **answers(Accepted, status=202))
async def retry(chat_id: str, service: Writes, body: ModelChoice | None = None) -> Response:
    """After an error: try again, perhaps with another model."""
    return answer_json(await service.retry(chat_id, model=model_of(body)), 202)


@router.post("/chats/{chat_id}/continue", **answers(Accepted, status=202))
async def continue_reply(chat_id: str, service: Writes, body: ModelChoice | None = None) -> Response:
    """Go on with a reply that was cut."""
    return answer_json(await service.continue_(chat_id, model=model_of(body)), 202)


@router.post("/chats/{chat_id}/compact", **answers(Accepted, status=202))
async def compact(chat_id: str, service: Writes) -> Response:
    """Shorten the model's view of the conversation to a summary."""
    return answer_json(await service.compact(chat_id), 202)


@router.post("/chats/{chat_id}/tool-results", **answers(Accepted, status=202))
async def submit_tool_results(chat_id: str, body: ToolResultsInput, service: Writes) -> Response:
    """Answer the calls that the reply waits for: all of them, exactly once."""
    results = [given.to_result() for given in body.results]
    return answer_json(await service.submit_tool_results(chat_id, results), 202)
