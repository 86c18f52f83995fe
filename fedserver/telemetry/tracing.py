"""Traces of rounds for OpenTelemetry: off unless the setting `traces` names a collector.

A round is one trace, sent when it is over: a span for the round, and in it one for each phase that `Meter`
counts. The exporter has a thread and a bounded queue of its own. While the collector is away, spans are
dropped, and no round waits for it.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import shoal
from fedserver.coordinator.history.meter import Meter, Phase
from shoal.core.errors import ConfigError
from shoal.core.server_kit.history.records import RoundHistory
from shoal.core.types import RunId

log = logging.getLogger("shoal.server")

TIMEOUT = 5.0
"""Seconds for one attempt to send spans."""
LONGEST = 1000
"""Characters of a text in a span: titles and reasons may have been written by devices or operators."""


@contextlib.contextmanager
def tracing(meter: Meter, collector: str) -> Iterator[None]:
    """Send a trace of each round to a collector, while the block runs.

    collector: where it takes OTLP over gRPC, such as "http://127.0.0.1:4317"; "" sends nothing. Raises
    ConfigError for another form of address, or if a package is missing.
    """
    if not collector:
        yield
        return
    at = urlsplit(collector)
    if at.scheme not in ("http", "https") or not at.hostname:
        raise ConfigError(
            f"traces: {collector!r} is not the address of a collector", "use traces: http://127.0.0.1:4317"
        )
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(
            "traces need OpenTelemetry, which is not installed",
            "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-grpc",
        ) from None
    about = {"service.name": "fedserver", "service.version": shoal.__version__}
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=collector, insecure=at.scheme == "http", timeout=TIMEOUT)
    provider.add_span_processor(BatchSpanProcessor(exporter, export_timeout_millis=TIMEOUT * 1000))
    meter.trace = Rounds(provider.get_tracer("shoal"))
    log.info("traces of rounds go to %s", collector)
    try:
        yield
    finally:
        meter.trace = None
        provider.shutdown()


class Rounds:
    """Makes a trace of a round that is over. tracer: of OpenTelemetry."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    def __call__(self, run: RunId, closed: RoundHistory, phases: Sequence[Phase]) -> None:
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        if not phases:
            return
        ended = max(each.ended for each in phases)
        began = min(ended - closed.seconds, *(each.began for each in phases))
        facts = {
            "shoal.run": run,
            "shoal.round": closed.round,
            "shoal.title": closed.title[:LONGEST],
            "shoal.devices.asked": closed.asked,
            "shoal.devices.reported": closed.reported,
            "shoal.devices.missing": sorted(closed.missing)[:LONGEST],
        }
        if closed.accuracy is not None:
            facts["shoal.accuracy"] = closed.accuracy
        span = self._tracer.start_span("round", start_time=_nanoseconds(began), attributes=facts)
        if closed.abandoned:
            span.set_status(Status(StatusCode.ERROR, closed.abandoned[:LONGEST]))
        within = set_span_in_context(span)
        for each in phases:
            part = self._tracer.start_span(each.name, within, start_time=_nanoseconds(each.began))
            part.end(_nanoseconds(each.ended))
        span.end(_nanoseconds(ended))


def _nanoseconds(clock: float) -> int:
    return round(clock * 1e9)
