"""Who may do what, and where it leads: the table of SPEC §3 as data.

`TABLE[command][state]` is the set of states in which the chat may be afterwards. A state that is not
named is one in which the command is refused; an empty set means that it is allowed and changes nothing
(stopping what does not run). More than one target means that the queue decides, or whether a live worker
holds the chat, or how often it was taken over.

A command may still be refused for what it names, or find nothing to do; that is decide.py.

Must stay true (tests/machine/test_table.py): what `decide` answers leads to a state that is named here,
and every state that is named can be reached; docs/states.md shows exactly this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from indelible.machine.states import State

N, W, R0, R1, I0, I1, A0, A1, E0, E1 = (
    State.NONE, State.W, State.R0, State.R1, State.I0, State.I1, State.A0, State.A1, State.E0, State.E1,
)  # fmt: skip
WX, E0X, E1X = State.WX, State.E0X, State.E1X

Targets = frozenset[State]


class CommandName(StrEnum):
    # of users
    CREATE = "create"
    SEND = "send"
    SEND_INTERRUPT = "send_interrupt"
    SEND_STEER = "send_steer"
    EDIT = "edit"
    REGENERATE = "regenerate"
    SWITCH_HEAD = "switch_head"
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
    DESCRIBE = "describe"
    # of workers
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
_NEXT: Final = _to(R0, R1)
"""The front of the queue has become the running turn; there may be more behind it."""

_ENDED_WHILE_INTERRUPTING: Final = {I0: _to(W), I1: _NEXT}
_FORK: Final = {
    W: _to(R0), R0: _to(R0), R1: _to(R1), I0: _to(R0), I1: _to(R1), A0: _to(R0), A1: _to(R1), E0: _to(R0), E1: _to(R1),
}  # fmt: skip
_SEND: Final = {
    W: _to(R0), R0: _to(R1), R1: _to(R1), I0: _to(I1), I1: _to(I1), A0: _to(A1), A1: _to(A1), E0: _to(R0), E1: _to(R1),
}  # fmt: skip
_QUEUE_STAYS: Final = {R1: _to(R1), I1: _to(I1), A1: _to(A1), E1: _to(E1), E1X: _to(E1X)}
_RUNS_ON: Final = {R0: _to(R0), R1: _to(R1)}
_HELD: Final = {R0: _to(R0), R1: _to(R1), I0: _to(I0), I1: _to(I1)}

TABLE: Final[Mapping[CommandName, Mapping[State, Targets]]] = {
    CommandName.CREATE: {N: _to(W, R0)},
    CommandName.SEND: _SEND,
    CommandName.SEND_STEER: _SEND,
    CommandName.SEND_INTERRUPT: {**_SEND, R0: _to(I1), R1: _to(I1), A0: _to(R0), A1: _to(R1)},
    CommandName.EDIT: _FORK,
    CommandName.REGENERATE: _FORK,
    CommandName.SWITCH_HEAD: {W: _to(W), E0: _to(E0), E1: _to(E1)},
    CommandName.CONTINUE: {W: _to(R0), E0: _to(R0), E1: _to(R1)},
    CommandName.DELETE: {state: _to(N) for state in State if state is not N},
    CommandName.DELETE_QUEUED: {
        R1: _to(R0, R1), I1: _to(I0, I1), A1: _to(A0, A1), E1: _to(E0, E1), E1X: _to(E0X, E1X),
    },
    CommandName.REORDER_QUEUE: _QUEUE_STAYS,
    CommandName.EDIT_QUEUED: _QUEUE_STAYS,
    CommandName.PROMOTE_QUEUED: {E1: _NEXT, A1: _NEXT, R1: _to(I1), I1: _to(I1)},
    CommandName.INTERRUPT: {
        R0: _to(I0, W), R1: _to(I1, R0, R1), I0: _to(I0, W), I1: _to(I1, R0, R1), A0: _to(W), A1: _NEXT,
        W: _NOTHING, E0: _NOTHING, E1: _NOTHING, WX: _NOTHING, E0X: _NOTHING, E1X: _NOTHING,
    },
    CommandName.TOOL_RESULTS: {A0: _to(R0), A1: _to(R1)},
    CommandName.RETRY: {E0: _to(R0), E1: _to(R1)},
    CommandName.COMPACT: {W: _to(R0), E0: _to(R0), E1: _to(R1)},
    CommandName.ARCHIVE: {
        W: _to(WX), E0: _to(E0X), E1: _to(E1X), WX: _NOTHING, E0X: _NOTHING, E1X: _NOTHING,
    },
    CommandName.UNARCHIVE: {
        WX: _to(W), E0X: _to(E0), E1X: _to(E1), W: _NOTHING, E0: _NOTHING, E1: _NOTHING,
    },
    CommandName.DESCRIBE: {state: _to(state) for state in State if state is not N},
    CommandName.ACQUIRE: {**_HELD, R0: _to(R0, E0), R1: _to(R1, E1)},
    CommandName.RELEASE: _HELD,
    CommandName.START_ATTEMPT: _RUNS_ON,
    CommandName.ANNOUNCE_RETRY: _RUNS_ON,
    CommandName.KEEP_SUMMARY: _RUNS_ON,
    CommandName.COMMIT_STEP: {R0: _to(R0), R1: _to(R0, R1), **_ENDED_WHILE_INTERRUPTING},
    CommandName.FINISH_TURN: {R0: _to(W), R1: _NEXT, **_ENDED_WHILE_INTERRUPTING},
    CommandName.AWAIT_ACTION: {R0: _to(A0), R1: _to(A1), **_ENDED_WHILE_INTERRUPTING},
    CommandName.ACTION_EXPIRED: {A0: _to(R0), A1: _to(R1)},
    CommandName.FAIL: {R0: _to(E0), R1: _to(E1), **_ENDED_WHILE_INTERRUPTING},
    CommandName.FINISH_INTERRUPTION: _ENDED_WHILE_INTERRUPTING,
}  # fmt: skip


def is_legal(command: CommandName, state: State) -> bool:
    return state in TABLE[command]
