"""Every use case, declared once: what it does, its route, and who may use it.

`@route` attaches an `Operation` to a method and does nothing else. All the rest follows from the two: the route and its
OpenAPI (server/routes.py), the client's method (client/client.py), and what the tests walk over. The
arguments of a route are those of the method: a name in the path, `body`, and otherwise values of the query. A method
without `@route` is written by hand on both sides, because it is a stream or bytes, or asks several routes.

Two classes implement each protocol: one on the store and the feed of this process (service/), one on a server behind a
URL (client/client.py). `User`, `Chat` and `Reply` (app/) are written against these protocols alone, so they are the
same classes in both places.

Every method of a chat checks that the chat is this user's. A chat of another user is `NotFound`, exactly as one that
does not exist. A command that is not allowed in the chat's state raises `Refused` and changes nothing.

Must stay true (tests/app/test_same_script.py): one script gives the same results with either implementation.
(tests/test_public_types.py): a type checker finds an operation that one of them lacks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol, TypeVar

from msgspec import Meta

from indelible.api import inputs, shapes
from indelible.api.events import FeedEvent, MessageTree
from indelible.api.records import RunTree
from indelible.concurrency.readings import Readings

PREFIX: Final = "/api/v1"
"""The paths of all routes begin so."""
MAX_PAGE = 200
"""The maximum number of items on a page."""
PageLimit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
F = TypeVar("F", bound=Callable[..., Any])

Access = Literal["user", "manage", "admin", "read", "own", "write", "create", "file", "unfile"]
"""Who may use an operation.

    user    everybody who is logged in, about their own things
    manage  as `user`, with a session or a token of scope `admin`
    admin   admins, with a session or a token of scope `admin`
    read    the owner of the chat, and users that it is shared with
    own     the owner of the chat alone, reading
    write   the owner of the chat alone, writing
    create  everybody who is logged in and may write
    file    the owner of the file, and users with whom a chat is shared that shows it, reading
    unfile  the owner of the file alone, writing
"""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """The route of a use case."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    status: int
    access: Access
    starts_turn: bool = False
    """The response may continue with the reply, for a client that accepts `text/event-stream`."""
    example: Any = None
    """A body, with `{message_id}` and the like for names."""
    problems: tuple[int, ...] = ()
    """Statuses of problems beside those that every such route has."""


class UseCase(NamedTuple):
    """A method of a protocol, and its route."""

    function: Callable[..., Any]
    operation: Operation

    @property
    def name(self) -> str:
        return self.function.__name__


def route(
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"],
    path: str,
    *,
    status: int = 200,
    access: Access | None = None,
    **more: Any,
) -> Callable[[F], F]:
    """`access`: usually what the method and the path say, of a chat that is its owner's alone."""
    usual: tuple[Access, Access] = ("own", "write") if "{chat_id}" in path else ("user", "create")
    given = access or usual[method != "GET"]
    operation = Operation(method=method, path=path, status=status, access=given, **more)

    def attach(function: F) -> F:
        vars(function)["operation"] = operation
        return function

    return attach


def operations(api: type) -> list[UseCase]:
    """The use cases of a protocol that have a route."""
    return [UseCase(each, each.operation) for each in vars(api).values() if hasattr(each, "operation")]


