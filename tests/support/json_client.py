"""`JsonClient`: the routes of a conversation as dictionaries, for tests that look at the server's own JSON.

It sends with the transport of `indelible.Client`, so a test on a server that is killed gets the same retries and the
same feed. Whoever tests the client itself uses `indelible.Client`, whose results are types.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from indelible.api.events import FeedEvent
from indelible.client.http_transport import HttpTransport

Json = dict[str, Any]
GivenContent = str | list[Json]


class JsonClient(HttpTransport):
    # --- chats ---

    async def create_chat(self, message: GivenContent | None = None, **more: Any) -> Json:
        """`more`: model, system, title, parameters, tools."""
        return await self.write(dict, "POST", "/chats", {"message": message, **more})

    async def list_chats(self, *, search: str | None = None, **more: Any) -> Json:
        """`more`: label, pinned, archived, unread, limit, cursor."""
        return await self.read(dict, "/chats", {"q": search, **more})

    async def get_chat(self, chat_id: str) -> Json:
        return await self.read(dict, f"/chats/{chat_id}")

    async def update_chat(self, chat_id: str, **changes: Any) -> Json:
        return await self.write(dict, "PATCH", f"/chats/{chat_id}", changes)

    async def delete_chat(self, chat_id: str) -> None:
        await self.delete(f"/chats/{chat_id}")

    async def fork_chat(self, chat_id: str, message_id: str) -> Json:
        return await self._post(chat_id, "fork", message_id=message_id)

    # --- messages ---

    async def list_messages(self, chat_id: str, **place: Any) -> Json:
        """`place`: before, after, limit."""
        return await self.read(dict, f"/chats/{chat_id}/messages", place)

    async def read_all_messages(self, chat_id: str) -> list[Json]:
        """The whole active branch, oldest first."""
        found: list[Json] = []
        before: str | None = None
        while True:
            page = await self.list_messages(chat_id, before=before, limit=200)
            found[:0] = page["items"]
            before = page["next"]
            if before is None:
                return found

    async def send(self, chat_id: str, content: GivenContent, **more: Any) -> Json:
        """`more`: if_busy, model."""
        return await self._post(chat_id, "messages", **_write_content(content), **more)

    async def edit(self, chat_id: str, message_id: str, content: GivenContent) -> Json:
        return await self._post(chat_id, f"messages/{message_id}/edit", **_write_content(content))

    async def regenerate(self, chat_id: str, message_id: str) -> Json:
        return await self._post(chat_id, f"messages/{message_id}/regenerate")

    async def switch_branch(self, chat_id: str, message_id: str, *, exact: bool = False) -> Json:
        return await self._post(chat_id, "branch", message_id=message_id, exact=exact)

    async def get_tree(self, chat_id: str) -> Json:
        return await self.read(dict, f"/chats/{chat_id}/tree")

    # --- the queue ---

    async def list_queue(self, chat_id: str) -> list[Json]:
        items: list[Json] = (await self.read(dict, f"/chats/{chat_id}/queue"))["items"]
        return items

    async def reorder_queue(self, chat_id: str, ids: Sequence[str]) -> Json:
        return await self.write(dict, "PUT", f"/chats/{chat_id}/queue/order", {"ids": ids})

    async def edit_queued(self, chat_id: str, queued_id: str, content: GivenContent) -> Json:
        return await self.write(dict, "PATCH", f"/chats/{chat_id}/queue/{queued_id}", _write_content(content))

    async def delete_queued(self, chat_id: str, queued_id: str) -> None:
        await self.delete(f"/chats/{chat_id}/queue/{queued_id}")

    async def promote_queued(self, chat_id: str, queued_id: str) -> Json:
        return await self._post(chat_id, f"queue/{queued_id}/promote")

    # --- turns ---

    async def interrupt(self, chat_id: str, *, wait_s: float = 0, turn: str | None = None) -> Json:
        return await self._post(chat_id, "interrupt", wait_s=wait_s, turn=turn)

    async def retry(self, chat_id: str, *, model: str | None = None) -> Json:
        return await self._post(chat_id, "retry", model=model)

    async def continue_(self, chat_id: str) -> Json:
        return await self._post(chat_id, "continue")

    async def compact(self, chat_id: str) -> Json:
        return await self._post(chat_id, "compact")

    async def submit_tool_results(self, chat_id: str, results: Sequence[Json], *, turn: str | None = None) -> Json:
        return await self._post(chat_id, "tool-results", results=results, turn=turn)

    # --- attempts, runs and models ---

    async def list_attempts(self, chat_id: str, **place: Any) -> Json:
        """`place`: before, after, limit."""
        return await self.read(dict, f"/chats/{chat_id}/attempts", place)

    async def list_runs(self, chat_id: str, **place: Any) -> Json:
        """`place`: before, after, limit."""
        return await self.read(dict, f"/chats/{chat_id}/debug/runs", place)

    async def read_run(self, chat_id: str, run_id: str, *, bodies: bool = True) -> Json:
        return await self.read(dict, f"/chats/{chat_id}/debug/runs/{run_id}", {"bodies": bodies})

    async def list_models(self) -> list[Json]:
        items: list[Json] = (await self.read(dict, "/models"))["items"]
        return items

    # --- the feed ---

    async def stream_events(
        self, chat_id: str, *, after: str | None = None, on_reconnect: Callable[[], None] | None = None
    ) -> AsyncGenerator[FeedEvent, None]:
        """The events of a chat, without end: only deleting the chat ends them."""
        feed = self.follow(f"/chats/{chat_id}/events", after=after, on_reconnect=on_reconnect)
        async with aclosing(feed) as events:
            async for event in events:
                if event.kind != "end":
                    yield event

    async def _post(self, chat_id: str, action: str, **body: Any) -> Json:
        return await self.write(dict, "POST", f"/chats/{chat_id}/{action}", body)


def _write_content(content: GivenContent) -> Json:
    return {"text": content} if isinstance(content, str) else {"content": content}
