"""Which command is allowed in which state, and where it leads: the table of docs/states.md as data.

`TABLE[command][state]` is the set of states in which the chat may be afterwards. A state that is not listed refuses
the command; an empty set means that the command is allowed and changes nothing (stopping an idle chat). Where there
is more than one target, the queue decides, or whether a live worker holds the chat, or the number of takeovers, or
whether a failed turn ended on the branch.

A command may still be refused for the ids in it, or have nothing to do; decide.py checks that.

`FACTS` declares what a command must know beyond the chat's row and its open work. The store loads exactly
that under the lock (store/commands/facts.py), so a stop does not read the conversation.

Must stay true (tests/machine/test_transitions.py, tests/machine/test_facts.py): every decision leads to a state named
here, and every state named here can be reached; docs/states.md shows exactly this table; `decide`
reads no undeclared fact, and every declared fact is read in some case.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from indelible.machine.states import BUSY, RESTING, State, Status

Targets = frozenset[State]


class CommandName(StrEnum):
    # from users
    CREATE = "create"
    SEND = "send"
    SEND_INTERRUPT = "send_interrupt"
    SEND_STEER = "send_steer"
    ADD_MESSAGES = "add_messages"
    EDIT = "edit"
    REGENERATE = "regenerate"
    SWITCH_BRANCH = "switch_branch"
    CONTINUE = "continue"
    DELETE = "delete"
    DELETE_QUEUED = "delete_queued"
    REORDER_QUEUE = "reorder_queue"
    EDIT_QUEUED = "edit_queued"
    PROMOTE_QUEUED = "promote_queued"
    INTERRUPT = "interrupt"
    TOOL_RESULTS = "tool_results"
    RETRY = "retry"
    COMPACT = "compact"
    ARCHIVE = "archive"
    UNARCHIVE = "unarchive"
    UPDATE_CHAT = "update_chat"
    # from workers
    ACQUIRE = "acquire"
    RELEASE = "release"
    START_ATTEMPT = "start_attempt"
    ANNOUNCE_RETRY = "announce_retry"
    KEEP_SUMMARY = "keep_summary"
    COMMIT_STEP = "commit_step"
    FINISH_TURN = "finish_turn"
    AWAIT_ACTION = "await_action"
    ACTION_EXPIRED = "action_expired"
    FAIL = "fail"
    FINISH_INTERRUPTION = "finish_interruption"


def _to(*targets: State) -> Targets:
    return frozenset(targets)


_NOTHING: Final = _to()
_NEXT: Final = _to(State.RUNNING, State.RUNNING_QUEUED)
"""The front of the queue has become the running turn; there may be more behind it."""

_ENDED_WHILE_INTERRUPTING: Final = {State.INTERRUPTING: _to(State.IDLE), State.INTERRUPTING_QUEUED: _NEXT}
_FORK: Final = {
    State.IDLE: _to(State.RUNNING),
    State.RUNNING: _to(State.RUNNING),
    State.RUNNING_QUEUED: _to(State.RUNNING_QUEUED),
    State.INTERRUPTING: _to(State.RUNNING),
    State.INTERRUPTING_QUEUED: _to(State.RUNNING_QUEUED),
    State.REQUIRES_ACTION: _to(State.RUNNING),
    State.REQUIRES_ACTION_QUEUED: _to(State.RUNNING_QUEUED),
    State.ERROR: _to(State.RUNNING),
    State.ERROR_QUEUED: _to(State.RUNNING_QUEUED),
}
_SEND: Final = {
    State.IDLE: _to(State.RUNNING),
    State.RUNNING: _to(State.RUNNING_QUEUED),
    State.RUNNING_QUEUED: _to(State.RUNNING_QUEUED),
    State.INTERRUPTING: _to(State.INTERRUPTING_QUEUED),
    State.INTERRUPTING_QUEUED: _to(State.INTERRUPTING_QUEUED),
    State.REQUIRES_ACTION: _to(State.REQUIRES_ACTION_QUEUED),
    State.REQUIRES_ACTION_QUEUED: _to(State.REQUIRES_ACTION_QUEUED),
    State.ERROR: _to(State.RUNNING),
    State.ERROR_QUEUED: _to(State.RUNNING_QUEUED),
}
_AGAIN: Final = {
    State.IDLE: _to(State.RUNNING),
    State.ERROR: _to(State.RUNNING),
    State.ERROR_QUEUED: _to(State.RUNNING_QUEUED),
}
_QUEUE_STAYS: Final = {
    State.RUNNING_QUEUED: _to(State.RUNNING_QUEUED),
    State.INTERRUPTING_QUEUED: _to(State.INTERRUPTING_QUEUED),
    State.REQUIRES_ACTION_QUEUED: _to(State.REQUIRES_ACTION_QUEUED),
    State.ERROR_QUEUED: _to(State.ERROR_QUEUED),
    State.ERROR_QUEUED_ARCHIVED: _to(State.ERROR_QUEUED_ARCHIVED),
}
_RUNS_ON: Final = {State.RUNNING: _to(State.RUNNING), State.RUNNING_QUEUED: _to(State.RUNNING_QUEUED)}
_HELD: Final = {
    State.RUNNING: _to(State.RUNNING),
    State.RUNNING_QUEUED: _to(State.RUNNING_QUEUED),
    State.INTERRUPTING: _to(State.INTERRUPTING),
    State.INTERRUPTING_QUEUED: _to(State.INTERRUPTING_QUEUED),
}

TABLE: Final[Mapping[CommandName, Mapping[State, Targets]]] = {
    CommandName.CREATE: {State.NONE: _to(State.IDLE, State.RUNNING)},
    CommandName.SEND: _SEND,
    CommandName.SEND_STEER: _SEND,
    CommandName.SEND_INTERRUPT: {
        **_SEND,
        State.RUNNING: _to(State.INTERRUPTING_QUEUED),
        State.RUNNING_QUEUED: _to(State.INTERRUPTING_QUEUED),
        State.REQUIRES_ACTION: _to(State.RUNNING),
        State.REQUIRES_ACTION_QUEUED: _to(State.RUNNING_QUEUED),
    },
    CommandName.ADD_MESSAGES: {State.IDLE: _to(State.IDLE), State.ERROR: _to(State.IDLE)},
    CommandName.EDIT: _FORK,
    CommandName.REGENERATE: _FORK,
    CommandName.SWITCH_BRANCH: {
        State.IDLE: _to(State.IDLE, State.ERROR),
        State.ERROR: _to(State.IDLE, State.ERROR),
        State.ERROR_QUEUED: _to(State.ERROR_QUEUED),
    },
    CommandName.CONTINUE: _AGAIN,
    CommandName.DELETE: {state: _to(State.NONE) for state in State if state is not State.NONE},
    CommandName.DELETE_QUEUED: {
        State.RUNNING_QUEUED: _to(State.RUNNING, State.RUNNING_QUEUED),
        State.INTERRUPTING_QUEUED: _to(State.INTERRUPTING, State.INTERRUPTING_QUEUED),
        State.REQUIRES_ACTION_QUEUED: _to(State.REQUIRES_ACTION, State.REQUIRES_ACTION_QUEUED),
        State.ERROR_QUEUED: _to(State.ERROR, State.ERROR_QUEUED),
        State.ERROR_QUEUED_ARCHIVED: _to(State.ERROR_ARCHIVED, State.ERROR_QUEUED_ARCHIVED),
    },
    CommandName.REORDER_QUEUE: _QUEUE_STAYS,
    CommandName.EDIT_QUEUED: _QUEUE_STAYS,
    CommandName.PROMOTE_QUEUED: {
        State.ERROR_QUEUED: _NEXT,
        State.REQUIRES_ACTION_QUEUED: _NEXT,
        State.RUNNING_QUEUED: _to(State.INTERRUPTING_QUEUED),
        State.INTERRUPTING_QUEUED: _to(State.INTERRUPTING_QUEUED),
    },
    CommandName.INTERRUPT: {
        State.RUNNING: _to(State.INTERRUPTING, State.IDLE),
        State.RUNNING_QUEUED: _to(State.INTERRUPTING_QUEUED, State.RUNNING, State.RUNNING_QUEUED),
        State.INTERRUPTING: _to(State.INTERRUPTING, State.IDLE),
        State.INTERRUPTING_QUEUED: _to(State.INTERRUPTING_QUEUED, State.RUNNING, State.RUNNING_QUEUED),
        State.REQUIRES_ACTION: _to(State.IDLE),
        State.REQUIRES_ACTION_QUEUED: _NEXT,
        State.IDLE: _NOTHING,
        State.ERROR: _NOTHING,
        State.ERROR_QUEUED: _NOTHING,
        State.IDLE_ARCHIVED: _NOTHING,
        State.ERROR_ARCHIVED: _NOTHING,
        State.ERROR_QUEUED_ARCHIVED: _NOTHING,
    },
    CommandName.TOOL_RESULTS: {
        State.REQUIRES_ACTION: _to(State.RUNNING),
        State.REQUIRES_ACTION_QUEUED: _to(State.RUNNING_QUEUED),
    },
    CommandName.RETRY: _AGAIN,
    CommandName.COMPACT: _AGAIN,
    CommandName.ARCHIVE: {
        State.IDLE: _to(State.IDLE_ARCHIVED),
        State.ERROR: _to(State.ERROR_ARCHIVED),
        State.ERROR_QUEUED: _to(State.ERROR_QUEUED_ARCHIVED),
        State.IDLE_ARCHIVED: _NOTHING,
        State.ERROR_ARCHIVED: _NOTHING,
        State.ERROR_QUEUED_ARCHIVED: _NOTHING,
    },
    CommandName.UNARCHIVE: {
        State.IDLE_ARCHIVED: _to(State.IDLE),
        State.ERROR_ARCHIVED: _to(State.ERROR),
        State.ERROR_QUEUED_ARCHIVED: _to(State.ERROR_QUEUED),
        State.IDLE: _NOTHING,
        State.ERROR: _NOTHING,
        State.ERROR_QUEUED: _NOTHING,
    },
    CommandName.UPDATE_CHAT: {state: _to(state) for state in State if state is not State.NONE},
    CommandName.ACQUIRE: {
        **_HELD,
        State.RUNNING: _to(State.RUNNING, State.ERROR),
        State.RUNNING_QUEUED: _to(State.RUNNING_QUEUED, State.ERROR_QUEUED),
    },
    CommandName.RELEASE: _HELD,
    CommandName.START_ATTEMPT: _RUNS_ON,
    CommandName.ANNOUNCE_RETRY: _RUNS_ON,
    CommandName.KEEP_SUMMARY: _RUNS_ON,
    CommandName.COMMIT_STEP: {
        State.RUNNING: _to(State.RUNNING),
        State.RUNNING_QUEUED: _to(State.RUNNING, State.RUNNING_QUEUED),
        **_ENDED_WHILE_INTERRUPTING,
    },
    CommandName.FINISH_TURN: {State.RUNNING: _to(State.IDLE), State.RUNNING_QUEUED: _NEXT, **_ENDED_WHILE_INTERRUPTING},
    CommandName.AWAIT_ACTION: {
        State.RUNNING: _to(State.REQUIRES_ACTION),
        State.RUNNING_QUEUED: _to(State.REQUIRES_ACTION_QUEUED),
        **_ENDED_WHILE_INTERRUPTING,
    },
    CommandName.ACTION_EXPIRED: {
        State.REQUIRES_ACTION: _to(State.RUNNING),
        State.REQUIRES_ACTION_QUEUED: _to(State.RUNNING_QUEUED),
    },
    CommandName.FAIL: {
        State.RUNNING: _to(State.ERROR),
        State.RUNNING_QUEUED: _to(State.ERROR_QUEUED),
        **_ENDED_WHILE_INTERRUPTING,
    },
    CommandName.FINISH_INTERRUPTION: _ENDED_WHILE_INTERRUPTING,
}


class Fact(StrEnum):
    """A fact that costs a statement of its own, and is therefore loaded only for a command that needs it.

    The chat's row, its queue, its open turn and its open attempt are never declared, because every decision needs
    them. The status in the locked row shows which of those can exist.
    """

    HOLDER_ALIVE = "holder_alive"
    OPEN_CALLS = "awaiting"
    LAST_REPLY = "last_is_partial"
    LAST_USER = "last_user_id"
    LAST_ANSWERED = "last_answered"
    LAST_TURN = "last_turn_kind"
    JUST_COMPACTED = "just_compacted"
    TARGET = "target"
    DESTINATION = "destination"
    JOURNAL_ROWS = "turn.journal_rows"
    FINISHED = "attempt.finished"
    IN_TOOL = "attempt.in_tool"


_ALL: Final = frozenset(Status)
_RESTING: Final = frozenset(RESTING)
_BUSY: Final = frozenset(BUSY)
_RUNNING: Final = frozenset({Status.RUNNING})
_AWAITING: Final = frozenset({Status.REQUIRES_ACTION})
_FAILED: Final = frozenset({Status.ERROR})

FACTS: Final[Mapping[CommandName, Mapping[Fact, frozenset[Status]]]] = {
    CommandName.SEND: {Fact.OPEN_CALLS: _RESTING},
    CommandName.SEND_STEER: {Fact.OPEN_CALLS: _RESTING},
    CommandName.SEND_INTERRUPT: {Fact.OPEN_CALLS: _RESTING | _AWAITING},
    CommandName.EDIT: {Fact.TARGET: _ALL, Fact.OPEN_CALLS: _ALL},
    CommandName.REGENERATE: {Fact.TARGET: _ALL, Fact.OPEN_CALLS: _ALL},
    CommandName.SWITCH_BRANCH: {Fact.DESTINATION: _RESTING},
    CommandName.CONTINUE: {Fact.LAST_REPLY: _RESTING, Fact.LAST_USER: _RESTING, Fact.OPEN_CALLS: _RESTING},
    CommandName.RETRY: {
        Fact.LAST_TURN: _FAILED,
        Fact.LAST_USER: _RESTING,
        Fact.LAST_ANSWERED: _RESTING,
        Fact.OPEN_CALLS: _RESTING,
    },
    CommandName.COMPACT: {Fact.JUST_COMPACTED: _RESTING, Fact.LAST_USER: _RESTING, Fact.OPEN_CALLS: _RESTING},
    CommandName.PROMOTE_QUEUED: {Fact.OPEN_CALLS: _FAILED | _AWAITING},
    CommandName.INTERRUPT: {Fact.HOLDER_ALIVE: _BUSY, Fact.OPEN_CALLS: _AWAITING},
    CommandName.TOOL_RESULTS: {Fact.OPEN_CALLS: _AWAITING},
    CommandName.ACTION_EXPIRED: {Fact.OPEN_CALLS: _AWAITING},
    CommandName.ACQUIRE: {
        Fact.HOLDER_ALIVE: _BUSY,
        Fact.JOURNAL_ROWS: _RUNNING,
        Fact.FINISHED: _RUNNING,
        Fact.IN_TOOL: _RUNNING,
    },
    CommandName.RELEASE: {Fact.FINISHED: _RUNNING},
}
"""The facts that each command needs, and in which status; a command that is not listed needs none."""


def find_facts(command: CommandName, status: Status) -> frozenset[Fact]:
    """The facts that `decide` may read for this command in a chat of this status."""
    return frozenset(fact for fact, statuses in FACTS.get(command, {}).items() if status in statuses)