class ChatApi(Protocol):
    """Chats and their conversations."""

    @property
    def readings(self) -> Readings:
        """The open loops over replies and feeds; whoever closes the service closes them first."""

    @property
    def files(self) -> FileApi:
        """The use cases of the user's files."""

    @property
    def lists(self) -> ListApi:
        """The use cases beside a conversation: read marks, drafts, usage, export and import, the live list."""

    # --- chats ---

    @route("POST", "/chats", status=201, starts_turn=True, example={"title": "Rain"})
    async def create_chat(self, body: inputs.CreateChat) -> shapes.CreatedChat:
        """Create a chat. With a message, the reply starts at once; the response may continue with it."""

    @route("GET", "/chats")
    async def list_chats(
        self,
        *,
        q: str | None = None,
        label: str | None = None,
        pinned: bool | None = None,
        archived: bool = False,
        unread: bool | None = None,
        shared: bool = False,
        limit: PageLimit = 50,
        cursor: str | None = None,
    ) -> shapes.ChatPage:
        """List the user's chats, pinned first, then most recently updated first.

        `q`: those whose title or messages have all of its words, newest match first. `shared`: the chats that others
        share with the user instead, most recently updated first.
        """

    async def check_chat(self, chat_id: str) -> None:
        """Raises `NotFound` if this user may not read such a chat."""

    async def get_status(self, chat_id: str) -> str:
        """The status of the chat."""

    @route("GET", "/chats/{chat_id}", access="read")
    async def get_chat(self, chat_id: str) -> shapes.ChatDetails:
        """Get the chat as it is now: its last messages, the running reply, the queue, the cursor to continue from."""

    @route("PATCH", "/chats/{chat_id}", example={"title": "Mine"})
    async def update_chat(self, chat_id: str, body: inputs.ChatChanges) -> shapes.UpdatedChat:
        """Update title, labels, pin, model or instructions; archive or unarchive. All of it is done, or nothing."""

    @route("DELETE", "/chats/{chat_id}", status=204)
    async def delete_chat(self, chat_id: str) -> None:
        """Delete the chat and all its data. This can't be undone."""

    @route("POST", "/chats/{chat_id}/fork", status=201, example={"message_id": "{message_id}"})
    async def fork_chat(self, chat_id: str, body: inputs.Fork) -> shapes.CreatedChat:
        """Create a chat that starts with a copy of this one, up to and including a message."""

    # --- messages ---

    @route("GET", "/chats/{chat_id}/messages", access="read")
    async def list_messages(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: PageLimit = 50
    ) -> shapes.MessagePage:
        """List the messages of the active branch, oldest first. Pass `next` as `before` to get earlier ones."""

    @route("POST", "/chats/{chat_id}/messages", status=202, starts_turn=True, example={"text": "Hi"})
    async def send(self, chat_id: str, body: inputs.NewMessage) -> shapes.Accepted:
        """Send a message. When this returns, it is on disk: in the conversation or in the queue."""

    @route("POST", "/chats/{chat_id}/messages/{message_id}/edit", status=202, starts_turn=True, example={"text": "Hi"})
    async def edit(self, chat_id: str, message_id: str, body: inputs.EditedMessage) -> shapes.Accepted:
        """Edit one of the user's messages. The old message and its replies are kept as a branch."""

    @route("POST", "/chats/{chat_id}/messages/{message_id}/regenerate", status=202, starts_turn=True)
    async def regenerate(
        self, chat_id: str, message_id: str, body: inputs.TurnRequest = inputs.SAME_MODEL
    ) -> shapes.Accepted:
        """Regenerate a reply, or answer a user message again; the old reply is kept as a branch."""

    @route("POST", "/chats/{chat_id}/branch", example={"message_id": "{message_id}"})
    async def switch_branch(self, chat_id: str, body: inputs.BranchTarget) -> shapes.Accepted:
        """Switch to the branch of this message, at its newest end; with `exact`, to the message itself."""

    @route("GET", "/chats/{chat_id}/tree", access="read")
    async def get_tree(self, chat_id: str) -> MessageTree:
        """Get every message of every branch in short, in the order of creation."""

    # --- turns ---

    @route("POST", "/chats/{chat_id}/interrupt")
    async def interrupt(self, chat_id: str, body: inputs.Interruption = inputs.STOP_NOW) -> shapes.InterruptResult:
        """Stop the running reply; what was written is saved. If nothing is running, nothing happens.

        With `wait_s` the response is sent when the turn has ended, or after that many seconds.
        """

    async def interrupt_and_wait(self, chat_id: str, *, turn: str | None = None) -> shapes.InterruptResult:
        """The same, and wait for the turn to end, however long it takes."""

    @route("POST", "/chats/{chat_id}/retry", status=202, starts_turn=True)
    async def retry(self, chat_id: str, body: inputs.TurnRequest = inputs.SAME_MODEL) -> shapes.Accepted:
        """Retry after an error, or a message that has no complete reply, optionally with another model."""

    @route("POST", "/chats/{chat_id}/continue", status=202, starts_turn=True)
    async def continue_(self, chat_id: str, body: inputs.TurnRequest = inputs.SAME_MODEL) -> shapes.Accepted:
        """Continue an interrupted reply."""

    @route("POST", "/chats/{chat_id}/compact", status=202)
    async def compact(self, chat_id: str) -> shapes.Accepted:
        """Replace older turns by a summary in the model's prompt."""

    @route("POST", "/chats/{chat_id}/tool-results", status=202, starts_turn=True, example={"results": []})
    async def submit_tool_results(self, chat_id: str, body: inputs.ToolResultsRequest) -> shapes.Accepted:
        """Submit the results of the tool calls that the reply is waiting for: all of them, exactly once."""

    # --- the queue ---

    @route("GET", "/chats/{chat_id}/queue")
    async def list_queue(self, chat_id: str) -> shapes.QueuePage:
        """List the queued messages, in order."""

    @route("PUT", "/chats/{chat_id}/queue/order", example={"ids": []})
    async def reorder_queue(self, chat_id: str, body: inputs.QueueOrder) -> shapes.Accepted:
        """Reorder the queue. Name every queued message exactly once."""

    @route("PATCH", "/chats/{chat_id}/queue/{queued_id}", example={"text": "Hi"})
    async def edit_queued(self, chat_id: str, queued_id: str, body: inputs.MessageContent) -> shapes.Accepted:
        """Edit a queued message."""

    @route("DELETE", "/chats/{chat_id}/queue/{queued_id}", status=204)
    async def delete_queued(self, chat_id: str, queued_id: str) -> None:
        """Remove a message from the queue."""

    @route("POST", "/chats/{chat_id}/queue/{queued_id}/promote", status=202)
    async def promote_queued(self, chat_id: str, queued_id: str) -> shapes.Accepted:
        """Send this queued message now; a running reply is stopped for it."""

    # --- events, attempts and runs ---

    def open_events(
        self, chat_id: str, *, after: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[FeedEvent]]:
        """The feed: a snapshot, then new events; or everything since the cursor `after`."""

    @route("GET", "/chats/{chat_id}/attempts")
    async def list_attempts(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: PageLimit = 50
    ) -> shapes.AttemptPage:
        """List every attempt at every step, newest first, failed ones included."""

    @route("GET", "/chats/{chat_id}/debug/runs")
    async def list_runs(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: PageLimit = 50
    ) -> shapes.RunPage:
        """List the recorded runs, newest first."""

    async def get_run(self, chat_id: str, run_id: str) -> RunTree:
        """One recorded run with its steps and exchanges; only the sizes of bodies."""

    @route("GET", "/models")
    async def list_models(self) -> shapes.ModelPage:
        """List the model names that a chat, a message or a retry may use."""


