"""Who may use which route: the table that tests/server/test_access_matrix.py holds against the routes that there are.

A new route needs a line here. The kinds of rules:

    open     nobody needs a login, and there is nothing of anybody's in it
    link     the key in the path is the right to read
    user     everybody who is logged in, about their own things
    manage   as `user`, with a session or a token of scope `admin`
    admin    admins, with a session or a token of scope `admin`
    metrics  admins, with any token
    read     the owner of the chat, and users that it is shared with
    own      the owner of the chat alone, reading
    write    the owner of the chat alone, writing
    create   everybody who is logged in and may write
    named    as `own`, by a name that is everybody's own: others find nothing there, instead of a refusal
    file     the owner of the file, and users with whom a chat is shared that shows it, reading
    unfile   the owner of the file alone, writing
"""

from __future__ import annotations

from typing import Final, Literal

Rule = Literal[
    "open", "link", "user", "manage", "admin", "metrics", "read", "own", "write", "create", "named", "file", "unfile"
]

CHAT: Final = "/api/v1/chats/{chat_id}"
RULES: Final[dict[tuple[str, str], Rule]] = {
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
    ("GET", "/api/v1/models"): "user",
    ("GET", "/api/v1/tokens"): "manage",
    ("POST", "/api/v1/tokens"): "manage",
    ("DELETE", "/api/v1/tokens/{token_id}"): "manage",
    ("GET", "/api/v1/users"): "admin",
    ("POST", "/api/v1/users"): "admin",
    ("PATCH", "/api/v1/users/{name}"): "admin",
    ("GET", "/api/v1/files"): "user",
    ("POST", "/api/v1/files"): "create",
    ("GET", "/api/v1/files/{file_id}"): "file",
    ("GET", "/api/v1/files/{file_id}/preview"): "file",
    ("GET", "/api/v1/files/{file_id}/info"): "file",
    ("DELETE", "/api/v1/files/{file_id}"): "unfile",
    ("GET", "/api/v1/usage"): "user",
    ("GET", "/api/v1/events"): "user",
    ("POST", "/api/v1/chats/import"): "create",
    ("GET", f"{CHAT}/export"): "read",
    ("GET", f"{CHAT}/draft"): "own",
    ("PUT", f"{CHAT}/draft"): "write",
    ("POST", f"{CHAT}/read"): "write",
    ("GET", "/api/v1/chats"): "user",
    ("POST", "/api/v1/chats"): "create",
    ("GET", CHAT): "read",
    ("GET", f"{CHAT}/messages"): "read",
    ("GET", f"{CHAT}/tree"): "read",
    ("GET", f"{CHAT}/events"): "read",
    ("GET", f"{CHAT}/queue"): "own",
    ("GET", f"{CHAT}/attempts"): "own",
    ("GET", f"{CHAT}/debug/runs"): "own",
    ("GET", f"{CHAT}/debug/runs/{{run_id}}"): "own",
    ("GET", f"{CHAT}/shares"): "own",
    ("PATCH", CHAT): "write",
    ("DELETE", CHAT): "write",
    ("POST", f"{CHAT}/fork"): "write",
    ("POST", f"{CHAT}/messages"): "write",
    ("POST", f"{CHAT}/messages/{{message_id}}/edit"): "write",
    ("POST", f"{CHAT}/messages/{{message_id}}/regenerate"): "write",
    ("POST", f"{CHAT}/branch"): "write",
    ("PUT", f"{CHAT}/queue/order"): "write",
    ("PATCH", f"{CHAT}/queue/{{queued_id}}"): "write",
    ("DELETE", f"{CHAT}/queue/{{queued_id}}"): "write",
    ("POST", f"{CHAT}/queue/{{queued_id}}/promote"): "write",
    ("POST", f"{CHAT}/interrupt"): "write",
    ("POST", f"{CHAT}/retry"): "write",
    ("POST", f"{CHAT}/continue"): "write",
    ("POST", f"{CHAT}/compact"): "write",
    ("POST", f"{CHAT}/tool-results"): "write",
    ("POST", f"{CHAT}/shares"): "write",
    ("DELETE", f"{CHAT}/shares/{{share_id}}"): "write",
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
    ("POST", "/api/v1/session"): {"token": "wrong"},
    ("POST", "/api/v1/tokens"): {"label": "x", "scopes": ["read"]},
    ("POST", "/api/v1/users"): {"name": "{new_name}"},
    ("PATCH", "/api/v1/users/{name}"): {"role": "user"},
    ("POST", "/api/v1/chats"): {"title": "Rain"},
    ("PATCH", CHAT): {"title": "Mine"},
    ("POST", f"{CHAT}/fork"): {"message_id": "{message_id}"},
    ("POST", f"{CHAT}/messages"): {"text": "Hi"},
    ("POST", f"{CHAT}/messages/{{message_id}}/edit"): {"text": "Hi"},
    ("POST", f"{CHAT}/branch"): {"message_id": "{message_id}"},
    ("PUT", f"{CHAT}/queue/order"): {"ids": []},
    ("PATCH", f"{CHAT}/queue/{{queued_id}}"): {"text": "Hi"},
    ("POST", f"{CHAT}/tool-results"): {"results": []},
    ("PUT", f"{CHAT}/draft"): {"text": "Hi"},
    ("POST", f"{CHAT}/shares"): {"user": None},
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
