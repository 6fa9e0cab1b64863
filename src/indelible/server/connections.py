"""Limits on connections: how long a request may take to arrive, how large its head may be, how many are open.

All of this comes before the token is known, so it protects the process from anybody who reaches its port. uvicorn
limits none of it: it collects a head for as long as it grows, and waits for one forever.

A connection is *waiting* until its request is complete, and *busy* from then until the response is. Only waiting
connections are timed; a feed may stay open for days. At a limit, the connection that has waited longest makes room, so
idle connections keep nobody out; only if all are busy is a new one refused. At the limit of the process the address
with the most connections makes room. An IPv6 host has a whole /64 to itself, so that counts as one address. One timer
of the process checks all connections once a second (process.py): a timer per request would be on the path of every
request.

A client may send requests before it has the responses to earlier ones (pipelining). A request costs a hundred times its
bytes once it is parsed, and one read may bring thousands, so what arrives is parsed request by request, and only while
fewer than `MAX_WAITING` wait. What is left of the read stays as bytes, and nothing more is read: the rest waits in the
kernel, and at last at the client. Nothing is refused for it.

A response may come before its request has arrived: a refusal, after which the connection closes. But closing a socket
that has unread bytes resets it, and then the client, which is still sending, loses the response. So such a connection
*lingers*: it ends in our direction alone, and what still comes is thrown away unparsed, for `_LINGER_S` at most.

uvicorn writes the head of a response and its body one after the other, and each write is a packet, which costs the
kernel, and the client that is woken by it, as much as a short request costs us. So the head is held back until the next
write, or until the event loop has run everything that is ready, whichever comes first. Nothing waits for it. What is
written to a connection that is gone goes nowhere: whoever writes learns of it from the protocol, not from here.

ASGI cannot say that a response breaks off: whoever just ends it makes a part look like the whole. `abort` closes the
connection instead. The chunked body then lacks its last chunk, which every HTTP client reports.

Must stay true (tests/server/test_connection_limits.py): what a connection sends before its request is complete costs a
bounded amount of memory and time, and so does what it sends too early; a busy connection is never closed from here;
when a connection is lost, all of its requests learn it; a client that sends its request to the end reads the refusal.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, Self

from starlette.responses import Response
from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from indelible.server.limits import MAX_DISCARDED_BYTES, MIN_BYTES_PER_S, is_large
from indelible.server.problems import make_problem
from indelible.settings import Settings

ABORT: Final = "indelible.abort"
"""The extension of ASGI that each request has."""
_HEAD: Final = b"HTTP/1.1 "


class GatheringTransport:
    """A transport that holds back the head of a response for a moment. Everything else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(_HEAD):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        if not self.is_closing():  # uvloop raises
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head and not self.is_closing():
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def abort(scope: Scope) -> None:
    """Close the connection of a response that has begun and is not complete. A server without the extension does so."""
    extension: dict[str, Callable[[], None]] | None = scope.get("extensions", {}).get(ABORT)
    if extension is not None:
        extension["close"]()


_log: Final = logging.getLogger(__name__)
_CLOSE: Final = {"Connection": "close"}
_CHUNK_OVERHEAD: Final = 8
"""A chunked body is larger on the wire. So many bytes per byte are still a body, and not an endless trailer."""
_OTHER_FILES: Final = 100
"""Descriptors that are not connections: databases, providers, logs."""
_LOG_INTERVAL_S: Final = 60.0
MAX_WAITING: Final = 16
"""How many requests of a connection wait for the one before them, or fewer, if they are as large as a head may be."""
_LINGER_S: Final = 30.0
_CHUNKS_BYTES: Final = 1024
"""So much of a body in chunks is parsed at once: its end can be at every blank line, and it may be full of them."""
_BLANK_LINE: Final = b"\r\n\r\n"
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD"})  # or with one that is parsed as if it came in chunks


