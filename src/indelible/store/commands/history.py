"""Effects on history: messages are added under the head, and the head moves.

Messages are immutable here. Every added message becomes the head and gets one event. turns.py turns the output of an
attempt into messages, through `put`.

A message names a file by its id, and the chat then uses the file. The transaction that accepts a message locks the rows
of its files, checks that they are ready and belong to the chat's owner, and records the use. So a file cannot be swept
or deleted between the upload and the message, and nobody can send a file of another user. When a chat is deleted, the
files that no other chat uses are marked `deleted` in the same transaction, and swept later (files/store.py). When a
queued message is removed or changed, the chat stops using its files, unless something else in it names them. The rows
are locked first and checked in a later statement (as in R1): on PostgreSQL a single statement would see the uses from
before the lock.

Must stay true (tests/files/test_file_uses.py): a message is accepted only with files of its owner; a file is there as
long as a chat uses it, and not longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from indelible.content import Block, File, Message, Text, ToolResult, decode_blocks, encode
from indelible.content.assemble import answer_unrun
from indelible.errors import LeaseLost, NotFound
from indelible.ids import is_id, new_id
from indelible.machine import effects
from indelible.store import payloads
from indelible.store.commands.change import ANSWERS, CONTINUE, ERRORS, NOTICES, ChatChange, Handlers, name_notice
from indelible.store.database.transaction import Row, Transaction, update
from indelible.store.queries.history import find_head_kind, load_ancestors
from indelible.store.queries.tree import find_file_ids, is_file_named
from indelible.store.usage import Totals

_INDEXED: Final = {"user": "last_read_seq", "assistant": "replied_seq"}
"""Messages that a search finds, and the mark in the chat's row that such a message moves to its event."""
_INSTRUCTED: Final = "SELECT id FROM messages WHERE chat_id = $1 AND id = ANY($2) AND blocks = $3"
_INSTRUCTION: Final[list[Block]] = [Text(CONTINUE)]
_REQUESTS: Final = "SELECT request FROM turns WHERE chat_id = $1 AND id = $2"
_BLOCKS: Final = "SELECT blocks FROM messages WHERE chat_id = $1 AND id = $2"


async def put(
    change: ChatChange,
    message: Message,
    *,
    attempt_id: str | None = None,
    columns: dict[str, Any] | None = None,
    totals: Totals | None = None,
    **detail: Any,
) -> Message:
    """Add a message under the head, and make it the head. `totals` are what it used and cost."""
    id_ = new_id("message")
    row = {
        "chat_id": change.chat_id,
        "id": id_,
        "parent_id": change.head_id,
        "role": message.role,
        "blocks": encode(message.blocks),
        "visibility": message.visibility,
        "partial": message.partial,
        "reason": message.reason,
        "continues_id": message.continues,
        "provider": message.provider,
        "model": message.model,
        "response_id": message.response_id,
        "turn_id": change.turn_id,
        "attempt_id": attempt_id,
        "created_at": change.now,
    }
    await change.add_message(row | (columns or {}), find_head_kind(message))
    if totals is not None:
        change.add_totals(totals)
    change.has_new_content = change.has_new_content or message.visibility != "model"
    change.emit("message", id_, **detail)
    if message.visibility != "model" and message.role in _INDEXED:
        # A user's message marks the chat as read up to here; a reply makes it unread. Search has to find both.
        change.changes |= {_INDEXED[message.role]: change.seq, "unindexed_at": change.now}
    stored = replace(message, id=id_)
    change.messages.append(stored)
    return stored


async def append_history(change: ChatChange, _effect: effects.AddHistory) -> None:
    await add_history(change, payloads.require(change.payload, payloads.AddedHistory))


async def add_history(change: ChatChange, new: payloads.NewChat | payloads.AddedHistory) -> None:
    """The conversation that a new chat begins with, or that is added to one.

    The files of all that the command brings are locked at once, in their order.
    """
    brought = [block for message in new.history for block in message.blocks]
    if isinstance(new, payloads.NewChat):
        brought += [*new.blocks, *(block for message in new.progress for block in message.blocks)]
    await _use_files(change, brought)
    for message in new.history:
        await put(change, replace(message, blocks=await _use_files(change, message.blocks)))
    if isinstance(new, payloads.AddedHistory) or not new.blocks:
        _suggest_title(change, new.suggested_title)


