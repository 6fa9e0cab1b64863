"""The body of a request on another wire.

Unknown fields are ignored: the clients of these wires send many. A known one that asks for something that this server
cannot give is refused, because its client would wait for it in vain. A number or a boolean may be written as a text,
as some clients do. A body has no `Content-Type` that it must have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
from starlette.requests import Request

from indelible.errors import Invalid
from indelible.server.router import describe_mistake


class WireBody(msgspec.Struct, kw_only=True):
    off: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Parameters that are not supported, each with the values that do not ask for anything; None never does."""

    @classmethod
    def find_unsupported(cls, given: Mapping[str, Any]) -> str | None:
        """The first parameter that asks for something that is not supported."""
        asked = (name for name, values in cls.off.items() if given.get(name) not in (None, *values))
        return next(asked, None)


B = TypeVar("B", bound=WireBody)


async def read_body(request: Request, kind: type[B]) -> B:
    """The body, checked. Raises `Invalid` with the first mistake."""
    raw = await request.body()
    try:
        given = msgspec.json.decode(raw) if raw else {}
        if isinstance(given, dict) and (name := kind.find_unsupported(given)) is not None:
            raise Invalid(f"Unsupported parameter: {name!r} is not supported with this value. Omit it.", param=name)
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(describe_mistake("body", error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid("The body is not valid JSON in UTF-8.") from error
