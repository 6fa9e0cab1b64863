r"""The tables: how a chat is stored, and the rules that hold for every writer.

Other modules have more on the same `metadata`: accounts.py (logins), files.py (files) and lists.py
(search, labels, usage), which also adds the columns of `chats` that only lists need.

The rules of the machine (machine/) are repeated here as check constraints and partial unique indexes, as far as one row
or one index can express them: which values exist, that a chat has one open turn and one open attempt,
that only an idle chat is archived, that an outcome has its time. The lists of values come from the machine's own types,
so that the two cannot drift apart. Rules over two tables (an idle chat has no queue; a turn is open exactly
while the chat is busy) are up to the code that writes under the chat's lock.
Checks apply to every statement, not at the end of the transaction: write a chat's row once per command.

The chat leads the key of every table that belongs to a chat, so that a database can one day be split by chat. Foreign
keys include its id too, so a row can only name messages, turns, attempts and runs of its own chat. Idempotency keys and
files belong to a user first, and keep their own keys.
Everything that belongs to a chat is deleted with it (`ON DELETE CASCADE`), except the journal: a foreign key would
double the cost of its rows (R7), so code that deletes a chat deletes the journal of its attempts first. The columns of
each foreign key begin an index, so that a deletion reads no more than it deletes.

`Json` columns hold bytes of UTF-8 JSON, `Label` columns text that is shown but never quoted (types.py). Times come from
several clocks, so nothing here compares two of them. Comments need no migration: migrations/runner.py writes them.

Must stay true (tests/store/test_schema.py, tests/store/test_migrations.py): each constraint rejects what the
machine forbids, on both databases; the migrations build exactly this schema.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    false,
    text,
)

from indelible.api.records import RunKind, RunStatus
from indelible.api.shapes import DebugMode, UserRole
from indelible.content import PartialReason, Role, Visibility
from indelible.machine.effects import AttemptOutcome, TurnOutcome
from indelible.machine.states import IfBusy, Status, TurnKind
from indelible.store.database.tables.constraints import check_one_of, index_where
from indelible.store.database.tables.enumerations import BUSY_STATUSES
from indelible.store.database.tables.types import Id, Json, Label, UtcTime, Word

metadata: Final = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pk",
        "ix": "%(table_name)s_%(column_0_N_name)s",
        "fk": "%(table_name)s_%(column_0_N_name)s_fk",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)


def _check(name: str, rule: str) -> CheckConstraint:
    return CheckConstraint(rule, name=name)


def _delete_with(target: str) -> ForeignKey:
    return ForeignKey(target, ondelete="CASCADE")


# --- people --------------------------------------------------------------------------------

users: Final = Table(
    "users",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Label(), nullable=False, unique=True),
    Column("created_at", UtcTime(), nullable=False),
    Column("role", Word, nullable=False, server_default="user"),
    Column("disabled_at", UtcTime(), comment="Null: the user may log in."),
    Column(
        "likeness",
        Label(),
        index=True,
        unique=True,
        comment="What names that look the same share. Null: another user has it since before this was a rule.",
    ),
    check_one_of("role", UserRole),
    comment="The owners of chats. A server without login has one.",
)

tokens: Final = Table(
    "tokens",
    metadata,
    Column("id", Id, primary_key=True),
    Column("user_id", Id, _delete_with("users.id"), nullable=False, index=True),
    Column("hash", LargeBinary, nullable=False, unique=True, comment="SHA-256 of the token, which is shown once."),
    Column("name", Label(), nullable=False, comment="What its user calls it."),
    Column("created_at", UtcTime(), nullable=False),
    Column("last_used_at", UtcTime(), comment="To the minute; null: never used."),
    Column("expires_at", UtcTime(), comment="Null: never."),
    Column("revoked_at", UtcTime(), comment="Null: it is still valid."),
    Column("prefix", Label(), nullable=False, server_default="?", comment="Its first characters, to recognise it."),
    Column("scopes", Label(), nullable=False, server_default="read", comment="Words, separated by spaces."),
    Column("single_use", Boolean, nullable=False, server_default=false(), comment="Revoked by its first login."),
    comment="Tokens with which a program or a browser acts for a user.",
)

# --- chats and their messages -------------------------------------------------------------

chats: Final = Table(
    "chats",
    metadata,
    Column("id", Id, primary_key=True),
    Column("owner_id", Id, ForeignKey("users.id"), nullable=False, comment="The user; the worker is the holder."),
    Column("status", Word, nullable=False, comment="machine.states.Status. `pending` is computed and never stored."),
    Column("archived", Boolean, nullable=False, server_default=false()),
    Column("head_id", Id, comment="The end of the active path; null: it has no messages yet."),
    Column(
        "epoch",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="Raised by every acquire: fences writers.",
    ),
    Column("holder", Id, comment="The worker that works on it. It may be dead, and its row may be gone."),
    Column("seq", BigInteger, nullable=False, server_default=text("0"), comment="The number of its last event."),
    Column("error", Json, comment="Why its last turn failed; there exactly while the status is `error`."),
    Column("retry", Json, comment="The retry event that is being waited for, for readers that join meanwhile."),
    Column("deadline_at", UtcTime(), comment="Until when results from outside are awaited; null: for ever."),
    Column("model", Label(), comment="The model that answers; null: the setting."),
    Column("system_prompt", Json, comment="A JSON string."),
    Column("parameters", Json, comment="Options for the model: temperature and the like."),
    Column("title", Label()),
    Column("labels", Json, comment="A JSON list of strings."),
    Column("pinned", Boolean, nullable=False, server_default=false()),
    Column(
        "last_read_seq", BigInteger, nullable=False, server_default=text("0"), comment="How far the owner has read."
    ),
    Column("created_at", UtcTime(), nullable=False),
    Column("updated_at", UtcTime(), nullable=False, comment="When something was last said; the order of lists."),
    Column("debug", Word, comment="Which exchanges with providers are recorded; null: as the setting says."),
    Column(
        "runnable_at", UtcTime(), comment="Since when it waits for a worker, or when its worker last began something."
    ),
    Column(
        "title_is_provisional",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="The title is the beginning of its first message; a generated one may replace it.",
    ),
    Column("tools", Json, comment="A JSON list of the tools that its client runs."),
    Column("usage", Json, comment="content.Usage of all its messages; null: nothing is known."),
    Column("cost_nanousd", BigInteger, comment="What its messages cost, as far as that is known; null: not at all."),
    ForeignKeyConstraint(["id", "head_id"], ["messages.chat_id", "messages.id"], use_alter=True),
    check_one_of("status", Status),
    check_one_of("debug", DebugMode),
    _check("archived_is_idle", "NOT archived OR status IN ('idle', 'error')"),
    _check("holder_is_busy", f"holder IS NULL OR status IN {BUSY_STATUSES}"),
    _check("error_is_told", "(status = 'error') = (error IS NOT NULL)"),
    _check("retry_is_busy", f"retry IS NULL OR status IN {BUSY_STATUSES}"),
    _check("epoch", "epoch >= 0"),
    _check("seq", "0 <= last_read_seq AND last_read_seq <= seq"),
    Index("chats_of_owner", "owner_id", "archived", "pinned", "updated_at", "id"),
    index_where("chats_runnable", "status", "runnable_at", where=f"status IN {BUSY_STATUSES}"),
    index_where("chats_deadline", "deadline_at", where="status = 'requires_action' AND deadline_at IS NOT NULL"),
    comment="A conversation: what it is doing, who works on it, how far it has come.",
)

turns: Final = Table(
    "turns",
    metadata,
    Column("chat_id", Id, _delete_with("chats.id"), nullable=False),
    Column("id", Id, nullable=False),
    Column("number", Integer, nullable=False, comment="Counts from 1 in the chat."),
    Column("kind", Word, nullable=False, comment="machine.states.TurnKind."),
    Column("message_id", Id, comment="The user's message that it answers; null: a compaction of a chat without one."),
    Column("outcome", Word, comment="machine.effects.TurnOutcome; null: it is open."),
    Column("started_at", UtcTime(), nullable=False),
    Column("ended_at", UtcTime()),
    Column("takeovers", Integer, nullable=False, server_default=text("0"), comment="Crashes that it outlived."),
    Column(
        "stalled_takeovers",
        Integer,
        nullable=False,
        server_default=text("0"),
        comment="How many of those in a row produced neither a new part nor a settled tool.",
    ),
    Column("model", Label(), comment="The model that answers; null: the chat's; empty: the setting."),
    Column(
        "journal_rows_at_takeover",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="How many journal rows its attempts had when it was last taken over.",
    ),
    Column("request", Json, comment="What a compatible API repeats: [seq, request] of each that began or resumed it."),
    PrimaryKeyConstraint("chat_id", "id"),
    UniqueConstraint("chat_id", "number"),
    ForeignKeyConstraint(["chat_id", "message_id"], ["messages.chat_id", "messages.id"], use_alter=True),
    check_one_of("kind", TurnKind),
    check_one_of("outcome", TurnOutcome),
    _check("one_end", "(outcome IS NULL) = (ended_at IS NULL)"),
    _check("number", "number >= 1"),
    _check("takeovers", "stalled_takeovers >= 0 AND stalled_takeovers <= takeovers"),
    index_where("turns_one_open", "chat_id", where="ended_at IS NULL", unique=True),
    index_where("turns_of_message", "chat_id", "message_id", where="message_id IS NOT NULL"),
    comment="All the work that answers one message.",
)

messages: Final = Table(
    "messages",
    metadata,
    Column("chat_id", Id, _delete_with("chats.id"), nullable=False),
    Column("id", Id, nullable=False),
    Column("parent_id", Id, comment="What it follows; null: the beginning. Messages with one parent are branches."),
    Column("role", Word, nullable=False, comment="content.Role. A `notice` is for people and never reaches a model."),
    Column("blocks", Json, nullable=False, comment="A JSON list of content.Block."),
    Column(
        "visibility",
        Word,
        nullable=False,
        server_default=text("'both'"),
        comment="content.Visibility: who gets to see it.",
    ),
    Column("partial", Boolean, nullable=False, server_default=false(), comment="A visible piece of a cut reply."),
    Column("reason", Word, comment="content.PartialReason: what ended it; also where nothing visible is missing."),
    Column("continues_id", Id, comment="The partial message that this one carries on."),
    Column("usage", Json, comment="content.Usage of the step."),
    Column("cost_nanousd", BigInteger, comment="What the step cost, in billionths of a dollar; null: not known."),
    Column("provider", Label()),
    Column("model", Label(), comment="Who wrote it; of a question, who answers it (empty: the setting)."),
    Column("response_id", Label(), comment="The provider's name for a complete reply that it stored."),
    Column("turn_id", Id, comment="The turn that wrote it; null: nobody's work."),
    Column("attempt_id", Id, comment="The attempt that wrote it, and ended with it."),
    Column("timings", Json, comment="Of the step: start, first part, end."),
    Column("created_at", UtcTime(), nullable=False),
    Column("error", Json, comment="Of the notice of a failed turn: why. Its branch has this error."),
    PrimaryKeyConstraint("chat_id", "id"),
    ForeignKeyConstraint(["chat_id", "parent_id"], ["messages.chat_id", "messages.id"]),
    ForeignKeyConstraint(["chat_id", "continues_id"], ["messages.chat_id", "messages.id"]),
    ForeignKeyConstraint(["chat_id", "turn_id"], ["turns.chat_id", "turns.id"]),
    ForeignKeyConstraint(["chat_id", "attempt_id"], ["attempts.chat_id", "attempts.id"]),
    check_one_of("role", Role),
    check_one_of("visibility", Visibility),
    check_one_of("reason", PartialReason),
    _check("not_its_own_parent", "parent_id <> id"),
    _check("partial_has_a_reason", "NOT partial OR reason IS NOT NULL"),
    _check("only_replies_are_cut", "role = 'assistant' OR reason IS NULL"),
    _check("only_replies_are_stored", "response_id IS NULL OR (role = 'assistant' AND NOT partial)"),
    _check("notice_is_for_people", "role <> 'notice' OR visibility <> 'model'"),
    _check("cost_nanousd", "cost_nanousd >= 0"),
    Index("messages_children", "parent_id", "chat_id"),  # chat second: see migrations/versions/v0005_children.py
    index_where("messages_continuing", "chat_id", "continues_id", where="continues_id IS NOT NULL"),
    index_where("messages_of_turn", "chat_id", "turn_id", where="turn_id IS NOT NULL"),
    index_where("messages_of_attempt", "chat_id", "attempt_id", where="attempt_id IS NOT NULL"),
    comment="The messages: a tree, in which the chat's head selects a path.",
)

queue: Final = Table(
    "queue",
    metadata,
    Column("chat_id", Id, _delete_with("chats.id"), nullable=False),
    Column("id", Id, nullable=False),
    Column(
        "position",
        BigInteger,
        nullable=False,
        comment="The order; gaps mean nothing. To rearrange, give rows new positions behind the last.",
    ),
    Column("if_busy", Word, nullable=False, comment="machine.states.IfBusy: where it went in."),
    Column("content", Json, nullable=False, comment="A JSON list of content.Block."),
    Column("model", Label(), comment="The model when it was sent; null: the chat's; empty: the setting."),
    Column("author_id", Id, ForeignKey("users.id"), nullable=False),
    Column("created_at", UtcTime(), nullable=False),
    PrimaryKeyConstraint("chat_id", "id"),
    UniqueConstraint("chat_id", "position"),
    check_one_of("if_busy", IfBusy),
    comment="Messages that wait for their turn.",
)

# --- the two logs --------------------------------------------------------------------------

events: Final = Table(
    "events",
    metadata,
    Column("chat_id", Id, _delete_with("chats.id"), nullable=False),
    Column("seq", BigInteger, nullable=False, autoincrement=False, comment="Counts from 1, without gaps."),
    Column("kind", Word, nullable=False),
    Column("ref", Id, comment="The row that it is about: a message, an attempt, a turn."),
    Column("payload", Json, comment="What readers get of it besides."),
    Column("at", UtcTime(), nullable=False),
    PrimaryKeyConstraint("chat_id", "seq"),
    _check("seq", "seq >= 1"),
    comment="The first log: one row per fact, written in the transaction that made it one.",
)

attempts: Final = Table(
    "attempts",
    metadata,
    Column("chat_id", Id, _delete_with("chats.id"), nullable=False),
    Column("id", Id, nullable=False),
    Column("turn_id", Id, nullable=False),
    Column("step", Integer, nullable=False, comment="Counts from 1 in the turn, and goes on over takeovers."),
    Column("number", Integer, nullable=False, comment="Counts from 1 in the step."),
    Column("epoch", BigInteger, nullable=False, comment="The lease under which it may be written to."),
    Column("provider", Label()),
    Column("model", Label()),
    Column("outcome", Word, comment="machine.effects.AttemptOutcome; null: it is open."),
    Column("last_n", BigInteger, comment="Its last journal row, 0 for none; known when it has ended."),
    Column("error", Json, comment="Why it failed, if it did."),
    Column("usage", Json, comment="content.Usage, also where no message came of it."),
    Column("started_at", UtcTime(), nullable=False),
    Column("ended_at", UtcTime()),
    Column("packed", Boolean, nullable=False, server_default=false(), comment="Its journal is one row, n = 0."),
    PrimaryKeyConstraint("chat_id", "id"),
    UniqueConstraint("turn_id", "chat_id", "step", "number"),  # chat second, as in tool_runs
    ForeignKeyConstraint(["chat_id", "turn_id"], ["turns.chat_id", "turns.id"], ondelete="CASCADE"),
    check_one_of("outcome", AttemptOutcome),
    _check("one_end", "(outcome IS NULL) = (ended_at IS NULL)"),
    _check("last_n_is_told", "(outcome IS NULL) = (last_n IS NULL)"),
    _check("numbering", "step >= 1 AND number >= 1"),
    _check("epoch", "epoch >= 0"),
    _check("last_n", "last_n >= 0"),
    _check("packed_has_ended", "NOT packed OR ended_at IS NOT NULL"),
    index_where("attempts_one_open", "chat_id", where="ended_at IS NULL", unique=True),
    index_where("attempts_to_pack", "ended_at", where="NOT packed AND ended_at IS NOT NULL"),
    comment="One try at one step of a turn.",
)

journal: Final = Table(
    "journal",
    metadata,
    Column("chat_id", Id, nullable=False, comment="The attempt's. No foreign key: it would double the cost of a row."),
    Column("attempt_id", Id, nullable=False),
    Column(
        "n", BigInteger, nullable=False, autoincrement=False, comment="Counts from 1, without gaps. 0: all, packed."
    ),
    Column("parts", LargeBinary, nullable=False, comment="A JSON list of content.Part; where n = 0, compressed."),
    Column("at", UtcTime(), nullable=False),
    PrimaryKeyConstraint("chat_id", "attempt_id", "n"),
    _check("n", "n >= 0"),
    comment="The second log: the parts of a running attempt, one row per flush.",
)

# --- work ----------------------------------------------------------------------------------

tool_runs: Final = Table(
    "tool_runs",
    metadata,
    Column("chat_id", Id, _delete_with("chats.id"), nullable=False),
    Column("turn_id", Id, nullable=False),
    Column("step", Integer, nullable=False, autoincrement=False),
    Column("call_index", Integer, nullable=False, autoincrement=False, comment="Which call of the step, from 0."),
    Column("attempt_id", Id, nullable=False),
    Column("call_id", Label(), nullable=False, comment="The provider's id, which may repeat."),
    Column("name", Label(), nullable=False),
    Column("arguments", Json, nullable=False, comment="As they came: UTF-8, and meant to be JSON."),
    Column(
        "state", Word, nullable=False, comment="started: nobody knows yet what it did. settled: its result is here."
    ),
    Column("idempotency_key", Id, nullable=False, unique=True, comment="The same when the call is run again."),
    Column("result", Json, comment="content.ToolResult."),
    Column("started_at", UtcTime(), nullable=False),
    Column("settled_at", UtcTime()),
    PrimaryKeyConstraint("chat_id", "turn_id", "step", "call_index"),
    ForeignKeyConstraint(["chat_id", "turn_id"], ["turns.chat_id", "turns.id"], ondelete="CASCADE"),
    ForeignKeyConstraint(["chat_id", "attempt_id"], ["attempts.chat_id", "attempts.id"], ondelete="CASCADE"),
    check_one_of("state", ("started", "settled")),
    _check("settled_has_a_result", "(state = 'settled') = (result IS NOT NULL)"),
    _check("settled_has_a_time", "(state = 'settled') = (settled_at IS NOT NULL)"),
    _check("numbering", "step >= 1 AND call_index >= 0"),
    Index("tool_runs_of_attempt", "attempt_id", "chat_id"),  # chat second: see migrations/versions/v0008_chat_leads.py
    comment="The ledger: every local call, written before it starts and when it settles.",
)

workers: Final = Table(
    "workers",
    metadata,
    Column("id", Id, primary_key=True, comment="New at every start of a process."),
    Column("started_at", UtcTime(), nullable=False),
    Column("heartbeat_at", UtcTime(), nullable=False, comment="By the database's clock, which all workers share."),
    comment="Processes that work on chats.",
)

# --- keys and drafts (files.py has files) ------------------------------------------------------

idempotency_keys: Final = Table(
    "idempotency_keys",
    metadata,
    Column("user_id", Id, _delete_with("users.id"), nullable=False),
    Column("key", Label(), nullable=False, comment="As the client chose it."),
    Column("route", Label(), nullable=False, comment="Method and path. Another one with this key is refused."),
    Column("body_hash", LargeBinary, nullable=False, comment="SHA-256 of the request's body; another one is refused."),
    Column("status", Integer, nullable=False, comment="The HTTP status that was answered."),
    Column("body", Json, nullable=False, comment="The body that was answered."),
    Column("expires_at", UtcTime(), nullable=False),
    Column("chat_id", Id, _delete_with("chats.id"), index=True, comment="The chat that the response is about."),
    PrimaryKeyConstraint("user_id", "key"),
    Index("idempotency_keys_expiry", "expires_at"),
    comment="Completed writes: a repeated request gets the same response.",
)

drafts: Final = Table(
    "drafts",
    metadata,
    Column("chat_id", Id, _delete_with("chats.id"), nullable=False),
    Column("user_id", Id, _delete_with("users.id"), nullable=False, index=True),
    Column("content", Json, nullable=False, comment="A JSON list of content.Block."),
    Column("updated_at", UtcTime(), nullable=False),
    PrimaryKeyConstraint("chat_id", "user_id"),
    comment="What a user has typed in a chat and not sent yet.",
)

# --- debug records -----------------------------------------------------

debug_runs: Final = Table(
    "debug_runs",
    metadata,
    Column("chat_id", Id, _delete_with("chats.id"), nullable=False),
    Column("id", Id, nullable=False),
    Column("turn_id", Id, comment="The turn that it is of; null: a title's. No foreign key, for it is only a name."),
    Column("kind", Word, nullable=False, comment="RunKind: what the model was asked for."),
    Column("status", Word, nullable=False, comment="RunStatus."),
    Column("worker_id", Id, nullable=False, comment="Who asked. If it is dead, so is the run."),
    Column("model", Label()),
    Column("error", Label()),
    Column("started_at", UtcTime(), nullable=False, index=True),
    Column("ended_at", UtcTime()),
    PrimaryKeyConstraint("chat_id", "id"),
    check_one_of("kind", RunKind),
    check_one_of("status", RunStatus),
    _check("one_end", "(status = 'in_progress') = (ended_at IS NULL)"),
    index_where("debug_runs_open", "chat_id", "id", where="ended_at IS NULL"),
    comment="Debug records: one piece of work with a model.",
)

debug_steps: Final = Table(
    "debug_steps",
    metadata,
    Column("chat_id", Id, nullable=False),
    Column("run_id", Id, nullable=False),
    Column("step", Integer, nullable=False, autoincrement=False),
    Column("status", Word, nullable=False, comment="RunStatus."),
    Column("error", Label()),
    Column("started_at", UtcTime(), nullable=False),
    Column("ended_at", UtcTime()),
    PrimaryKeyConstraint("chat_id", "run_id", "step"),
    ForeignKeyConstraint(["chat_id", "run_id"], ["debug_runs.chat_id", "debug_runs.id"], ondelete="CASCADE"),
    check_one_of("status", RunStatus),
    _check("one_end", "(status = 'in_progress') = (ended_at IS NULL)"),
    comment="Debug records: one model call of a run, with its retries.",
)

debug_attempts: Final = Table(
    "debug_attempts",
    metadata,
    Column("chat_id", Id, nullable=False),
    Column("run_id", Id, nullable=False),
    Column("step", Integer, nullable=False, autoincrement=False),
    Column("number", Integer, nullable=False, autoincrement=False, comment="Counts from 1 in the step."),
    Column("status", Word, nullable=False, comment="completed or failed: whether all of it was exchanged."),
    Column("status_code", Integer, comment="HTTP's; null: there was no answer."),
    Column("method", Label(), nullable=False),
    Column("url", Label(), nullable=False),
    Column("request_headers", Json, nullable=False, comment="Redacted, as all of this is."),
    Column("request_body", LargeBinary, nullable=False),
    Column("response_headers", Json),
    Column("response_body", LargeBinary, nullable=False),
    Column("error", Label()),
    Column("started_at", UtcTime(), nullable=False),
    Column("head_at", UtcTime(), comment="When the answer began."),
    Column("ended_at", UtcTime(), nullable=False),
    PrimaryKeyConstraint("chat_id", "run_id", "step", "number"),
    ForeignKeyConstraint(
        ["chat_id", "run_id", "step"],
        ["debug_steps.chat_id", "debug_steps.run_id", "debug_steps.step"],
        ondelete="CASCADE",
    ),
    check_one_of("status", ("completed", "failed")),
    _check("numbering", "step >= 1 AND number >= 1"),
    comment="Debug records: one HTTP exchange.",
)
