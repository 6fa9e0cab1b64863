"""What the two wire formats of OpenAI share: keys, refusals, the list of models, the place of a citation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from indelible.errors import ModelFailed
from indelible.testing.provider.refusals import Refusal, find_openai_type, refuse_as_openai, show_openai
from indelible.testing.provider.wires.dialect import CREATED_AT


class OpenAI:
    def find_key(self, headers: Mapping[str, str]) -> str | None:
        return headers.get("authorization", "").removeprefix("Bearer ") or None

    def refuse_key(self, key: str | None) -> Refusal:
        if key is None:
            return Refusal("You didn't provide an API key.", status=401)
        return Refusal(f"Incorrect API key provided: {key[:3]}****{key[-4:]}.", status=401, code="invalid_api_key")

    def refuse(self, status: int, message: str) -> Refusal:
        type_, code = find_openai_type(status)
        return Refusal(message, status=status, type=type_, code=code)

    def refuse_failure(self, failure: ModelFailed) -> Refusal:
        return refuse_as_openai(failure)

    def show(self, refusal: Refusal, request_id: str) -> dict[str, Any]:  # noqa: ARG002  (sent in a header)
        return show_openai(refusal)

    def list_models(self, names: Sequence[str]) -> dict[str, Any]:
        data = [{"id": name, "object": "model", "created": CREATED_AT, "owned_by": "simulated"} for name in names]
        return {"object": "list", "data": data}


def refuse_missing(param: str) -> Refusal:
    return Refusal(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)


def locate_quote(text: str, quote: str | None) -> dict[str, int]:
    """The place of a citation in the text so far: at its quote, or at the end."""
    start = text.rfind(quote) if quote else -1
    if quote is None or start < 0:
        return {"start_index": len(text), "end_index": len(text)}
    return {"start_index": start, "end_index": start + len(quote)}
