"""Turns: stop one, or go on: retry, continue, compact, bring results."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from indelible.machine import commands
from indelible.machine.states import Status
from indelible.server.dependencies import (
    Context,
    OwnedChatId,
    RequestContext,
    answer_json,
    describe_outcome,
    write_cursor,
)
from indelible.server.schemas import Interruption, ModelChoice, ToolResultsInput
from indelible.store import payloads
from indelible.store.protocol import Outcome

router = APIRouter(tags=["turns"])


@router.post("/chats/{chat_id}/interrupt")
async def interrupt(chat_id: OwnedChatId, context: Context, body: Interruption | None = None) -> Response:
    """Stop the running reply and keep what it said. Stopping what does not run is no error, and does nothing.

    With `wait_s` the answer comes when the turn has ended, or when the time is over.
    """
    body = body or Interruption()
    done = await context.do_once(chat_id, commands.Interrupt(turn_id=body.turn), answer=_describe_stop)
    stop = msgspec.json.decode(done, type=_Stop)
    if stop.is_going_on and body.wait_s > 0:
        stop = await _wait_for_end(context, chat_id, stop, timeout_s=body.wait_s)
    now = await context.store.status(chat_id)
    told = {"stopped": stop.stopped, "message_id": stop.message_id}
    return answer_json({**told, "status": now.status, "turn": now.turn_id})


@router.post("/chats/{chat_id}/retry", status_code=202)
async def retry(chat_id: OwnedChatId, context: Context, body: ModelChoice | None = None) -> Response:
    """After an error: try again, perhaps with another model."""
    given = payloads.ModelChoice(model=body.model if body is not None else None)
    return await context.execute(chat_id, commands.Retry(), given, answer=describe_outcome, status=202)


@router.post("/chats/{chat_id}/continue", status_code=202)
async def continue_reply(chat_id: OwnedChatId, context: Context, body: ModelChoice | None = None) -> Response:
    """Go on with a reply that was cut."""
    given = payloads.ModelChoice(model=body.model if body is not None else None)
    return await context.execute(chat_id, commands.Continue(), given, answer=describe_outcome, status=202)


@router.post("/chats/{chat_id}/compact", status_code=202)
async def compact(chat_id: OwnedChatId, context: Context) -> Response:
    """Have the model's view of the conversation shortened to a summary."""
    return await context.execute(chat_id, commands.Compact(), answer=describe_outcome, status=202)


@router.post("/chats/{chat_id}/tool-results", status_code=202)
async def submit_tool_results(chat_id: OwnedChatId, body: ToolResultsInput, context: Context) -> Response:
    """Answer the calls that the reply waits for: all of them, exactly once."""
    results = [given.to_result() for given in body.results]
    command = commands.ToolResults(call_ids=tuple(result.call_id for result in results))
    return await context.execute(
        chat_id, command, payloads.ToolResultsInput(results=results), answer=describe_outcome, status=202
    )


class _Stop(msgspec.Struct):
    """What a stop came to so far. `message_id` is the reply that was cut, if it had said anything."""

    stopped: bool
    is_going_on: bool
    cursor: str
    message_id: str | None


def _describe_stop(outcome: Outcome) -> _Stop:
    replies = [message.id for message in outcome.messages if message.role == "assistant"]
    return _Stop(
        stopped=outcome.effective,
        is_going_on=outcome.effective and outcome.status is Status.INTERRUPTING,
        cursor=write_cursor(outcome),
        message_id=replies[-1] if replies else None,
    )


async def _wait_for_end(context: RequestContext, chat_id: str, stop: _Stop, *, timeout_s: float) -> _Stop:
    """Wait until the stopped turn has ended, or for so long; a server that is leaving does not wait either."""
    try:
        async with asyncio.timeout(timeout_s), context.feed.open(chat_id, stop.cursor) as events:
            async for event in events:
                data = event.data if event.kind in ("message", "status") else {}
                if event.kind == "message" and data["message"]["role"] == "assistant":
                    stop.message_id = data["message"]["id"]
                if data.get("ended") is not None or event.kind == "resync":
                    break
    except TimeoutError:
        pass
    return stop
