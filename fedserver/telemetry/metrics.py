"""Metrics for Prometheus, at an address of their own: off unless the setting `metrics` names one.

A scrape comes on a thread of its own; the figures are taken on the server's event loop, between two
decisions, so that no scrape sees a half. Every metric is here, `deploy/monitoring/` has a dashboard and alert
rules, and a test compares the two.
"""

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from fedserver.addresses import host_and_port, host_of
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.status_types import PRESENCES, RolloutStatus, ServerStatus, WatchedCluster
from fedserver.coordinator.watching import watched
from shoal.core.errors import ConfigError

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

log = logging.getLogger("shoal.server")

TIMEOUT = 10.0
"""Seconds that a scrape waits for the server."""
AT_ONCE, SILENCE_SECONDS = 8, 10.0
"""How many connections are open at a time, and the seconds for which one may be silent."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
FRESH_SECONDS = 60.0
"""Seconds after which the state of devices and their privacy is asked again: a large fleet has many rows."""


@dataclass(frozen=True)
class Figures:
    """What a scrape shows, apart from the counts of `Meter`. notices: problems that need a person. watched:
    of each release, what devices say of their data."""

    status: ServerStatus
    free: int
    needed: int
    notices: int
    places: Mapping[str, int]
    watched: Mapping[str, tuple[WatchedCluster, ...]]
    rollouts: tuple[RolloutStatus, ...] = ()


@contextlib.contextmanager
def metrics(coordinator: Coordinator, address: str, places: Callable[[], Mapping[str, int]]) -> Iterator[str]:
    """Serve metrics at HOST:PORT while the block runs; give the address with the port that was taken.

    An empty address serves nothing. Raises ConfigError if it cannot be used, or a package is missing.
    """
    if not address:
        yield ""
        return
    host, port = host_and_port("metrics", address)
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        raise ConfigError(
            "metrics need prometheus-client, which is not installed", "pip install prometheus-client"
        ) from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(coordinator, places))
    try:
        server = Scrapes(host.strip("[]"), port, registry)
    except OSError as error:
        raise ConfigError(f"metrics cannot be served at {address}: {error.strerror}", "use another") from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    log.info("metrics at http://%s:%d/metrics", host, server.server_port)
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Scrape(WSGIRequestHandler):
    """One connection. timeout: seconds for which it may be silent."""

    timeout = SILENCE_SECONDS

    def handle(self) -> None:
        with contextlib.suppress(TimeoutError, ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Scrapes(ThreadingMixIn, WSGIServer):
    """The port of the metrics: a few connections at a time, each for a short time, since they share the
    server's process. On a loopback address only programs of this machine are answered: a page in a browser,
    which may be from anywhere, names another host."""

    daemon_threads = True

    def __init__(self, host: str, port: int, registry: "CollectorRegistry") -> None:
        from prometheus_client import make_wsgi_app

        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Scrape)
        self._scrape: WSGIApplication = make_wsgi_app(registry)
        self._hosts = {*LOOPBACK, host} if host in LOOPBACK else None
        self._places = threading.Semaphore(AT_ONCE)
        self.set_app(self._answer)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        name = host_of(environ.get("HTTP_HOST", "localhost")).strip("[]")
        if self._hosts is None or name in self._hosts:
            return self._scrape(environ, start_response)
        start_response("421 Misdirected Request", [("Content-Type", "text/plain")])
        return [b"this is not a name of this machine\n"]


class Collector:
    """What prometheus_client asks for metrics at each scrape."""

    def __init__(self, coordinator: Coordinator, places: Callable[[], Mapping[str, int]]) -> None:
        self._coordinator, self._places = coordinator, places
        self._loop = asyncio.get_running_loop()
        self._status: ServerStatus | None = None
        self._watched: Mapping[str, tuple[WatchedCluster, ...]] = {}
        self._asked = 0.0

    def describe(self) -> Iterable["Metric"]:
        return ()

    def collect(self) -> Iterable["Metric"]:
        waiting = asyncio.run_coroutine_threadsafe(self._figures(), self._loop)
        try:
            found = waiting.result(TIMEOUT)
        except Exception:
            waiting.cancel()
            log.warning("a scrape of the metrics failed", exc_info=True)
            raise
        return [*_of_meter(self._coordinator), *_of_figures(found)]

    async def _figures(self) -> Figures:
        coordinator = self._coordinator
        if self._status is None or time.monotonic() - self._asked >= FRESH_SECONDS:
            self._status, self._asked = await OperatorApi(coordinator).status(), time.monotonic()
            self._watched = await watched(coordinator.storage)
        known = await coordinator.storage.call(coordinator.storage.journal.trainers)
        runs = tuple(coordinator.summary(run, known) for run in coordinator.runs.values())
        return Figures(
            replace(self._status, runs=runs),
            await asyncio.to_thread(coordinator.storage.space.free),
            coordinator.low_water(),
            len(coordinator.notices()),
            self._places(),
            self._watched,
            tuple(await coordinator.rollouts.all()),
        )


def _of_meter(coordinator: Coordinator) -> Iterator["Metric"]:
    meter = coordinator.meter
    moved = {"up": meter.uploaded, "down": meter.downloaded}
    yield _counter("shoal_reports", "Reports of devices, by outcome.", "outcome", meter.reports)
    yield _counter("shoal_refusals", "Calls that ended in an error, by its code.", "code", meter.refusals)
    yield _counter("shoal_rounds", "Rounds that are over, by result.", "result", meter.rounds)
    yield _counter("shoal_bytes", "Bytes of blobs that devices sent or fetched.", "direction", moved)
    yield _counter("shoal_round_seconds", "Seconds spent in rounds, by phase.", "phase", meter.seconds)


def _of_figures(found: Figures) -> Iterator["Metric"]:
    status = found.status
    presences = Counter(device.presence for device in status.devices)
    spent = [each.protected for each in status.released.values() if each.cost]
    active = [run for run in status.runs if not run.over]
    yield _gauge("shoal_info", "The version of the server.", {(status.version,): 1.0}, "version")
    yield _gauge("shoal_notices", "Problems that need a person.", {(): found.notices})
    yield _gauge("shoal_disk_free_bytes", "Free bytes on the disk of the state folder.", {(): found.free})
    yield _gauge("shoal_disk_needed_bytes", "Bytes that should stay free there.", {(): found.needed})
    places = {(kind,): left for kind, left in found.places.items()}
    left = "Calls, calls that wait for a task, and transfers that devices may still begin."
    yield _gauge("shoal_places_left", left, places, "kind")
    here = {(each,): presences[each] for each in PRESENCES}
    yield _gauge("shoal_devices", "Known devices, by state; at most a minute old.", here, "state")
    stages = Counter((run.stage,) for run in status.runs)
    yield _gauge("shoal_runs", "Runs, by stage.", stages, "stage")
    for name, text, value in (
        ("progress", "Rounds of training that are complete.", lambda run: run.progress),
        ("rounds", "Rounds of training in all.", lambda run: run.rounds),
        ("clusters", "Clusters with devices.", lambda run: run.cluster_count),
        (
            "accuracy",
            "Mean held-out accuracy, 0 to 1; of numbers, the variance explained.",
            lambda run: run.accuracy,
        ),
        ("waiting_devices", "Devices that the run waits for.", lambda run: len(run.waiting_devices)),
    ):
        values = {(run.run, run.algorithm): value(run) for run in active}
        known = {labels: each for labels, each in values.items() if each is not None}
        yield _gauge(f"shoal_run_{name}", f"{text} Of runs that are not over.", known, "run", "algorithm")
    text = "Accuracy of the release that is tried less that of the present one, by the labels so far."
    gains = {
        (rollout.channel, key): (each.new_right - each.old_right) / each.labeled
        for rollout in found.rollouts
        if not rollout.outcome
        for key, each in rollout.clusters.items()
        if each.labeled
    }
    yield _gauge("shoal_rollout_gain", text, gains, "channel", "cluster")
    yield _gauge(
        "shoal_privacy_epsilon_max",
        "The largest epsilon that a device has spent on releases with a guarantee, over all runs.",
        {(): max(spent, default=0.0)},
    )
    moved = {
        (release, each.key): each.share
        for release, clusters in found.watched.items()
        for each in clusters
        if each.since is not None
    }
    yield _gauge(
        "shoal_moved_share",
        "The share of devices whose data have moved, by what they say, where it is more than chance.",
        moved,
        "release",
        "cluster",
    )
    open_devices = sum(bool(each.unprotected) for each in status.released.values())
    yield _gauge(
        "shoal_unprotected_devices",
        "Devices that released something without a guarantee.",
        {(): open_devices},
    )


def _counter(name: str, text: str, label: str, values: Mapping[str, float]) -> "Metric":
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _gauge(name: str, text: str, values: Mapping[Any, Any], *labels: str) -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(list(key), float(value))
    return family
