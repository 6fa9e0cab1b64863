"""What users send: random messages to random models, some with files, noted once the server has accepted them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from indelible.api.shapes import Accepted
from indelible.client.remote import RemoteService
from indelible.content import File, Text
from indelible.prove.checks.evidence import Deeds
from indelible.prove.clients.uploads import Uploader
from indelible.prove.files import list_files
from indelible.prove.script import Wish, draw_wish
from indelible.service.inputs import Content, IfBusy

_NUMBERS_PER_CHAT: Final = 100_000
_OWN_MODEL: Final = 0.3


class MessageSender:
    """Draws the messages of one user, each with a number of its own. `default_model` is the chat's."""

    def __init__(
        self,
        client: RemoteService,
        chance: random.Random,
        *,
        number: int,
        models: Sequence[str],
        phrases: Sequence[str] | None,
        uploader: Uploader,
    ) -> None:
        self.default_model: str | None = models[number % len(models)] if models else None
        self._client = client
        self._chance = chance
        self._next_number = number * _NUMBERS_PER_CHAT
        self._models = models
        self._phrases = phrases
        self._uploader = uploader

    @property
    def knows_replies(self) -> bool:
        """Whether the model is that of a proof, which calls the tools of the proof."""
        return self._phrases is None

    def draw(self, *, may_ask: bool) -> tuple[str, str | None]:
        """A message, and the model that is to answer it; None means the chat's."""
        self._next_number += 1
        if self._phrases is not None:
            return f"{self._chance.choice(self._phrases)} ({self._next_number})", None
        files = self._uploader.draw_count()
        wish = draw_wish(self._chance, number=self._next_number, may_ask=may_ask, files=files)
        return wish.to_text(), self.draw_model()

    async def attach(self, text: str) -> Content:
        """The message with its files, which are uploaded now."""
        wish = Wish.parse(text)
        if wish is None or not wish.files:
            return text
        uploaded = await self._uploader.upload(list_files(wish))
        return [Text(text), *(File(file_id=file_id) for file_id in uploaded)]

    def draw_model(self) -> str | None:
        """One of the models, or none: then it is up to the chat or to the message."""
        return self._chance.choice(self._models) if self._models and self._chance.random() < _OWN_MODEL else None

    async def send(self, chat_id: str, deeds: Deeds, if_busy: IfBusy, *, may_ask: bool = True) -> Accepted:
        text, model = self.draw(may_ask=may_ask)
        accepted = await self._client.send(chat_id, await self.attach(text), if_busy=if_busy, model=model)
        self.note(deeds, text, model)
        return accepted

    def note(self, deeds: Deeds, text: str, model: str | None) -> None:
        """Note that a message was accepted. Without a model of its own it has the chat's."""
        deeds.sent.append(text)
        chosen = model or self.default_model
        if chosen is not None:
            deeds.models[text] = name_model(chosen)


def name_model(name: str) -> str:
    """The model's own name, as replies have it: of "anthropic:proof@http://…", "proof"."""
    return name.partition(":")[2].partition("@")[0] or name