async def _use_files(change: ChatChange, blocks: list[Block]) -> list[Block]:
    return await use_files(change.transaction, change.chat_id, change.owner_id, blocks)


async def add_message(change: ChatChange, effect: effects.AddMessage) -> None:
    new = (
        change.payload
        if isinstance(change.payload, payloads.NewChat)
        else payloads.require(change.payload, payloads.UserInput)
    )
    model = new.model
    if model is None and effect.replaces_id is not None:
        model = await load_model(change, effect.replaces_id)
    await put_user(change, await _use_files(change, new.blocks), model)
    for message in new.progress if isinstance(new, payloads.NewChat) else ():
        await put(change, replace(message, blocks=await _use_files(change, message.blocks)))
    _suggest_title(change, new.suggested_title)


def _suggest_title(change: ChatChange, title: str | None) -> None:
    """The provisional title of a chat that has none, with its first message (rule 10.15)."""
    if change.snapshot.head_id is None and not change.has_title and title is not None:
        change.changes |= {"title": title, "title_is_provisional": True}
        change.emit("chat", title=title)


async def put_user(change: ChatChange, blocks: list[Block], model: str | None, **detail: Any) -> Message:
    """Add a message of the user. It keeps the model that is to answer it (rule 10.1)."""
    change.put_model = choose_model(change, model)
    message = Message(role="user", blocks=blocks, model=change.put_model or None)
    stored = await put(change, message, columns={"model": change.put_model}, **detail)
    change.put_id = stored.id
    return stored


def choose_model(change: ChatChange, model: str | None) -> str:
    """The model for a message that is accepted now: its own, else the chat's. Empty: the chat follows the setting."""
    return (change.model or "") if model is None else model


async def load_model(change: ChatChange, message_id: str) -> str | None:
    """The model that was stored with a user's message; None for a message from before models were stored."""
    stored = "SELECT model FROM messages WHERE chat_id = $1 AND id = $2"
    row = await change.transaction.one(stored, change.chat_id, message_id)
    return None if row is None else row["model"]


async def add_instruction(change: ChatChange, _effect: effects.AddInstruction) -> None:
    """Ask the model to continue the partial reply at the end of the path, if it was not asked to before."""
    partial_id = await change.find_partial_reply()
    if partial_id is not None and not await _is_instructed(change, partial_id):
        await put(change, Message(role="user", blocks=_INSTRUCTION, visibility="model"))


async def _is_instructed(change: ChatChange, partial_id: str) -> bool:
    """Whether the instruction follows this reply. A summary after it leaves it to the model word for word."""
    hidden: list[str] = []
    async for row in load_ancestors(change.transaction, change.chat_id, change.head_id):
        if row["id"] == partial_id:
            break
        if row["visibility"] == "model":
            hidden.append(row["id"])
    named = (change.chat_id, hidden, encode(_INSTRUCTION))
    return bool(hidden) and await change.transaction.one(_INSTRUCTED, *named) is not None


async def add_summary(change: ChatChange, _effect: effects.AddSummary) -> None:
    summary = _get_summary(change)
    if summary is not None and not await _is_head(change, summary):
        await put(change, replace(summary, visibility="model"))


def _get_summary(change: ChatChange) -> Message | None:
    return change.payload.summary if isinstance(change.payload, payloads.CompactionResult | payloads.Summary) else None


async def _is_head(change: ChatChange, summary: Message) -> bool:
    """Whether it was added before: a worker repeats the command if the response to its commit was lost."""
    head = await change.transaction.one(_BLOCKS, change.chat_id, change.head_id)
    return head is not None and bool(head["blocks"] == encode(summary.blocks))


async def add_tool_results(change: ChatChange, _effect: effects.AddToolResults) -> None:
    names = {call.id: call.name for call in change.open_calls}
    given = {result.call_id: result for result in payloads.require(change.payload, payloads.ToolResultsInput).results}
    await _use_files(change, [file for result in given.values() for file in result.files])  # locked in their order
    ordered = [
        ToolResult(
            call_id=call_id,
            name=name,
            output=given[call_id].output,
            is_error=given[call_id].is_error,
            metadata=given[call_id].metadata,
            files=await _use_files_of(change, given[call_id]),
        )
        for call_id, name in names.items()
    ]
    await put(change, Message(role="tool", blocks=list(ordered)))
    await _keep_request(change, payloads.require(change.payload, payloads.ToolResultsInput).request)


