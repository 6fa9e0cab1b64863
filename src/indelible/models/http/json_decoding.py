"""Decoding what a provider sends, quickly, into what is wanted of it.

msgspec reads an event ten times quicker than `json` does and takes only the fields that are named. It refuses half of a
surrogate pair, which JSON can escape and which some hosts send when they cut a text between two events; those few
are read the slow way, and the loop joins the halves (loop/normalize.py).

Must stay true (tests/models/test_contract.py): nothing but an error of msgspec's comes out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def make_decoder(kind: type[T] | Any) -> Callable[[bytes], T]:
    """What reads JSON of this kind."""
    decode = msgspec.json.Decoder(kind).decode

    def decode_event(data: bytes) -> T:
        try:
            found: T = decode(data)
        except msgspec.DecodeError:
            if b"\\ud" not in data.lower():
                raise
        except RecursionError as error:
            raise msgspec.DecodeError("It is nested too deeply.") from error
        else:
            return found
        try:
            converted: T = msgspec.convert(json.loads(data), kind)
        except msgspec.MsgspecError:
            raise
        except (ValueError, RecursionError) as error:
            raise msgspec.DecodeError(str(error)) from error
        return converted

    return decode_event
