"""Places that a worker keeps for turns that begin in its own process (store/commands/begin.py).

Whoever accepts a message in the worker's process reserves a place for it first. A place counts like a running chat from
then on, and is settled when the transaction has ended: it becomes a runner, or it is free again. If nobody knows
whether the transaction was committed, the worker reads the chat, and keeps the place until it knows.

Within that transaction the worker is asked how the first attempt is opened (`plan_start`). It may answer from another
thread, so it looks at nothing but the work and at what is known by then: the models that this process has found before,
with their keys. What has to wait for anything (a file, a summary) is left to the runner.

Must stay true (tests/worker/test_at_once.py): every place that was reserved is given back or taken, once; an attempt
that was opened is one that the runner would have opened next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from indelible.concurrency.tasks import Backoff
from indelible.errors import ModelFailed, NotFound, StoreFailed
from indelible.loop.prompt.compact import should_compact
from indelible.models.protocol import Model
from indelible.store.payloads import AttemptStart
from indelible.store.queries.open_turn import Begun, OpenWork
from indelible.store.queries.tree import find_file_ids
from indelible.worker import resume
from indelible.worker.dependencies import WorkerDependencies

_MOST_MODELS: Final = 256
_FIRST_DELAY_S: Final = 0.05
_LONGEST_DELAY_S: Final = 2.0


class KnownModel(NamedTuple):
    name: str
    provider: str
    context_limit: int | None


class KnownModels:
    """What is known of the models that were found. The dict is replaced, never changed: another thread may read it."""

    def __init__(self, find: Callable[[str | None], Model]) -> None:
        self._find = find
        self.by_name: Mapping[str | None, KnownModel] = {}

    def find(self, name: str | None) -> Model:
        """Find the model and note it. Raises `ModelFailed` for one that cannot be used, which is then not known."""
        try:
            model = self._find(name)
        except ModelFailed:
            if name in self.by_name:
                self.by_name = {known: model for known, model in self.by_name.items() if known != name}
            raise
        found = KnownModel(model.name, model.provider, model.context_limit)
        if self.by_name.get(name) != found:
            kept = self.by_name if len(self.by_name) < _MOST_MODELS else {}
            self.by_name = {**kept, name: found}
        return model


def plan_start(
    work: OpenWork, models: Mapping[str | None, KnownModel], *, tools: frozenset[str], compact_at: float
) -> AttemptStart | None:
    """How the runner would open the first attempt of this work, if it has to do nothing before it."""
    plan, model = resume.plan_turn(work), models.get(work.model)
    if model is None or not isinstance(plan, resume.AskModel) or plan.adopted is not None:
        return None
    if any(tool.name in tools for tool in work.tools):  # the turn fails
        return None
    if should_compact(resume.count_used(work), model.context_limit, share=compact_at):
        return None
    if any(find_file_ids(message.blocks) for message in work.messages):
        return None
    return AttemptStart(model=model.name, provider=model.provider)


class KeptPlace:
    """One place: a `Place` of the store. `planned` is its last answer to `plan`."""

    def __init__(self, places: Places, chat_id: str, owner_id: str, *, per_user: int) -> None:
        self.worker_id = places.worker_id
        self.chat_id = chat_id
        self.owner_id = owner_id
        self.per_user = per_user
        self.planned: AttemptStart | None = None
        self._places = places

    def plan(self, work: OpenWork) -> AttemptStart | None:
        self.planned = self._places.plan(work)
        return self.planned

    def fill(self, begun: Begun) -> None:
        if self._places.remove(self):
            self._places.on_filled(self.chat_id, begun)

    def give_back(self) -> None:
        if self._places.remove(self):
            self._places.on_freed()

    def doubt(self) -> None:
        if self._places.has(self):
            self._places.on_doubt(self)


async def settle(place: KeptPlace, deps: WorkerDependencies, *, is_leaving: Callable[[], bool]) -> None:
    """Read the chat: whoever holds it says whether the transaction was committed.

    A commit that is still under way is found later, as a chat that the worker holds and does not work on.
    """
    backoff = Backoff(deps.clock, first_s=_FIRST_DELAY_S, longest_s=_LONGEST_DELAY_S)
    try:
        while not is_leaving():
            try:
                work = await deps.store.work(place.chat_id)
            except NotFound:
                return
            except StoreFailed:
                await backoff.wait()
                continue
            if work.holder == place.worker_id and not is_leaving():
                place.fill(_recall(work, place.planned))
            return
    finally:
        place.give_back()


def _recall(work: OpenWork, planned: AttemptStart | None) -> Begun:
    """What the transaction answered: the work as of before the attempt that it opened."""
    assert work.turn_id is not None  # a chat that is held has a turn
    begun = Begun(epoch=work.epoch, turn_id=work.turn_id, work=work)
    if work.attempt is None or planned is None:
        return begun
    before = replace(work, attempt=None, next_step=work.attempt.step)
    return replace(begun, work=before, attempt=work.attempt, model=planned.model, provider=planned.provider)


class Places:
    """The places that are reserved now, by chat; at most one for each.

    `on_filled(chat, begun)`: the chat is the worker's. `on_freed()`: a place is free again. `on_doubt(place)`: whoever
    is told has to find out, and to give it back.
    """

    def __init__(
        self,
        worker_id: str,
        *,
        plan: Callable[[OpenWork], AttemptStart | None],
        per_user: int,
        on_filled: Callable[[str, Begun], None],
        on_freed: Callable[[], None],
        on_doubt: Callable[[KeptPlace], None],
    ) -> None:
        self.worker_id = worker_id
        self.plan = plan
        self.on_filled = on_filled
        self.on_freed = on_freed
        self.on_doubt = on_doubt
        self._per_user = per_user
        self._by_chat: dict[str, KeptPlace] = {}
        self._of_user: Counter[str] = Counter()

    @property
    def limits(self) -> dict[str, Any]:
        """For a search: how many chats a user may have, and how many places are reserved for which user."""
        return {"per_user": self._per_user, "reserved": dict(self._of_user)}

    def __len__(self) -> int:
        return len(self._by_chat)

    def __contains__(self, chat_id: str) -> bool:
        return chat_id in self._by_chat

    def reserve(self, chat_id: str, owner_id: str) -> KeptPlace:
        """The user's other places count against the limit: their transactions do not see each other."""
        assert chat_id not in self._by_chat
        place = KeptPlace(self, chat_id, owner_id, per_user=self._per_user - self._of_user[owner_id])
        self._by_chat[chat_id] = place
        self._of_user[owner_id] += 1
        return place

    def has(self, place: KeptPlace) -> bool:
        return self._by_chat.get(place.chat_id) is place

    def remove(self, place: KeptPlace) -> bool:
        """Whether it was still there."""
        if not self.has(place):
            return False
        del self._by_chat[place.chat_id]
        self._of_user[place.owner_id] -= 1
        if not self._of_user[place.owner_id]:
            del self._of_user[place.owner_id]
        return True