async def _keep_request(change: ChatChange, request: dict[str, Any] | None) -> None:
    """Keep the request that resumed the turn beside the one that began it (queries/turn_facts.py)."""
    if request is not None:
        row = await change.transaction.one(_REQUESTS, change.chat_id, change.turn_id)
        kept = [] if row["request"] is None else msgspec.json.decode(row["request"])
        changes = {"request": encode([*kept, (change.seq, request)])}
        await update(change.transaction, "turns", changes, chat_id=change.chat_id, id=change.turn_id)


async def _use_files_of(change: ChatChange, result: ToolResult) -> list[File]:
    """The files of a client's result: they are its owner's, as those of a message are."""
    used = await use_files(change.transaction, change.chat_id, change.owner_id, list(result.files))
    return [file for file in used if isinstance(file, File)]


async def answer_open_calls(change: ChatChange, effect: effects.AnswerOpenCalls) -> None:
    text = ANSWERS[effect.reason]
    answers: list[Block] = [answer_unrun(call, effect.reason, text) for call in change.open_calls]
    await put(change, Message(role="tool", blocks=answers))


async def add_notice(change: ChatChange, effect: effects.AddNotice) -> None:
    given = (
        change.payload.notice
        if isinstance(change.payload, payloads.CompactionResult | payloads.Failure | payloads.Summary)
        else None
    )
    summary = _get_summary(change) if effect.kind == "compacted" else None
    if summary is not None and isinstance(change.payload, payloads.Summary) and await _is_head(change, summary):
        return
    if effect.kind == "stopped":
        given = None  # during a stop the notice always says that the user stopped it
    text = given or NOTICES[effect.kind]
    error = encode(choose_error(change, effect.kind)) if effect.kind in ERRORS else None
    shown = [] if summary is None else summary.blocks  # people can read it
    notice = Message(role="notice", blocks=[name_notice(Text(text), effect.kind), *shown], visibility="people")
    await put(change, notice, columns={} if error is None else {"error": error})


def choose_error(change: ChatChange, kind: effects.NoticeKind) -> dict[str, Any]:
    """Why the turn failed: what its worker reports, else the default of this kind."""
    given = change.payload.error if isinstance(change.payload, payloads.Failure) else None
    return given or ERRORS[kind]


async def move_head(change: ChatChange, effect: effects.MoveHead) -> None:
    change.head_id, change.head_kind = effect.message_id, None
    change.emit("head", effect.message_id)


async def forget_responses(transaction: Transaction, chat_id: str, *, epoch: int) -> None:
    """Erase the provider's ids of a chat's replies: the provider may no longer know them (rule 4.4)."""
    held = await transaction.one("SELECT epoch FROM chats WHERE id = $1 FOR NO KEY UPDATE", chat_id)
    if held is None or held["epoch"] != epoch:
        raise LeaseLost(f"The lease of epoch {epoch} is over.")
    named = "UPDATE messages SET response_id = NULL WHERE chat_id = $1 AND response_id IS NOT NULL"
    await transaction.run(named, chat_id)


