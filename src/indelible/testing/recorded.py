"""A model that says what was once recorded: a strange reply, kept as a test.

`indelible debug replay RUN --save strange.json` saves it, and a test hears it again through the real adapter:

    async with indelible.open("test.db", model=RecordedModel("strange.json")) as app:
        ...
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from indelible.clock import Clock
from indelible.recording.replay import Recording, ReplayedModel


class RecordedModel(ReplayedModel):
    """Answers every call with what is in the file. It makes no titles, for nobody has recorded one."""

    def __init__(self, path: Path | str, *, clock: Clock | None = None) -> None:
        super().__init__(Recording.load(Path(path)), clock=clock)
        self.traits = replace(self.traits, makes_titles=False)
