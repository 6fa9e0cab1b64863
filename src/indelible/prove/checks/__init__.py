"""What must hold at the end of a proof, each a pure function from what was seen and stored to sentences.

    evidence.py   what is compared, and what a fault is
    feed.py       what readers received, and what is stored
    replies.py    every reply is the expected one, by the expected model; nothing is left unanswered; notices
    tree.py       the branches: parents, siblings, and every branch that can be gone back to
    tools.py      no tool ran twice, and every result is that of its call
    usage.py      what replies and chats count
    files.py      every file that was accepted is stored as it was sent, and is where it belongs
    prompts.py    what the model was told; prompt_files.py: and shown

Must stay true (tests/prove/test_checker.py, test_file_checks.py, test_quiet_losses.py, test_lost_files.py): a history
that keeps the promises has no fault, whatever it is; one in which any single thing was lost, doubled, changed or left
open has one.
"""

from __future__ import annotations

from collections.abc import Callable

from indelible.prove.checks.evidence import Evidence, Fault
from indelible.prove.checks.feed import check_feed
from indelible.prove.checks.replies import check_replies
from indelible.prove.checks.tools import check_client_results
from indelible.prove.checks.tree import check_tree
from indelible.prove.checks.usage import check_usage


def check_chat(evidence: Evidence, find_reply: Callable[[str], str | None]) -> list[Fault]:
    """The promises broken in this chat. `find_reply` predicts replies; it returns None if it cannot."""
    found = [
        *check_feed(evidence),
        *check_replies(evidence, find_reply),
        *check_tree(evidence),
        *check_client_results(evidence),
        *check_usage(evidence, find_reply),
        *evidence.row_faults,
    ]
    return [Fault(sentence, evidence.chat_id) for sentence in found]
