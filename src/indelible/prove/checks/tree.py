"""The branches of a chat: the stored tree, siblings, and every branch that can be gone back to (P10, rule 10.2).

The feed told of every message and what it hangs on. The server's tree must be that, the alternatives of a message must
be all that hang on the same one, and the conversation at the end of each branch must be the path to it, in which every
message is as it was told.
"""

from __future__ import annotations

from collections.abc import Iterator

from indelible.prove.checks.evidence import Evidence
from indelible.prove.clients.transcript import describe_message


def check_tree(evidence: Evidence) -> Iterator[str]:
    if evidence.tree is None:
        return
    streamed = {message_id: message.parent_id for message_id, message in evidence.stored.tree.items()}
    shown = {item["id"]: item["parent_id"] for item in evidence.tree["items"]}
    for message_id in streamed.keys() - shown.keys():
        yield f"the tree has lost {message_id}"
    for message_id in shown.keys() - streamed.keys():
        yield f"the tree has {message_id}, which no reader was told of"
    for message_id in streamed.keys() & shown.keys():
        if streamed[message_id] != shown[message_id]:
            yield f"{message_id} hangs on {shown[message_id]} in the tree, and on {streamed[message_id]} in the feed"
    yield from _check_siblings(evidence)
    yield from _check_branches(evidence)


def _check_siblings(evidence: Evidence) -> Iterator[str]:
    below: dict[str | None, set[str]] = {}
    for message_id, message in evidence.stored.tree.items():
        below.setdefault(message.parent_id, set()).add(message_id)
    seen: set[str] = set()
    for branch in (evidence.messages, *(visit.messages for visit in evidence.branches)):
        for shown in branch:
            wanted = below.get(shown["parent_id"], set())
            if shown["id"] not in seen and set(shown["siblings"]) != wanted:
                lost = sorted(wanted - set(shown["siblings"])) or "none"
                yield f"{shown['id']} has the siblings {shown['siblings']}; lost: {lost}"
            seen.add(shown["id"])


def _check_branches(evidence: Evidence) -> Iterator[str]:
    for visit in evidence.branches:
        path = [message.described for message in evidence.stored.list_ancestors(visit.end_id)][::-1]
        if [describe_message(message) for message in visit.messages] != path:
            yield f"the branch of {visit.end_id} has {len(visit.messages)} messages that are not the {len(path)} on it"
