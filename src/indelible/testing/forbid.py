"""A switch that forbids calls of real models, so that a test cannot spend money or depend on a network.

It acts where every provider is called (models/http/client.py): a call that would leave this machine fails with
`ModelFailed` of the kind `config`, which is not retried, and nothing is sent. A provider on loopback, such as
`SimulatedProvider`, may still be called. INDELIBLE_FORBID_MODEL_CALLS=1 does the same for a process and its children.

Must stay true (tests/testing/test_forbid.py): nothing is sent while the switch is on; afterwards calls work again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from indelible.models.http.client import call_switch


@contextmanager
def forbid_model_calls() -> Iterator[None]:
    """Make every call of a model on another machine fail, until the end of the block."""
    call_switch.forbidden_by += 1
    try:
        yield
    finally:
        call_switch.forbidden_by -= 1
