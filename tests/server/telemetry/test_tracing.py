"""Traces of rounds, as a collector of OpenTelemetry gets them over gRPC."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedserver.config import ServerConfig
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.history.meter import MAX_PHASES, Meter
from fedserver.telemetry.tracing import tracing
from shoal.core.errors import ConfigError
from shoal.core.server_kit.history.records import RoundHistory
from tests.server.servers import DEVICES, scenario, serve_all, start

PHASES = ["plan", "devices", "combine", "checkpoint", "save"]


@contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """A collector: its address, and the spans that it has got."""
    needed = "traces need the extra otel"
    pytest.importorskip("opentelemetry.sdk", reason=needed)
    pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason=needed)
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as stubs

    spans: list[Any] = []

    class Collector(stubs.TraceServiceServicer):  # type: ignore[misc]
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 -- the name of the call
            for resource in request.resource_spans:
                spans.extend(span for scope in resource.scope_spans for span in scope.spans)
            return pb.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    stubs.add_TraceServiceServicer_to_server(Collector(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", spans
    finally:
        server.stop(0).wait()


def test_each_round_is_a_trace_with_its_phases(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        with tracing(coordinator.meter, address):
            await start(coordinator)
            await serve_all(coordinator)

    with collector() as (address, spans):
        scenario(story, tmp_path)
    rounds = {span.span_id: span for span in spans if span.name == "round"}
    assert len(rounds) >= 3
    for number, root in enumerate(rounds.values(), 1):
        facts = {each.key: each.value for each in root.attributes}
        assert facts["shoal.run"].string_value == "toy"
        assert facts["shoal.round"].int_value == number
        assert facts["shoal.devices.reported"].int_value == DEVICES
        parts = [span for span in spans if span.parent_span_id == root.span_id]
        assert [part.name for part in sorted(parts, key=lambda each: each.end_time_unix_nano)] == PHASES
        assert {part.trace_id for part in parts} == {root.trace_id}
        begins, ends = root.start_time_unix_nano, root.end_time_unix_nano
        assert all(begins <= part.start_time_unix_nano <= part.end_time_unix_nano <= ends for part in parts)
    assert len({root.trace_id for root in rounds.values()}) == len(rounds)


def test_an_abandoned_round_says_why_and_a_collector_that_is_away_stops_nothing() -> None:
    closed = RoundHistory(7, "train", seconds=2.0, asked=3, reported=1, abandoned="too few reports")
    with collector() as (address, spans):
        meter = Meter()
        with tracing(meter, address):
            meter.add_seconds("toy", "plan", 0.5)
            meter.round_over("toy", closed)
    (root,) = (span for span in spans if span.name == "round")
    assert root.status.message == "too few reports"
    assert root.end_time_unix_nano - root.start_time_unix_nano == pytest.approx(2e9, rel=1e-3)
    with tracing(meter, address):  # nothing is there any more
        meter.add_seconds("toy", "plan", 0.5)
        meter.round_over("toy", closed)
    assert meter.rounds["abandoned"] == 2


def test_without_a_collector_nothing_is_collected() -> None:
    meter = Meter()
    with tracing(meter, ""):
        meter.add_seconds("toy", "plan", 0.5)
        assert (meter.trace, meter._phases) == (None, {})
    assert meter.seconds == {"plan": 0.5}


def test_a_run_whose_rounds_never_end_takes_little_memory() -> None:
    meter = Meter()
    meter.trace = lambda *found: None
    for _ in range(10 * MAX_PHASES):
        meter.add_seconds("toy", "combine", 0.1)
    assert len(meter._phases["toy"]) == MAX_PHASES


@pytest.mark.parametrize("address", ["localhost:4317", "ftp://localhost", "http://", "nonsense"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="not the address of a collector"), tracing(Meter(), address):
        pass
    assert ServerConfig().traces == ""
