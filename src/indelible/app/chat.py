"""One chat, in this process: every method is one command of the machine, durable or refused.

Reading is separate from working: leaving a loop over `send` stops nothing, the reply goes on and is kept, and
`chat.events(after=cursor)` resumes reading it from anywhere.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from indelible.app.reply import Reply
from indelible.content import Block, File, Message, Text, ToolResult
from indelible.errors import Invalid
from indelible.ids import new_id
from indelible.machine import commands
from indelible.machine.commands import SendCommand
from indelible.machine.events import FeedEvent
from indelible.store.payloads import C, ChatPatch, ModelChoice, Payload, QueuedInput, ToolResultsInput, UserInput
from indelible.store.protocol import Outcome
from indelible.store.queries.chat_view import QueuedMessage

if TYPE_CHECKING:
    from indelible.app.app import App

Content = str | Sequence[Block]
IfBusy = Literal["queue", "interrupt", "steer"]

_SENDS: dict[str, Callable[[], SendCommand]] = {
    "queue": commands.Send,
    "interrupt": commands.SendInterrupt,
    "steer": commands.SendSteer,
}


@dataclass(frozen=True)
class InterruptResult:
    """What became of a wish to stop. `stopped` is False if nothing was running any more."""

    stopped: bool
    status: str
    turn: str | None


class Chat:
    """One chat. Its methods raise `Refused` (and change nothing) where the chat's state forbids them."""

    def __init__(self, app: App, chat_id: str) -> None:
        self.id = chat_id
        self._app = app

    # --- saying ---

    def send(self, content: Content, *, if_busy: IfBusy = "queue", model: str | None = None) -> Reply:
        """Say something; what comes back is the reply, to be read part by part or awaited as a whole.

        if_busy: "queue" waits for its turn, "interrupt" stops a running reply first, "steer" joins it.
        """
        return self._reply(_make_send(if_busy), UserInput(blocks=to_blocks(content), model=model))

    async def post(self, content: Content, *, if_busy: IfBusy = "queue", model: str | None = None) -> Outcome:
        """Say something and do not wait: when this returns, the message is safe."""
        return await self._do(_make_send(if_busy), UserInput(blocks=to_blocks(content), model=model))

    def edit(self, message_id: str, content: Content, *, model: str | None = None) -> Reply:
        """Say something else instead. The old message and its replies stay, on a branch of their own."""
        return self._reply(commands.Edit(message_id=message_id), UserInput(blocks=to_blocks(content), model=model))

    def regenerate(self, message_id: str, *, model: str | None = None) -> Reply:
        """Have a reply written anew, beside the old one."""
        return self._reply(commands.Regenerate(message_id=message_id), ModelChoice(model=model))

    def retry(self, *, model: str | None = None) -> Reply:
        """After an error: try again, perhaps with another model. What was said is continued."""
        return self._reply(commands.Retry(), ModelChoice(model=model))

    def continue_(self, *, model: str | None = None) -> Reply:
        """Continue a reply that was cut."""
        return self._reply(commands.Continue(), ModelChoice(model=model))

    def submit_tool_results(self, results: Sequence[ToolResult]) -> Reply:
        """Answer the calls that the reply stopped for, all of them."""
        call_ids = tuple(result.call_id for result in results)
        return self._reply(commands.ToolResults(call_ids=call_ids), ToolResultsInput(results=list(results)))

    def compact(self) -> Reply:
        """Have the model's view of the conversation shortened to a summary. It says nothing."""
        return self._reply(commands.Compact())

    async def interrupt(self, *, turn: str | None = None, wait: bool = True) -> InterruptResult:
        """Stop the running reply and keep what it said. With `turn`, only if that one is still running."""
        outcome = await self._do(commands.Interrupt(turn_id=turn))
        if not outcome.effective or not wait or outcome.status != "interrupting":
            return InterruptResult(stopped=outcome.effective, status=str(outcome.status), turn=outcome.turn_id)
        stopping = Reply(self._app.feed, self.id, outcome)
        await stopping.wait()
        now = await self._app.store.status(self.id)
        return InterruptResult(stopped=True, status=now.status, turn=now.turn_id)

    # --- reading ---

    async def messages(self, *, before: str | None = None, limit: int | None = None) -> list[Message]:
        """The conversation as people see it, oldest first: all of it, or the last `limit` above `before`."""
        found: list[Message] = []
        while True:
            path = await self._app.store.path(self.id, before=before, limit=limit)
            found = [*(message for message in path if message.visibility != "model"), *found]
            if limit is None or len(path) < limit or len(found) >= limit:
                return found if limit is None else found[-limit:]
            before = path[0].id

    async def events(self, *, after: str | None = None) -> AsyncGenerator[FeedEvent, None]:
        """The feed: a snapshot and then what happens, or what has happened since the cursor `after`."""
        async with self._app.feed.open(self.id, after=after) as events:
            async for event in events:
                yield event

    async def status(self) -> str:
        return (await self._app.store.status(self.id)).status

    # --- the queue ---

    async def queue(self) -> list[QueuedMessage]:
        """What waits for its turn, in order."""
        return (await self._app.store.view(self.id, limit=1)).queue

    async def edit_queued(self, queued_id: str, content: Content) -> None:
        await self._do(commands.EditQueued(queued_id=queued_id), QueuedInput(blocks=to_blocks(content)))

    async def delete_queued(self, queued_id: str) -> None:
        await self._do(commands.DeleteQueued(queued_id=queued_id))

    async def reorder_queue(self, queued_ids: Sequence[str]) -> None:
        await self._do(commands.ReorderQueue(queued_ids=tuple(queued_ids)))

    async def promote_queued(self, queued_id: str) -> None:
        """Have this one answered now: a running reply is stopped for it."""
        await self._do(commands.PromoteQueued(queued_id=queued_id))

    # --- the chat itself ---

    async def switch(self, message_id: str) -> None:
        """Go to the branch that ends with this message."""
        await self._do(commands.SwitchBranch(message_id=message_id))

    async def fork(self, message_id: str) -> Chat:
        """A new chat that begins with a copy of this one up to the message."""
        new_chat_id = new_id("chat")
        await self._app.store.fork(self.id, message_id, new_chat_id=new_chat_id, owner_id=self._app.owner_id)
        return Chat(self._app, new_chat_id)

    async def describe(self, description: ChatPatch) -> None:
        """Change title, labels, model and the like."""
        await self._do(commands.UpdateChat(), description)

    async def archive(self, *, archived: bool = True) -> None:
        await self._do(commands.Archive() if archived else commands.Unarchive())

    async def delete(self) -> None:
        """Remove the chat and everything that hangs on it. There is no way back."""
        await self._do(commands.Delete())

    def _reply(self, command: C, payload: Payload[C] | None = None) -> Reply:
        return Reply(self._app.feed, self.id, lambda: self._do(command, payload))

    async def _do(self, command: C, payload: Payload[C] | None = None) -> Outcome:
        return await self._app.store.execute(self.id, command, payload)


def _make_send(if_busy: str) -> SendCommand:
    if if_busy not in _SENDS:
        raise Invalid(f"A message is sent if_busy: {', '.join(_SENDS)}; not {if_busy!r}.")
    return _SENDS[if_busy]()


def to_blocks(content: Content) -> list[Block]:
    """What a user says, as blocks: a string is one text. Raises `Invalid` if it is nothing."""
    blocks: list[Block] = [Text(content)] if isinstance(content, str) else list(content)
    for block in blocks:
        if not isinstance(block, Text | File):
            raise Invalid(f"A message of the user holds text and files, not {type(block).__name__}.")
    if not any(isinstance(block, File) or block.text.strip() for block in blocks):
        raise Invalid("There is nothing in this message.")
    return blocks
