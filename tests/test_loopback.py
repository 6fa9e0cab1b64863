"""Which hosts are this machine."""

from __future__ import annotations

import pytest

from indelible.loopback import is_loopback


@pytest.mark.parametrize(
    ("host", "is_so"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("localhost", True), ("LocalHost", True),
     ("::", False), ("10.0.0.1", False), ("example.org", False), ("localhost.example.org", False), ("", False)],
)  # fmt: skip
def test_loopback_is_what_only_this_machine_can_reach(host: str, is_so: bool) -> None:
    assert is_loopback(host) == is_so