class ListApi(Protocol):
    """What there is beside a conversation."""

    @route("POST", "/chats/{chat_id}/read", status=204)
    async def mark_read(self, chat_id: str, body: inputs.ReadRequest = inputs.ALL_OF_IT) -> None:
        """Mark the chat as read, all of it or up to an event."""

    @route("GET", "/chats/{chat_id}/draft")
    async def get_draft(self, chat_id: str) -> shapes.Draft:
        """Get what you have typed in this chat and not sent yet. `new` instead of an id is the next chat."""

    @route("PUT", "/chats/{chat_id}/draft", status=204, example={"text": "Hi"})
    async def save_draft(self, chat_id: str, body: inputs.DraftRequest) -> None:
        """Replace the draft; an empty text deletes it."""

    async def export_chat(self, chat_id: str, format: shapes.ExportFormat = "json") -> bytes:
        """The chat as a file: all of it as JSON, which can be imported, or the active branch as Markdown."""

    async def import_chat(self, content: bytes) -> shapes.CreatedChat:
        """Create a chat from an exported one (JSON). A file with a mistake is `Invalid`, and changes nothing."""

    @route("GET", "/usage", problems=(404,))
    async def get_usage(
        self,
        *,
        since: date | None = None,
        until: date | None = None,
        user: str | None = None,
        by: Literal["user"] | None = None,
    ) -> shapes.UsagePage:
        """Get what your chats used, by day and model; the last 30 days by default.

        Admins may name a user, or list all of them with `by=user`.
        """

    def open_tab(
        self, chat_id: str | None = None, *, after: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[FeedEvent]]:
        """The live list of the user's chats and, with `chat_id`, the feed of that chat woven into it."""