class ConnectionLimits(NamedTuple):
    """See the settings of the same names."""

    head_max_bytes: int
    head_timeout_s: float
    body_timeout_s: float
    max_connections: int
    address_max_connections: int

    @classmethod
    def read(cls, settings: Settings) -> Self:
        chosen = cls(**{name: getattr(settings, name) for name in cls._fields})
        files = _raise_file_limit()
        if files is None:
            return chosen
        return chosen._replace(max_connections=max(1, min(chosen.max_connections, files - _OTHER_FILES)))


class Connections:
    """Every open connection of a process, by address."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._count = 0
        self._by_address: defaultdict[str, _Address] = defaultdict(_Address)
        self._logged_at_s = -_LOG_INTERVAL_S

    def make_protocol(self) -> Any:
        """What uvicorn calls for each connection."""
        return partial(LimitedConnection, self)

    def add(self, connection: LimitedConnection, now_s: float) -> Response | None:
        """Count a new connection, and close another one for it if need be; returns a refusal if none can be closed."""
        limits = self.limits
        own = self._by_address[connection.address]
        refusal: Response | None = None
        if own.count >= limits.address_max_connections and not own.close_one():
            detail = f"Too many connections from this address (limit {limits.address_max_connections:,})."
            refusal = make_problem(429, "too_many", detail, headers=_CLOSE)
        elif self._count >= limits.max_connections and not self._close_greediest():
            refusal = make_problem(503, "unavailable", "The server has too many connections.", headers=_CLOSE)
        self._count += 1
        own.count += 1
        if refusal is not None:
            self._log_refusal(connection.address, now_s)
        else:
            own.waiting[connection] = None
        return refusal

    def _close_greediest(self) -> bool:
        return any(one.close_one() for one in sorted(self._by_address.values(), key=lambda one: -one.count))

    def remove(self, connection: LimitedConnection) -> None:
        own = self._by_address[connection.address]
        own.waiting.pop(connection, None)
        own.count -= 1
        self._count -= 1
        if not own.count:
            del self._by_address[connection.address]

    def note_waiting(self, connection: LimitedConnection) -> None:
        self._by_address[connection.address].waiting[connection] = None

    def note_busy(self, connection: LimitedConnection) -> None:
        self._by_address[connection.address].waiting.pop(connection, None)

    def close_late(self) -> None:
        """Close every connection whose request did not arrive in time."""
        now_s = asyncio.get_running_loop().time()
        for own in list(self._by_address.values()):
            for connection in list(own.waiting):
                connection.close_if_late(now_s)

    def _log_refusal(self, address: str, now_s: float) -> None:
        if now_s - self._logged_at_s >= _LOG_INTERVAL_S:
            self._logged_at_s = now_s
            _log.warning("refused a connection from %s: too many are open (logged once a minute)", address)


class _Address:
    """The connections of one address; those that wait in order, the one that has waited longest first."""

    def __init__(self) -> None:
        self.count = 0
        self.waiting: dict[LimitedConnection, None] = {}

    def close_one(self) -> bool:
        for connection in self.waiting:
            del self.waiting[connection]
            connection.transport.abort()
            return True
        return False


class LimitedConnection(HttpToolsProtocol):
    """A connection of uvicorn that keeps to the limits."""

    def __init__(self, all_connections: Connections, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.address = ""
        self._all = all_connections
        self._limits = all_connections.limits
        self._since_s = 0.0  # when it began to wait for the head, or for the body
        self._head_bytes = 0
        self._overhead_bytes = 0  # of the body on the wire, beyond what it may have
        self._is_in_body = False
        self._is_refused = False
        self._is_large = False
        self._running: RequestResponseCycle | None = None  # `cycle` is the latest that arrived
        self._extensions: dict[str, dict[object, object]] = {ABORT: {"close": self._abort}}
        self._received = b""  # the last bytes that were read, of which `_parsed_bytes` are parsed
        self._parsed_bytes = 0
        self._body_left_bytes = 0  # of a body whose length is known
        self._waiting_bytes = 0  # of the requests that wait
        self._discarded_bytes: int | None = None  # since it lingers
        self._is_leaving = False

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_LingeringTransport(transport, self))  # type: ignore[arg-type]
        self.flow = _Flow(self)
        self.address = name_network(self.client[0] if self.client else "")
        self._since_s = self.loop.time()
        refusal = self._all.add(self, self._since_s)
        if refusal is not None:
            self._refuse(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self)
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._discarded_bytes is not None:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > MAX_DISCARDED_BYTES:
                self.transport.abort()
            return
        kept = max(0, self._parsed_bytes - len(_BLANK_LINE) + 1)  # a blank line may have come in two halves
        self._received = self._received[kept:] + data
        self._parsed_bytes -= kept
        self._parse_on()

    @property
    def is_full(self) -> bool:
        """Whether another request has no room to wait."""
        waiting = len(self.pipeline)
        return waiting >= MAX_WAITING or (waiting > 0 and self._waiting_bytes > self._limits.head_max_bytes)

    def _parse_on(self) -> None:
        """Parse what was received up to the end of each request, while there is room."""
        received = self._received
        while self._parsed_bytes < len(received) and not (self._is_refused or self.transport.is_closing()):
            if self.is_full:
                self.flow.pause_reading()
                return
            start = self._parsed_bytes
            if self._body_left_bytes:
                end = start + self._body_left_bytes
            else:  # every head ends with a blank line, and so does a body in chunks, which may have many of its own
                skipped = _CHUNKS_BYTES if self._is_in_body else 1 - len(_BLANK_LINE)
                found = received.find(_BLANK_LINE, max(0, start + skipped))
                end = len(received) if found < 0 else found + len(_BLANK_LINE)
            self._parsed_bytes = min(end, len(received))
            self._parse(received[start : self._parsed_bytes])
        self._received = received[-len(_BLANK_LINE) :]
        self._parsed_bytes = len(self._received)

    def _parse(self, data: bytes) -> None:
        """At most the end of one head, or of one body; after a body in chunks, heads of `_CHUNKS_BYTES` too."""
        if self._is_in_body:
            self._overhead_bytes += len(data)
        else:
            self._head_bytes += len(data)
        self._waiting_bytes = self._waiting_bytes + len(data) if self.pipeline else 0
        super().data_received(data)
        limit_bytes = self._limits.head_max_bytes
        if not self._is_in_body and self._head_bytes > limit_bytes:
            detail = f"The request's head is too large (limit {limit_bytes:,} bytes)."
            self._refuse(make_problem(431, "too_large", detail, headers=_CLOSE))
        elif self._is_in_body and self._overhead_bytes > limit_bytes:
            self._refuse(make_problem(431, "too_large", "The request's trailer is too large.", headers=_CLOSE))

    def shutdown(self) -> None:
        """Close after the response: a process that leaves does not linger."""
        self._is_leaving = True
        super().shutdown()

    # --- called by the parser, and at the end of a response ---

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_body:  # no route reads trailers
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_body = True
        self._head_bytes = self._overhead_bytes = 0
        self._since_s = self.loop.time()
        super().on_headers_complete()
        self.scope["extensions"] = self._extensions
        if self.scope["method"] not in _WITHOUT_BODY:
            self._body_left_bytes = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        self._is_large = is_large(self.scope["path"])

    def on_body(self, body: bytes) -> None:
        self._overhead_bytes = max(0, self._overhead_bytes - _CHUNK_OVERHEAD * len(body))
        self._body_left_bytes = max(0, self._body_left_bytes - len(body))
        if self._is_large:  # large bodies need time; how much depends on their pace
            self._since_s = min(self.loop.time(), self._since_s + len(body) / MIN_BYTES_PER_S)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        self._body_left_bytes = 0
        self._since_s = self.loop.time()
        if not self.cycle.response_complete:
            self._all.note_busy(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Unless the next request is complete already, because the client sent it early, wait for it."""
        due = self.pipeline[-1][0] if self.pipeline else self.cycle
        if due is self.cycle and (self._is_in_body or not self.pipeline):
            self._since_s = self.loop.time()
            if not self.transport.is_closing():
                self._all.note_waiting(self)
        super().on_response_complete()
        if self.flow.read_paused and not self.transport.is_closing():
            self.flow.resume_reading()  # there may be room now
            self._parse_on()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _unsupported_upgrade_warning(self) -> None:
        """There are no WebSockets here, and whoever asks for one gets an ordinary response."""

    # --- refusing ---

    def begin_to_linger(self) -> bool:
        """At the end of a response: False if the connection can be closed at once, since the client has sent all."""
        if not self._is_in_body or self._is_refused or self._is_leaving or self._discarded_bytes is not None:
            return False
        self._discarded_bytes = 0
        self._received = b""
        self._since_s = self.loop.time()
        self._all.note_waiting(self)
        FlowControl.resume_reading(self.flow)  # also if it is full
        return True

    def close_if_late(self, now_s: float) -> None:
        limits = self._limits
        if self._discarded_bytes is not None:
            if now_s - self._since_s > _LINGER_S:
                self.transport.abort()
            return
        if self._is_in_body and (self.flow.read_paused or self.cycle.waiting_for_100_continue):
            self._since_s = now_s  # what is late is our reading: a user's imports wait for each other (limits.py)
            return
        if now_s - self._since_s <= (limits.body_timeout_s if self._is_in_body else limits.head_timeout_s):
            return
        if self._is_in_body or self._head_bytes:
            self._refuse(make_problem(408, "request_timeout", "The request did not arrive in time.", headers=_CLOSE))
        else:
            self._is_refused = True
            self.transport.close()

    def _abort(self) -> None:
        """Close before the response is complete; what its client has not accepted yet is not waited for."""
        if self._running is not None:
            self._running.disconnected = True  # or uvicorn would log that the response has no end
        self.transport.abort()

    def _refuse(self, problem: Response) -> None:
        """Answer, unless a response has begun already, and close."""
        self._is_refused = True
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle  # None before the first request
        if cycle is None or not cycle.response_started or cycle.response_complete:
            headers = b"".join(b"%b: %b\r\n" % header for header in problem.raw_headers)
            self.transport.write(STATUS_LINE[problem.status_code] + headers + b"\r\n" + bytes(problem.body))
        self.transport.close()


