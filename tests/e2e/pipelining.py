"""Requests without a token that are sent before any answer is read, and the memory of the server that gets them.

    python -m tests.e2e.pipelining --requests 10000

The client sends all of them in one `sendall`, reads nothing until all are sent or for ten seconds, and then reads every
answer. Printed is the memory of the server before, the most that it ever had, and after the client has left. In short:
tests/server/test_connection_limits.py.
"""

from __future__ import annotations

import argparse
import re
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tests.support.commands import CommandProcess, start_interpreter

ASK: Final = b"GET /api/v1/chats HTTP/1.1\r\nHost: localhost\r\n\r\n"
GROWTH_MB: Final = 100
_HEAD: Final = re.compile(rb"HTTP/1\.1 (\d+) .*?\r\n\r\n", re.DOTALL)


class Poured(NamedTuple):
    before_mb: int
    most_mb: int
    after_mb: int
    refused: int
    """How many answers there were, each of them 401."""


def pour(server: CommandProcess, url: str, requests: int) -> Poured:
    before = server.read_memory_mb("VmRSS")
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        sending = threading.Thread(target=connection.sendall, args=(ASK * requests,))
        sending.start()
        sending.join(timeout=10)  # what the server does not read waits in the sockets, or here
        refused = _count_refused(connection, requests)
        sending.join()
        most = server.read_memory_mb("VmHWM")
    return Poured(before, most, server.read_memory_mb("VmRSS"), refused)


def _count_refused(connection: socket.socket, requests: int) -> int:
    """How many answers with the status 401 there are."""
    seen, rest = 0, b""
    while seen < requests and (piece := connection.recv(1 << 20)):
        rest += piece
        found = [match.span() for match in _HEAD.finditer(rest) if match[1] == b"401"]
        seen += len(found)
        rest = rest[found[-1][1] :] if found else rest
    return seen


def main(requests: int) -> int:
    with tempfile.TemporaryDirectory(prefix="indelible-pipelining-") as place:
        arguments = ("serve", "--port", "0", "--database", str(Path(place) / "chats.db"))
        with start_interpreter(*arguments, INDELIBLE_TOKEN="a token of twenty characters") as server:  # noqa: S106
            done = pour(server, server.read_url(), requests)
    print(  # noqa: T201
        f"{requests:,} requests ({requests * len(ASK) / 1e6:.1f} MB) in one sendall, {done.refused:,} answers (401): "
        f"{done.before_mb} MB before, {done.most_mb} MB at most, {done.after_mb} MB after."
    )
    return 0 if done.refused == requests and done.most_mb - done.before_mb < GROWTH_MB else 1


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Pipelined requests, and the memory of the server.")
    arguments.add_argument("--requests", type=int, default=10_000)
    sys.exit(main(arguments.parse_args().requests))