class FileApi(Protocol):
    """Files. A file of another user is `NotFound`, unless a chat that shows it is shared."""

    async def upload(
        self, open_chunks: inputs.OpenChunks, *, name: str, media_type: str | None = None, size: int | None = None
    ) -> shapes.StoredFile:
        """Store a file. `media_type` is only a hint: the first bytes decide. `size` is announced, if it is known."""

    @route("GET", "/files")
    async def list_files(self, *, limit: PageLimit = 50, cursor: str | None = None) -> shapes.FilePage:
        """List your files, newest first."""

    @route("GET", "/files/{file_id}/info", access="file")
    async def get_file(self, file_id: str) -> shapes.StoredFile:
        """Get what is known about a file."""

    def open_file(
        self, file_id: str, *, start: int = 0, stop: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes of a file, or a range of them, in chunks."""

    async def load_preview(self, file_id: str) -> bytes:
        """A small WebP picture of an image. `NotFound` if it has none."""

    @route("DELETE", "/files/{file_id}", status=204, access="unfile", problems=(409,))
    async def delete_file(self, file_id: str) -> None:
        """Delete a file. Refused while a chat uses it: it is then deleted with the last of these chats."""


class AccountApi(Protocol):
    """Tokens, users, and who else may read a chat. A new secret is shown once, and stored with no idempotency key."""

    @route("GET", "/tokens", access="manage")
    async def list_tokens(self) -> shapes.TokenPage:
        """List your valid tokens, newest first."""

    @route("POST", "/tokens", status=201, access="manage", example={"label": "x", "scopes": ["read"]})
    async def create_token(self, body: inputs.NewToken) -> shapes.CreatedToken:
        """Create a token. `token` is in this response and nowhere else."""

    @route("DELETE", "/tokens/{token_id}", status=204, access="manage")
    async def revoke_token(self, token_id: str) -> None:
        """Revoke a token: its sessions end, and its open streams are cut."""

    @route("GET", "/users", access="admin")
    async def list_users(self) -> shapes.UserPage:
        """List all users, by name. For admins."""

    @route("POST", "/users", status=201, access="admin", example={"name": "{new_name}"})
    async def add_user(self, body: inputs.NewUser) -> shapes.UserInfo:
        """Create a user. For admins."""

    @route("PATCH", "/users/{name}", access="admin", example={"role": "user"})
    async def update_user(self, name: str, body: inputs.UserChanges) -> shapes.UserInfo:
        """Change a user's role, or disable or enable them. For admins."""

    @route("GET", "/chats/{chat_id}/shares")
    async def list_shares(self, chat_id: str) -> shapes.SharePage:
        """List who else may read the chat, oldest first."""

    @route("POST", "/chats/{chat_id}/shares", status=201, example={"user": None})
    async def share_chat(self, chat_id: str, body: inputs.NewShare) -> shapes.CreatedShare:
        """Let a user, or everybody who has a new link, read the chat. The link is in this response and nowhere else."""

    @route("DELETE", "/chats/{chat_id}/shares/{share_id}", status=204)
    async def delete_share(self, chat_id: str, share_id: str) -> None:
        """Stop sharing; open streams are cut."""


APIS = (ChatApi, ListApi, FileApi, AccountApi)
