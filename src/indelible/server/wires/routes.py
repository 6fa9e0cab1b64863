"""Every route of the compatible wires, at the root. They are documented with their own wires, not in our OpenAPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fastapi import APIRouter, FastAPI

from indelible.server.wires.ai_sdk import chat
from indelible.server.wires.openai import conversations, models
from indelible.server.wires.openai.chat_completions import routes as chat_completions
from indelible.server.wires.openai.error_middleware import PREFIX
from indelible.server.wires.openai.failures import RefusedByName, answer_refusal_by_name
from indelible.server.wires.openai.responses import routes as responses

AI_SDK: Final = "/ai-sdk"
ROUTERS: Final[tuple[tuple[str, APIRouter], ...]] = (
    (PREFIX, responses.router),
    (PREFIX, conversations.router),
    (PREFIX, chat_completions.router),
    (PREFIX, models.router),
    (AI_SDK, chat.router),
)


def add_to(application: FastAPI, add_routes: Callable[..., Any]) -> None:
    for prefix, router in ROUTERS:
        add_routes(application, router, prefix=prefix)
    application.add_exception_handler(RefusedByName, answer_refusal_by_name)
