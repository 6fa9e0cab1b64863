"""Who may use which route: the table that tests/server/test_access_matrix.py holds against the routes that there are.

Who may use an operation is declared with it (api/operations.py). Every other route needs a line here, with the same
words or one of these:

    open     nobody needs a login, and there is nothing of anybody's in it
    link     the key in the path is the right to read
    metrics  admins, with any token
    named    as `own`, by a name that is everybody's own: others find nothing there, instead of a refusal
"""

from __future__ import annotations

from typing import Final, Literal

from indelible.api.operations import APIS, Access, operations

Rule = Access | Literal["open", "link", "metrics", "named"]

CHAT: Final = "/api/v1/chats/{chat_id}"
OPERATIONS: Final = {
    (each.operation.method, f"/api/v1{each.operation.path}"): each.operation for api in APIS for each in operations(api)
}
RULES: Final[dict[tuple[str, str], Rule]] = {
    **{place: operation.access for place, operation in OPERATIONS.items()},
    ("GET", "/healthz"): "open",
    ("GET", "/readyz"): "open",
    ("GET", "/login"): "open",
    ("GET", "/web/routes.json"): "open",
    ("GET", "/login/methods"): "open",
    ("GET", "/login/oidc"): "open",
    ("GET", "/login/oidc/callback"): "open",
    ("GET", "/shared/{key}"): "open",
    ("POST", "/api/v1/session"): "open",
    ("GET", "/"): "user",
    ("GET", "/docs"): "user",
    ("GET", "/openapi.json"): "user",
    ("GET", "/metrics"): "metrics",
    ("GET", "/api/v1/shared/{key}"): "link",
    ("GET", "/api/v1/shared/{key}/messages"): "link",
    ("GET", "/api/v1/shared/{key}/events"): "link",
    ("GET", "/api/v1/shared/{key}/files/{file_id}"): "link",
    ("GET", "/api/v1/shared/{key}/files/{file_id}/preview"): "link",
    ("GET", "/api/v1/shared/{key}/files/{file_id}/info"): "link",
    ("GET", "/api/v1/session"): "user",
    ("DELETE", "/api/v1/session"): "user",
    ("POST", "/api/v1/files"): "create",
    ("GET", "/api/v1/files/{file_id}"): "file",
    ("GET", "/api/v1/files/{file_id}/preview"): "file",
    ("GET", "/api/v1/events"): "user",
    ("POST", "/api/v1/chats/import"): "create",
    ("GET", f"{CHAT}/export"): "read",
    ("GET", f"{CHAT}/events"): "read",
    ("GET", f"{CHAT}/debug/runs/{{run_id}}"): "own",
    ("GET", "/v1/models"): "user",
    ("GET", "/v1/models/{model_id:path}"): "user",
    ("POST", "/v1/chat/completions"): "create",
    ("POST", "/v1/responses"): "create",
    ("POST", "/v1/responses/input_tokens"): "create",
    ("GET", "/v1/responses/{response_id}"): "own",
    ("POST", "/v1/responses/{response_id}/cancel"): "write",
    ("DELETE", "/v1/responses/{response_id}"): "write",
    ("GET", "/v1/responses/{response_id}/input_items"): "own",
    ("POST", "/v1/conversations"): "create",
    ("GET", "/v1/conversations/{conversation_id}"): "own",
    ("POST", "/v1/conversations/{conversation_id}"): "write",
    ("DELETE", "/v1/conversations/{conversation_id}"): "write",
    ("GET", "/v1/conversations/{conversation_id}/items"): "own",
    ("POST", "/v1/conversations/{conversation_id}/items"): "write",
    ("GET", "/v1/conversations/{conversation_id}/items/{item_id}"): "own",
    ("POST", "/ai-sdk/chat"): "write",
    ("GET", "/ai-sdk/chat/{name}/stream"): "named",
    ("GET", "/ai-sdk/chat/{name}/messages"): "named",
    ("POST", "/ai-sdk/chat/{name}/stop"): "write",
}
"""Every route of the server."""

DESTROYS: Final = {
    ("DELETE", CHAT),
    ("DELETE", "/v1/responses/{response_id}"),
    ("DELETE", "/v1/conversations/{conversation_id}"),
}
"""After these the chat is gone."""

BODIES: Final[dict[tuple[str, str], object]] = {
    **{place: operation.example for place, operation in OPERATIONS.items() if operation.example is not None},
    ("POST", "/api/v1/session"): {"token": "wrong"},
    ("POST", "/v1/chat/completions"): {"messages": [{"role": "user", "content": "Hi"}], "stream": True},
    ("POST", "/v1/responses"): {"input": "Hi", "background": True},
    ("POST", "/v1/responses/input_tokens"): {"input": "Hi"},
    ("POST", "/v1/conversations/{conversation_id}/items"): {"items": [{"role": "user", "content": "Hi"}]},
    ("POST", "/v1/conversations"): {},
    ("POST", "/v1/conversations/{conversation_id}"): {"metadata": {"topic": "rain"}},
    ("POST", "/ai-sdk/chat"): {
        "id": "{chat_id}",
        "messages": [{"id": "1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}],
    },
}
"""A body that the route takes."""
