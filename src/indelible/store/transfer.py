"""A chat as a file: the whole tree of messages, every branch, in one versioned format, and back into a new chat.

A file holds what the store holds of the conversation, the rows that only a model sees included, so that an imported
chat continues as the old one would have. It holds no ids of the store's: an import gives every message a new one and
keeps the tree. Usage, cost and times stay with their messages; an import adds nothing to the user's usage by day.
Attempts, journal, queue, drafts and debug records do not belong to the conversation and are not exported.

An import is one transaction: a file with any mistake in it changes nothing. A call at its end that has no result is
answered as in a fork, because its result will never arrive.

Must stay true (tests/store/test_transfer.py): exporting an imported chat gives the same file, but for the time of
the export; every rule of the tables is checked before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import MAXYEAR, MINYEAR, datetime
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from indelible import content
from indelible.api.shapes import Timings
from indelible.content.blocks import pop_note, recover_outcome
from indelible.content.messages import extract_title
from indelible.errors import ChatNotFound, Invalid, NotFound
from indelible.ids import new_id
from indelible.machine.states import Status
from indelible.store.commands.change import recover_notice
from indelible.store.commands.fork import insert_copies
from indelible.store.commands.history import use_files
from indelible.store.database.transaction import Transaction, to_time, to_utc
from indelible.store.outcome import Outcome
from indelible.store.payloads import ChatPatch
from indelible.store.queries.listing import load_summary

FORMAT: Final = "indelible.chat"
VERSION: Final = 2
"""Files of version 1 have neither outcomes of tools nor kinds of notices, and may have notes of compatible APIs."""
MAX_MESSAGES: Final = 100_000
_MOST: Final = 2**46
"""The most tokens, and billionths of a dollar, in one message. The sum over `MAX_MESSAGES` messages still fits."""
_CHAT: Final = """
    SELECT head_id, title, title_is_provisional, model, system_prompt, parameters, tools, labels, created_at
    FROM chats WHERE id = $1
    """
_MESSAGES: Final = """
    SELECT id, parent_id, role, blocks, visibility, partial, reason, continues_id, usage, cost_nanousd, provider, model,
        timings, created_at, error
    FROM messages WHERE chat_id = $1 ORDER BY created_at, id
    """
_USED: Final = "SELECT file_id FROM file_uses WHERE chat_id = $1"


class FileMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message of a file. `id` is a name within the file."""

    id: str
    parent_id: str | None = None
    role: content.Role
    blocks: list[content.Block]
    visibility: content.Visibility = "both"
    partial: bool = False
    reason: content.PartialReason | None = None
    continues: str | None = None
    provider: str | None = None
    model: str | None = None
    usage: content.Usage | None = None
    cost_nanousd: int | None = None
    timings: Timings | None = None
    error: dict[str, Any] | None = None
    created_at: datetime


class ChatFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A chat as a file. Messages come after those that they follow; `head` is the end of the active branch."""

    format: Literal["indelible.chat"]
    version: int
    exported_at: datetime
    title: str | None
    title_is_provisional: bool = False
    model: str | None
    system: str | None
    parameters: dict[str, Any] | None
    tools: list[content.ToolSpec] | None
    labels: list[str]
    created_at: datetime
    head: str | None
    messages: list[FileMessage]


class _Version(msgspec.Struct, frozen=True):
    format: str
    version: int


async def export_chat(transaction: Transaction, chat_id: str) -> ChatFile:
    chat = await transaction.one(_CHAT, chat_id)
    if chat is None:
        raise ChatNotFound
    rows = await transaction.all(_MESSAGES, chat_id)
    names = {row["id"]: f"m{number}" for number, row in enumerate(_put_parents_first(rows), 1)}
    ordered = sorted(rows, key=lambda row: int(names[row["id"]][1:]))
    used = {row["file_id"] for row in await transaction.all(_USED, chat_id)}
    return ChatFile(
        format="indelible.chat",
        version=VERSION,
        exported_at=await transaction.now(),
        title=chat["title"],
        title_is_provisional=bool(chat["title_is_provisional"]),
        model=chat["model"],
        system=_decode(chat["system_prompt"]),
        parameters=_decode(chat["parameters"]),
        tools=None if chat["tools"] is None else msgspec.json.decode(chat["tools"], type=list[content.ToolSpec]),
        labels=_decode(chat["labels"]) or [],
        created_at=to_time(chat["created_at"]),
        head=names.get(chat["head_id"]),
        messages=[_to_file(row, names, used) for row in ordered],
    )


def _put_parents_first(rows: list[Any]) -> list[Any]:
    """In the order of creation, but never before the parent: clocks of several machines may disagree."""
    children: dict[str | None, list[Any]] = {}
    known = {row["id"] for row in rows}
    waiting: list[Any] = []
    placed: set[str] = set()
    for row in rows:
        if row["parent_id"] is None or row["parent_id"] in placed:
            queue = [row]
            while queue:
                next_row = queue.pop(0)
                placed.add(next_row["id"])
                waiting.append(next_row)
                queue += children.pop(next_row["id"], [])
        else:
            assert row["parent_id"] in known
            children.setdefault(row["parent_id"], []).append(row)
    return waiting


def _to_file(row: Any, names: dict[str, str], used: set[str]) -> FileMessage:
    return FileMessage(
        id=names[row["id"]],
        parent_id=names.get(row["parent_id"]),
        role=row["role"],
        blocks=[_forget_gone(block, used) for block in content.decode_blocks(row["blocks"])],
        visibility=row["visibility"],
        partial=bool(row["partial"]),
        reason=row["reason"],
        continues=names.get(row["continues_id"]),
        provider=row["provider"],
        model=row["model"],
        usage=None if row["usage"] is None else msgspec.json.decode(row["usage"], type=content.Usage),
        cost_nanousd=row["cost_nanousd"],
        timings=None if row["timings"] is None else msgspec.json.decode(row["timings"], type=Timings),
        error=_decode(row["error"]),
        created_at=to_time(row["created_at"]),
    )


def _forget_gone(block: content.Block, used: set[str]) -> content.Block:
    """The block without the ids of files that are not there any more. They would keep the file from being imported."""
    if isinstance(block, content.ToolResult) and block.files:
        return replace(block, files=[_forget_id(file, used) for file in block.files])
    return _forget_id(block, used) if isinstance(block, content.File) else block


def _forget_id(file: content.File, used: set[str]) -> content.File:
    return file if file.file_id is None or file.file_id in used else replace(file, file_id=None)


def _decode(value: bytes | None) -> Any:
    return None if value is None else msgspec.json.decode(value)


def parse_file(written: bytes) -> ChatFile:
    """The chat of a file. Raises `Invalid` and says what is wrong with it."""
    try:
        known = msgspec.json.decode(written, type=_Version)
        if known.format != FORMAT:
            raise Invalid(f"Not an exported chat: its format is {known.format[:40]!r}, not {FORMAT!r}.")
        if not 1 <= known.version <= VERSION:
            raise Invalid(f"This file has version {known.version} of the format; this server reads up to {VERSION}.")
        file = msgspec.json.decode(written, type=ChatFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"Not an exported chat: {str(error)[:200]}") from None
    _check(file)
    return _recover(file) if file.version == 1 else file


def _recover(file: ChatFile) -> ChatFile:
    messages = [replace(message, blocks=_recover_blocks(message)) for message in file.messages]
    return replace(file, version=VERSION, messages=messages)


def _recover_blocks(message: FileMessage) -> list[content.Block]:
    blocks = [_forget_note(block) for block in message.blocks]
    if message.role == "notice":
        return recover_notice(blocks, has_failed=message.error is not None)
    return [recover_outcome(block) if isinstance(block, content.ToolResult) else block for block in blocks]


def _forget_note(block: content.Block) -> content.Block:
    """It is its owner's, and nobody who reads the chat may see it."""
    if block.metadata is None or pop_note(block.metadata) is None:
        return block
    return replace(block, metadata=block.metadata or None)


def _check(file: ChatFile) -> None:
    """What the tables would refuse, and what no chat has."""
    if len(file.messages) > MAX_MESSAGES:
        raise Invalid(f"messages: at most {MAX_MESSAGES:,}; the file has {len(file.messages):,}.")
    if (file.head is None) != (not file.messages):
        raise Invalid("head: names the last message of the active branch; only an empty chat has none.")
    seen: set[str] = set()
    for number, message in enumerate(file.messages):
        wrong = _find_mistake(message, seen)
        if wrong is not None:
            raise Invalid(f"messages[{number}]: {wrong}")
        seen.add(message.id)
    if file.head is not None and file.head not in seen:
        raise Invalid("head: no message of the file has this id.")
    _check_time(file.created_at, "created_at")


