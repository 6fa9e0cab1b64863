"""What must hold at the end of a proof, each a pure function from what was seen and stored to sentences. In this order:

    feed      each transcript is in order by itself, and a live one is the stored one: nothing was retracted, repeated
              or missed. Every accepted message is there once. At the end nothing runs, nothing is queued, no number
              is missing
    replies   every reply is the expected one, by the expected model, with the right end and notice. It is read from the
              tree, over all turns that wrote it, so one that was continued or regenerated is checked like any other
    tree      parents, siblings, and every branch that can be gone back to (P10, rule 10.2)
    tools     none ran twice that must not, every result is that of its call, and a call is answered once
    usage     what replies and chats count (rule 10.7): the model of a proof counts its words
    files     every accepted upload is stored as it was sent, once, and is where it belongs; nothing else is there

provider.py checks what the model was told, evidence.py the rows of files. Must stay true (tests/prove/test_checker.py,
test_file_checks.py, test_quiet_losses.py, test_lost_files.py): a history that keeps the promises has no fault, whatever
it is; one in which any single thing was lost, doubled, changed or left open has one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

from indelible.prove.evidence import Evidence, Fault, StoredCopy, UploadLog, describe_difference
from indelible.prove.model import count_output
from indelible.prove.reader import ReaderTranscript, SeenMessage, SeenResult, describe_message
from indelible.prove.script import Wish, find_key, list_files, make_file
from indelible.prove.tools import ASK, DRAW, ToolRun, read_report


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


# --- feed ---


def check_feed(evidence: Evidence) -> Iterator[str]:
    yield from _check_transcripts(evidence)
    yield from _check_live(evidence)
    yield from _check_sent(evidence)
    yield from _check_conversation(evidence)
    yield from _check_rest(evidence)


def _check_transcripts(evidence: Evidence) -> Iterator[str]:
    for name, transcript in _name_transcripts(evidence):
        for fault in transcript.faults:
            yield f"{name}: {fault}"
        for attempt_id, attempt in transcript.attempts.items():
            if not attempt.has_ended:
                yield f"{name}: {attempt_id} never ends"
        for turn_id, turn in transcript.turns.items():
            if len(turn.outcomes) != 1:
                yield f"{name}: {turn_id} ends {len(turn.outcomes)} times"


def _name_transcripts(evidence: Evidence) -> list[tuple[str, ReaderTranscript]]:
    live = [(f"reader {number}", transcript) for number, transcript in enumerate(evidence.live, 1)]
    return [*live, ("a newcomer", evidence.stored)]


def _check_live(evidence: Evidence) -> Iterator[str]:
    stored = evidence.stored
    unfinished = [
        name for name, transcript in _name_transcripts(evidence) if transcript.cursor != evidence.snapshot["cursor"]
    ]
    yield from (f"{name} did not receive everything" for name in unfinished)
    if stored.cursor != evidence.snapshot["cursor"]:
        return
    for number, transcript in enumerate(evidence.live, 1):
        for attempt_id in stored.attempts.keys() | transcript.attempts.keys():
            seen, saved = (which.attempts.get(attempt_id) for which in (transcript, stored))
            if seen is None or saved is None:
                yield f"reader {number}: {attempt_id} was {'not seen' if seen is None else 'seen and is not stored'}"
            elif seen.rows != saved.rows:
                difference = describe_difference(seen.text, saved.text)
                yield f"reader {number}: of {attempt_id}, seen is not stored: {difference}"
        for seen_fact, stored_fact in zip_longest(transcript.facts, stored.facts):
            if seen_fact != stored_fact:
                yield f"reader {number} received {seen_fact}, but stored is {stored_fact}"
                break


def _check_sent(evidence: Evidence) -> Iterator[str]:
    accepted, there = Counter(evidence.log.sent), Counter(evidence.stored.questions)
    for text, times in (accepted - there).items():
        yield f"a message was accepted and {there[text]} of {times + there[text]} are stored: {text!r}"
    for text in there - accepted:
        yield f"a message is stored more often than it was sent: {text!r}"


def _check_conversation(evidence: Evidence) -> Iterator[str]:
    """The conversation is the path from the first message to the head, as the feed told of them."""
    shown = [describe_message(message) for message in evidence.messages]
    streamed = [message.described for message in evidence.stored.list_ancestors(evidence.stored.head)][::-1]
    for in_conversation, in_feed in zip_longest(shown, streamed):
        if in_conversation != in_feed:
            yield f"the conversation has {in_conversation}, but the feed has {in_feed}"
            break


def _check_rest(evidence: Evidence) -> Iterator[str]:
    snapshot = evidence.snapshot
    wanted: dict[str, Any] = {"status": "idle", "turn": None, "live": None, "queue": [], "error": None}
    for name, value in wanted.items():
        if snapshot[name] != value:
            yield f"the chat is not at rest: its {name} is {snapshot[name]!r}"
    if evidence.seqs is not None and list(evidence.seqs) != list(range(1, len(evidence.seqs) + 1)):
        yield f"its events are numbered {list(evidence.seqs)}"


# --- replies ---


_SETTLED: Final = ("complete", "interrupted", "edited")


def check_replies(evidence: Evidence, find_reply: Callable[[str], str | None]) -> Iterator[str]:
    yield from _check_turns(evidence, find_reply)
    yield from _check_prefixes(evidence, find_reply)
    yield from _check_questions(evidence)
    yield from _check_models(evidence)
    yield from _check_notices(evidence)


def _check_turns(evidence: Evidence, find_reply: Callable[[str], str | None]) -> Iterator[str]:
    stored = evidence.stored
    for turn_id, turn in stored.turns.items():
        if turn.outcomes and turn.outcomes[0] not in _SETTLED:
            yield f"{turn_id} ended as {turn.outcomes[0]}"
        shown = stored.read_turn(turn_id)
        if shown != turn.reply:
            yield f"{turn_id}: shown is not stored: {describe_difference(shown, turn.reply)}"
        if turn.outcomes != ["complete"]:
            continue
        question, reply = stored.read_answer(turn.last_id) if turn.last_id else (turn.question, "")
        known = find_reply(question)
        if known is not None and reply != known:
            yield f"{turn_id} is not the whole reply to {question!r}: {describe_difference(reply, known)}"
    outcomes = Counter(turn.outcomes[0] for turn in stored.turns.values() if turn.outcomes)
    if outcomes["interrupted"] > evidence.log.stops:
        yield f"{outcomes['interrupted']} replies were stopped, but only {evidence.log.stops} stops were requested"
    if outcomes["edited"] > evidence.log.edits:
        yield f"{outcomes['edited']} replies gave way to an edit, but only {evidence.log.edits} were requested"


def _check_prefixes(evidence: Evidence, find_reply: Callable[[str], str | None]) -> Iterator[str]:
    """On every branch, what was said is the beginning of the reply."""
    for message_id, message in evidence.stored.tree.items():
        if message.role == "assistant":
            question, reply = evidence.stored.read_answer(message_id)
            known = find_reply(question)
            if known is not None and not known.startswith(reply):
                difference = describe_difference(reply, known)
                yield f"{message_id} is not the beginning of the reply to {question!r}: {difference}"


def _check_questions(evidence: Evidence) -> Iterator[str]:
    """Every message began a turn or steered one, and none was answered more often than somebody asked for it."""
    stored = evidence.stored
    for message_id, message in stored.tree.items():
        if message.role == "user" and message_id not in stored.joined and message_id not in stored.copied:
            yield f"a message was never taken up: {message.text!r}"
    surplus = len(stored.turns) - len({turn.question_id for turn in stored.turns.values()})
    if surplus > evidence.log.again:
        yield f"{surplus} replies answer a message again, but that was requested {evidence.log.again} times"


def _check_models(evidence: Evidence) -> Iterator[str]:
    """The model that was asked for answers (rule 10.1). Who named none for a turn gets that of the message."""
    stored, log = evidence.stored, evidence.log
    for message_id, message in stored.tree.items():
        if message.role != "assistant" or message.turn_id is None:
            continue
        begun_with = stored.turns[message.turn_id].question
        expected = log.turn_models.get(message.turn_id) or log.models.get(begun_with)
        if expected is not None and message.model != expected:
            yield f"{message_id} is by the model {message.model}, but {expected} was to answer {begun_with!r}"


def _check_notices(evidence: Evidence) -> Iterator[str]:
    """A stopped turn has one notice that says so, and no other turn has one. A turn that gave way needs none."""
    for turn_id, turn in evidence.stored.turns.items():
        wanted = 1 if turn.outcomes == ["interrupted"] else 0
        found = turn.notices.count("stopped")
        if found != wanted and not (turn.gave_way and found == 0):
            outcome = turn.outcomes[0] if turn.outcomes else "nothing"
            yield f"{turn_id} ended as {outcome} with the notices {turn.notices}"


# --- tree ---


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


# --- tools ---


def check_effects(runs: Sequence[ToolRun], evidence: Sequence[Evidence], *, safe: frozenset[str]) -> list[Fault]:
    """Tools of the servers that ran too often or not at all."""
    times = Counter((run.name, run.key) for run in runs)
    chat_of = {turn_id: one.chat_id for one in evidence for turn_id in one.stored.turns}
    faults = [
        Fault(f"{name} ran {count} times under the key {key}", chat_of.get(key.split("/")[0]))
        for (name, key), count in times.items()
        if count > 1 and name not in safe
    ]
    notes = {(run.name, run.note) for run in runs}
    for one in evidence:
        for result in one.stored.results:
            name, output = result.block["name"], str(result.block.get("output", ""))
            if result.block.get("is_error") or name == ASK:
                continue
            if (name, read_report(output)) not in notes:
                faults.append(Fault(f"{name} reported {output!r}, but the notebook has no trace of it", one.chat_id))
            if result.turn_id is not None and not (result.block.get("started_at") and "duration_s" in result.block):
                faults.append(Fault(f"{name} reported {output!r}, but not when it ran", one.chat_id))
    return faults


def check_client_results(evidence: Evidence) -> Iterator[str]:
    """Each call of the client has the result that was accepted for it, in its own turn, and no other."""
    submitted, found = evidence.log.submitted, Counter[tuple[str, str]]()
    for result in evidence.stored.results:
        if result.block["name"] != ASK or result.turn_id is None or result.block.get("is_error"):
            continue
        output = str(result.block.get("output", ""))
        note = output.removeprefix("answer ")
        found[result.turn_id, note] += 1
        if note not in submitted.get(result.turn_id, []):
            yield f"{ASK} was answered with {output!r} in {result.turn_id}, for which nobody submitted it"
    for turn_id, notes in submitted.items():
        for note in notes:
            if found[turn_id, note] != 1:
                yield f"the result {note} of {turn_id} was accepted and is stored {found[turn_id, note]} times"


# --- usage ---


def check_usage(evidence: Evidence, find_reply: Callable[[str], str | None]) -> Iterator[str]:
    stored = evidence.stored
    for message_id, message in stored.tree.items():
        question, _ = stored.read_answer(message_id) if message.role == "assistant" else ("", "")
        if not question or message.partial or message.reason is not None or find_reply(question) is None:
            continue
        counted = (message.usage or {}).get("output_tokens")
        if counted != count_output(len(message.text.split())):
            yield f"{message_id} has the usage {message.usage}, and {len(message.text.split())} words"
    if "usage" in evidence.snapshot:
        summed = _add_up([message.usage for message in stored.tree.values() if message.usage is not None])
        if (evidence.snapshot["usage"] or {}) != summed:
            yield f"the chat counts {evidence.snapshot['usage']}, and its messages add up to {summed}"


def _add_up(usages: list[dict[str, Any]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for usage in usages:
        for name, count in usage.items():
            totals[name] = totals.get(name, 0) + count
    return {name: count for name, count in totals.items() if count}


# --- files ---


def check_files(
    log: UploadLog, copies: Sequence[StoredCopy], runs: Sequence[ToolRun], evidence: Sequence[Evidence]
) -> list[Fault]:
    """What is wrong with the files of all chats."""
    keys = {copy.id: find_key(copy.name) for copy in copies}
    faults = [Fault(sentence) for sentence in (*_check_accepted(log, copies), *_check_surplus(log, copies, runs))]
    named: Counter[str] = Counter()
    for one in evidence:
        for message in one.stored.tree.values():
            faults += [Fault(sentence, one.chat_id) for sentence in _check_message(message, keys)]
        for result in one.stored.results:
            faults += [Fault(sentence, one.chat_id) for sentence in _check_result(result, keys)]
            if result.turn_id is not None:
                named.update(file["file_id"] for file in result.block.get("files", ()))
    shared = [file_id for file_id, times in named.items() if times > 1]
    return faults + [Fault(f"the picture {keys.get(file_id)} is that of several results") for file_id in shared]


def _check_accepted(log: UploadLog, copies: Sequence[StoredCopy]) -> Iterator[str]:
    listed = {copy.id: copy for copy in copies}
    for file_id, key in log.accepted.items():
        if file_id not in listed:
            yield f"the upload of {make_file(key).name} was accepted, and it is not stored"
    for copy in copies:
        uploaded = log.accepted.get(copy.id) or find_key(copy.name)
        if uploaded is None:
            continue  # _check_surplus
        sent = make_file(uploaded)
        if copy.brought != hashlib.sha256(sent.data).hexdigest():
            yield f"{sent.name} is stored, but a download does not bring what was uploaded ({copy.brought})"
        elif (copy.name, copy.media_type, copy.sha256) != (sent.name, sent.media_type, copy.brought):
            yield f"{sent.name} is described as {copy.name}, {copy.media_type}, {copy.sha256}"


def _check_surplus(log: UploadLog, copies: Sequence[StoredCopy], runs: Sequence[ToolRun]) -> Iterator[str]:
    """Files that nobody uploaded, or more of them than there were uploads."""
    allowed = Counter(log.accepted.values()) + Counter(run.note for run in runs if run.name == DRAW)
    for copy in copies:
        key = find_key(copy.name)
        if key in log.broken_off:
            yield f"the upload of {copy.name} was broken off, and it is visible"
        elif key is None or not allowed[key]:
            yield f"{copy.name} is stored, and nobody uploaded it"
    for key, times in Counter(find_key(copy.name) for copy in copies).items():
        if key is not None and times > allowed[key] > 0:
            yield f"{make_file(key).name} is stored {times} times, but was uploaded {allowed[key]} times"


def _check_message(message: SeenMessage, keys: dict[str, str | None]) -> Iterator[str]:
    wish = Wish.parse(message.text) if message.role == "user" else None
    if wish is None:
        return
    expected = [file.key for file in list_files(wish)]
    found = [keys.get(file_id) for file_id in message.files]
    if found != expected:
        yield f"{message.id} has the files {found}, but was sent with {expected}"


def _check_result(result: SeenResult, keys: dict[str, str | None]) -> Iterator[str]:
    block = result.block
    note = read_report(str(block.get("output", "")))
    expected = [note] if block["name"] == DRAW and note is not None else []
    found = [keys.get(file["file_id"]) for file in block.get("files", ())]
    if found != expected:
        yield f"the result {note} of {block['name']} has the files {found}, but returned {expected}"
