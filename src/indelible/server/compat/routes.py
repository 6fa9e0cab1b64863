"""Every route of the compatible wires, at the root. They are documented with their own wires, not in our OpenAPI."""

from __future__ import annotations

from typing import Final

from indelible.server.compat import conversations as conversations
from indelible.server.compat import openai_models as models
from indelible.server.router import Router
from indelible.server.wires.ai_sdk import chat
from indelible.server.wires.openai.chat_completions import routes as chat_completions
from indelible.server.wires.openai.responses import routes as responses

router: Final = Router()
for each in (responses, conversations, chat_completions, models, chat):
    router.include(each.router)
