"""A model that streams what the test scripted.

One script per call, in order: a list of parts (with `parts.hang()` to send nothing more, or an exception to raise at
that point), an exception to fail with at once, or an async generator function of the call. Every call is kept in
`calls`. A call past the last script raises `ScriptEnded`, a `TestBroken`, which nothing handles: calling the model more
often than the test expects fails the test, whatever the code under test does with errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import cast

from indelible.content import Part, Value
from indelible.errors import TestBroken
from indelible.models.protocol import Call, ModelTraits
from indelible.testing.parts import Hang

Step = Value | Hang | BaseException
Script = Iterable[Step] | BaseException | Callable[[Call], AsyncIterator[Part]]


class ScriptEnded(TestBroken):
    """The model was called more often than it has scripts."""


class ScriptedModel:
    traits = ModelTraits(makes_titles=False)
    """Each call needs a script, and tests do not script calls for titles."""

    def __init__(
        self,
        streams: Sequence[Script] = (),
        *,
        provider: str = "scripted",
        name: str = "scripted",
        context_limit: int | None = None,
    ) -> None:
        self.provider = provider
        self.name = name
        self.context_limit = context_limit
        self.calls: list[Call] = []
        self._streams = list(streams)

    def stream(self, call: Call) -> AsyncIterator[Part]:
        number = len(self.calls)
        self.calls.append(call)
        if number >= len(self._streams):
            raise ScriptEnded(f"call {number + 1}, but the script has {len(self._streams)} streams")
        script = self._streams[number]
        if isinstance(script, BaseException):
            raise script
        if callable(script):
            return script(call)
        return _play(script)


async def _play(script: Iterable[Step]) -> AsyncIterator[Part]:
    for step in script:
        if isinstance(step, Hang):
            await asyncio.get_running_loop().create_future()
        elif isinstance(step, BaseException):
            raise step
        else:
            yield cast(Part, step)