HANDLERS: Final[Handlers] = {
    effects.AddHistory: append_history,
    effects.AddInstruction: add_instruction,
    effects.AddMessage: add_message,
    effects.AddNotice: add_notice,
    effects.AddSummary: add_summary,
    effects.AddToolResults: add_tool_results,
    effects.AnswerOpenCalls: answer_open_calls,
    effects.MoveHead: move_head,
}
_LOCK: Final = """
SELECT id, name, media_type, size_bytes FROM files
WHERE id = ANY($1) AND owner_id = $2 AND state = 'ready' ORDER BY id FOR UPDATE
"""
_USE: Final = "INSERT INTO file_uses (chat_id, file_id) VALUES ($1, $2) ON CONFLICT (chat_id, file_id) DO NOTHING"
_KEEP: Final = "UPDATE files SET unused_since = NULL WHERE id = ANY($1) AND unused_since IS NOT NULL"
_LOCK_USED: Final = """
SELECT id FROM files WHERE id IN (SELECT file_id FROM file_uses WHERE chat_id = $1) ORDER BY id FOR UPDATE
"""
_LOCK_OWNED: Final = """
SELECT files.id FROM files JOIN chats ON chats.owner_id = files.owner_id
WHERE chats.id = $1 AND files.id = ANY($2) AND files.state = 'ready' ORDER BY files.id FOR UPDATE OF files
"""
_STOP_USING: Final = "DELETE FROM file_uses WHERE chat_id = $1 AND file_id = ANY($2)"
_MARK_UNUSED: Final = """
UPDATE files SET unused_since = $2 WHERE id = ANY($1) AND state = 'ready'
    AND NOT EXISTS (SELECT 1 FROM file_uses WHERE file_id = files.id)
"""
_RELEASE: Final = """
UPDATE files SET state = 'deleted', unused_since = $3 WHERE id = ANY($2)
    AND NOT EXISTS (SELECT 1 FROM file_uses WHERE file_id = files.id AND chat_id <> $1)
"""
_COPY: Final = """
INSERT INTO file_uses (chat_id, file_id) SELECT $2, file_id FROM file_uses WHERE chat_id = $1 AND file_id = ANY($3)
"""
_MARK: Final = b'"file_id"'


async def use_files(transaction: Transaction, chat_id: str, owner_id: str, blocks: list[Block]) -> list[Block]:
    """Record that a chat uses the files of these blocks; returns the blocks with what is stored about each file.

    Raises `NotFound` if one is not a file of this owner.
    """
    wanted = find_file_ids(blocks)
    if not wanted:
        return blocks
    known = {row["id"]: row for row in await transaction.all(_LOCK, list(filter(is_id, wanted)), owner_id)}
    for file_id in wanted:
        if file_id not in known:
            raise NotFound("File not found. It may have been deleted; upload it again.")
    await transaction.many(_USE, [(chat_id, file_id) for file_id in sorted(known)])
    await transaction.run(_KEEP, sorted(known))
    return [_describe(block, known) for block in blocks]


async def use_result_files(transaction: Transaction, chat_id: str, result: ToolResult) -> None:
    """Record that a chat uses the files of a tool's result. One that was deleted meanwhile is left out."""
    named = sorted(filter(is_id, find_file_ids([result])))
    known = [row["id"] for row in await transaction.all(_LOCK_OWNED, chat_id, named)]
    await transaction.many(_USE, [(chat_id, file_id) for file_id in known])
    await transaction.run(_KEEP, known)


async def stop_using(transaction: Transaction, chat_id: str, removed: bytes, now: datetime) -> None:
    """End the chat's use of the files that these removed blocks named, unless something else in the chat names them."""
    named = find_file_ids(decode_blocks(removed)) if _MARK in removed else set()
    if not named:
        return
    known = [row["id"] for row in await transaction.all(_LOCK_OWNED, chat_id, sorted(filter(is_id, named)))]
    left = [file_id for file_id in known if not await is_file_named(transaction, chat_id, file_id)]
    if left:
        await transaction.run(_STOP_USING, chat_id, left)
        await transaction.run(_MARK_UNUSED, left, now)


async def release_files(transaction: Transaction, chat_id: str, now: datetime) -> None:
    """Mark the files that only this chat uses as deleted. The chat's own uses go with the chat."""
    used = [row["id"] for row in await transaction.all(_LOCK_USED, chat_id)]
    if used:
        await transaction.run(_RELEASE, chat_id, used, now)


async def copy_uses(transaction: Transaction, chat_id: str, new_chat_id: str, copied: Iterable[bytes]) -> None:
    """The uses of a fork: the files in the messages that were copied."""
    blocks = [block for stored in copied if _MARK in stored for block in decode_blocks(stored)]
    named = find_file_ids(blocks)
    if named:
        await transaction.all(_LOCK_USED, chat_id)  # so that none of them is released meanwhile
        await transaction.run(_COPY, chat_id, new_chat_id, sorted(named))


def _describe(block: Block, known: dict[str, Row]) -> Block:
    if not isinstance(block, File) or block.file_id is None:
        return block
    row = known[block.file_id]
    return File(row["media_type"], name=row["name"], file_id=block.file_id, size=row["size_bytes"])
