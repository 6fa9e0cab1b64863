"""OpenTelemetry traces: a span per turn, step, attempt and tool call, each inside the one before.

`span` uses OpenTelemetry's API, and only if the program has loaded it and set a tracer provider, as every program that
exports traces has: it looks for the module and imports nothing. Libraries load the API wherever it is installed, so the
module alone says nothing. Without a provider a span is one object that does nothing, the same for all. There is none
per token: an attempt of any length costs one span.

A span has ids, numbers and names: the chat, the turn, the model, the kind of an error. It never has a text of a user, a
model or a tool, an argument, an error's message or a traceback: traces leave the machine, and are kept by others.

`indelible serve` and `indelible worker` export traces if the usual variable names a collector
(`OTEL_EXPORTER_OTLP_ENDPOINT`); a program with the library configures OpenTelemetry as it likes.

Must stay true (tests/test_tracing.py): the spans nest as above, over retries and tools; no text is in them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Self

from indelible.errors import IndelibleError

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""The variables that name a collector. The exporter reads them, and the rest of `OTEL_EXPORTER_OTLP_…`, itself."""

AttributeValue = str | int | float | bool


class TracingNotInstalled(IndelibleError):
    """A collector is named, and the packages that send to it are missing."""


class TraceSpan:
    """A span that may be described further while it is open. This one does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def set(self, **attributes: AttributeValue | None) -> None: ...

    def fail(self, error: BaseException) -> None:
        """The work failed. Only the error's class and kind are kept: its message may quote a text."""


class _OpenSpan(TraceSpan):
    def __init__(self, otel: Any, otel_span: Any) -> None:
        self._otel = otel
        self._span = otel_span

    def set(self, **attributes: AttributeValue | None) -> None:
        for name, value in attributes.items():
            if value is not None:
                self._span.set_attribute(f"indelible.{name}", value)

    def fail(self, error: BaseException) -> None:
        kind = getattr(error, "kind", None)
        self._span.set_attribute("error.type", kind if isinstance(kind, str) else type(error).__name__)
        self._span.set_status(self._otel.StatusCode.ERROR)


_NO_SPAN: Final = TraceSpan()


def span(name: str, **attributes: AttributeValue | None) -> AbstractContextManager[TraceSpan]:
    """A span around this block, the child of the one around it. An exception that leaves the block marks it failed."""
    otel = sys.modules.get("opentelemetry.trace")
    if otel is None or isinstance(otel.get_tracer_provider(), otel.ProxyTracerProvider):  # none was set
        return _NO_SPAN
    return _open_span(otel, name, attributes)


@contextmanager
def _open_span(otel: Any, name: str, attributes: dict[str, AttributeValue | None]) -> Iterator[TraceSpan]:
    tracer = otel.get_tracer("indelible")
    with tracer.start_as_current_span(
        f"indelible.{name}", record_exception=False, set_status_on_exception=False
    ) as otel_span:
        opened = _OpenSpan(otel, otel_span)
        opened.set(**attributes)
        try:
            yield opened
        except BaseException as error:
            opened.fail(error)
            raise


@contextmanager
def traces_exported() -> Iterator[bool]:
    """During the block, send spans to the collector that the environment names, if any; whether there is one."""
    wanted = any(os.environ.get(name) for name in ENDPOINTS)
    if not wanted or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        yield False
        return
    try:
        from opentelemetry import trace  # noqa: PLC0415  (the extra `tracing`)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise TracingNotInstalled(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but the exporter is missing. Install indelible[tracing], or unset it."
        ) from error
    name = os.environ.get("OTEL_SERVICE_NAME") or "indelible"
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield True
    finally:
        provider.shutdown()