class _LingeringTransport(GatheringTransport):
    """Seems to be closed while its connection lingers."""

    def __init__(self, transport: asyncio.Transport, connection: LimitedConnection) -> None:
        super().__init__(transport, connection.loop)
        self._connection = connection
        self._is_lingering = False

    def is_closing(self) -> bool:
        return self._is_lingering or super().is_closing()

    def close(self) -> None:
        if super().is_closing() or not self._connection.begin_to_linger():
            super().close()
        else:
            self._flush()
            self._is_lingering = True
            try:
                self._transport.write_eof()
            except OSError:  # the client has left just now
                self._transport.abort()


class _Flow(FlowControl):
    """Reads on only while another request has room."""

    def __init__(self, connection: LimitedConnection) -> None:
        super().__init__(connection.transport)
        self._connection = connection

    def resume_reading(self) -> None:
        if not self._connection.is_full:
            super().resume_reading()


def name_network(host: str) -> str:
    """The address that limits count by: an IPv4 address, or the /64 of an IPv6 address."""
    host = host.partition("%")[0]
    if ":" not in host:
        return host
    if "." in host:  # an IPv4 address, as an IPv6 socket shows it
        return host.rpartition(":")[2]
    head, gap, tail = host.partition("::")
    groups = [group for group in head.split(":") if group]
    if gap:
        last = [group for group in tail.split(":") if group]
        groups += ["0"] * (8 - len(groups) - len(last)) + last
    return ":".join(groups[:4])


def _raise_file_limit() -> int | None:
    """Let this process open as many files as it may; returns how many. None: there is no limit."""
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415  (Windows has none)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (soft, resource.RLIM_INFINITY):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return None if soft == resource.RLIM_INFINITY else soft
