"""The body of a request on another wire. Unknown fields are ignored: the clients of these wires send many."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request

from indelible.errors import Invalid


class WireBody(BaseModel):
    model_config = ConfigDict(extra="ignore")


B = TypeVar("B", bound=WireBody)


async def read_body(request: Request, kind: type[B]) -> B:
    """The body, checked. Raises `Invalid` with the first mistake."""
    raw = await request.body()
    try:
        return kind.model_validate(msgspec.json.decode(raw) if raw else {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"][:6]))
        raise Invalid(f"{place}: {first['msg']}"[:300]) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid("The body is not valid JSON in UTF-8.") from error
