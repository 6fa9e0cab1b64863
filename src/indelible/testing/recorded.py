"""A model that replays a recorded reply: a reply that looked wrong, kept as a test.

`indelible debug replay RUN --save strange.json` saves it, and a test replays it through the real adapter:

    async with indelible.open("test.db", model=RecordedModel("strange.json")) as app:
        ...
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from indelible.clock import Clock
from indelible.recording.replay import Recording, ReplayedModel


class RecordedModel(ReplayedModel):
    """Replays the file on every call. It makes no titles, because none was recorded."""

    def __init__(self, path: Path | str, *, clock: Clock | None = None) -> None:
        super().__init__(Recording.load(Path(path)), clock=clock)
        self.traits = replace(self.traits, makes_titles=False)
