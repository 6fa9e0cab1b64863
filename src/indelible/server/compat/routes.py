"""Every route of the compatible APIs, at the root. They are documented with their own APIs, not in our OpenAPI."""

from __future__ import annotations

from typing import Final

from indelible.server.compat import ai_sdk, chat_completions, conversations, openai_models, responses
from indelible.server.router import Router

router: Final = Router()
for each in (responses, conversations, chat_completions, openai_models, ai_sdk):
    router.include(each.router)