def _find_mistake(message: FileMessage, seen: set[str]) -> str | None:
    _check_time(message.created_at, "created_at")
    is_reply = message.role == "assistant"
    rules = {
        "its id is empty or used twice.": not message.id or message.id in seen,
        "parent_id: names no message before it.": message.parent_id is not None and message.parent_id not in seen,
        "continues: names no message before it.": message.continues is not None and message.continues not in seen,
        "a partial message needs a reason.": message.partial and message.reason is None,
        "only a reply is partial or has a reason.": not is_reply and (message.partial or message.reason is not None),
        "a notice is never for the model alone.": message.role == "notice" and message.visibility == "model",
        f"cost_nanousd: from 0 to {_MOST:,}.": message.cost_nanousd is not None and not _is_count(message.cost_nanousd),
        f"usage: from 0 to {_MOST:,}.": message.usage is not None
        and not all(map(_is_count, msgspec.structs.astuple(message.usage))),
    }
    return next((rule for rule, is_broken in rules.items() if is_broken), None)


def _is_count(number: int) -> bool:
    return 0 <= number <= _MOST


def _check_time(moment: datetime, name: str) -> None:
    """The driver of PostgreSQL stores the first and the last moment of the calendar as infinity."""
    try:
        has_place = MINYEAR < to_utc(moment).year < MAXYEAR
    except (ValueError, OverflowError):
        has_place = False
    if not has_place:
        raise Invalid(f"{name}: a time needs a zone and a year from {MINYEAR + 1} to {MAXYEAR - 1}.")


def make_patch(file: ChatFile) -> ChatPatch:
    """The metadata of the file as a change, so that the same limits apply to both."""
    return ChatPatch(
        title=file.title,
        labels=file.labels,
        model=file.model,
        system_prompt=file.system,
        parameters=file.parameters,
        tools=file.tools,
    )


def make_rows(file: ChatFile, chat_id: str) -> dict[str, dict[str, Any]]:
    """The rows of the messages in a new chat, by the messages' ids in the file."""
    names = {message.id: new_id("message") for message in file.messages}
    return {message.id: _to_row(message, names, chat_id) for message in file.messages}


async def import_chat(
    transaction: Transaction,
    file: ChatFile,
    rows: Mapping[str, dict[str, Any]],
    *,
    new_chat_id: str,
    owner_id: str,
    lease_timeout_s: float,
) -> Outcome:
    """Write the chat of a file, with these rows of its messages, as a new one of this user. It is idle."""
    now = await transaction.now()
    copies = list(rows.values())
    title = _find_title(file) if file.title is None else file.title
    chat = {
        "id": new_chat_id,
        "owner_id": owner_id,
        "status": Status.IDLE.value,
        "title": title,
        "title_is_provisional": title is not None and (file.title_is_provisional or file.title is None),
        "model": file.model,
        "system_prompt": None if file.system is None else content.encode(file.system),
        "parameters": None if file.parameters is None else content.encode(file.parameters),
        "tools": None if file.tools is None else content.encode(file.tools),
        "labels": content.encode(file.labels) if file.labels else None,
        "created_at": to_utc(file.created_at),
        "updated_at": now,
    }
    head_id = None if file.head is None else rows[file.head]["id"]
    seq = await insert_copies(transaction, chat, copies, head_id=head_id, now=now)
    await _use_files(transaction, new_chat_id, owner_id, file)
    summary = await load_summary(transaction, new_chat_id, lease_timeout_s=lease_timeout_s)
    return Outcome(chat_id=new_chat_id, effective=True, status=Status.IDLE, seq=seq, epoch=0, summary=summary)


def _find_title(file: ChatFile) -> str | None:
    """The first words of the first message (rule 10.15). None for a chat without words."""
    first = next(
        (message for message in file.messages if message.role == "user" and message.visibility == "both"), None
    )
    return None if first is None else extract_title(first.blocks)


async def _use_files(transaction: Transaction, chat_id: str, owner_id: str, file: ChatFile) -> None:
    blocks = [block for message in file.messages for block in message.blocks]
    try:
        await use_files(transaction, chat_id, owner_id, blocks)
    except NotFound:
        raise NotFound(
            "File not found: the chat names a file that you do not have here. Import its archive, which has its files "
            "(indelible chats export --files), or upload the file and name its new id."
        ) from None


def _to_row(message: FileMessage, names: dict[str, str], chat_id: str) -> dict[str, Any]:
    return {
        "chat_id": chat_id,
        "id": names[message.id],
        "parent_id": names.get(message.parent_id or ""),
        "role": message.role,
        "blocks": content.encode(message.blocks),
        "visibility": message.visibility,
        "partial": message.partial,
        "reason": message.reason,
        "continues_id": names.get(message.continues or ""),
        "usage": None if message.usage is None else content.encode(message.usage),
        "cost_nanousd": message.cost_nanousd,
        "provider": message.provider,
        "model": message.model,
        "timings": None if message.timings is None else content.encode(message.timings),
        "error": None if message.error is None else content.encode(message.error),
        "created_at": to_utc(message.created_at),
    }
