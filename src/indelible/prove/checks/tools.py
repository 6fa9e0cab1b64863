"""Tools: none ran twice that must not, every result is that of its call, and a call is answered once.

A call is known by its note (model.py). The notebook says which tools of the servers ran; what the user submitted says
which calls of the client were answered, and in which turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from indelible.prove.checks.evidence import Evidence, Fault
from indelible.prove.servers.tools import ASK, ToolRun, read_report


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
    submitted, found = evidence.deeds.submitted, Counter[tuple[str, str]]()
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
