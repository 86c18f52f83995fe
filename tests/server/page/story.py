"""A server that answers the page by a script: eight devices in four groups, and a run with one model.

Everything behind these answers is real: the views, the feed, the application and the web server.
"""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import uvicorn

from fedserver.authority.answers import Known
from fedserver.coordinator.status_types import (
    DeviceFigures,
    DeviceStatus,
    ReleaseGroup,
    ReleaseSummary,
    RolloutStatus,
    RunStatus,
    RunSummary,
    ServerStatus,
    WatchedCluster,
)
from fedserver.page.access import KEY_BYTES, Access
from fedserver.page.app import application
from fedserver.page.asking import Server
from fedserver.page.feed import Feed
from fedserver.page.serve import bound
from fedserver.store.identities.records import DeviceStanding
from fedserver.store.journal.newcomers import PlacementRecord
from fedserver.store.records import Move, RunSpec
from shoal.core.errors import NotFound, Unavailable
from shoal.core.identity.joining import Role
from shoal.core.privacy.cost import Cost
from shoal.core.privacy.report import Statement
from shoal.core.rollout import Sum
from shoal.core.server_kit.history.records import (
    ClusterRound,
    DeviceRound,
    Position,
    RoundHistory,
    RunEvent,
    digest_of,
)
from tests.waiting import HANG

PLAIN = tuple(f"device-{number}" for number in range(1, 9))
HOSTILE = (
    "<img src=x onerror=window.pwned=1>",
    "</script><script>window.pwned=1</script>",
    "\"'><svg onload=window.pwned=1>",
    "javascript:window.pwned=1",
    "\u202egnirts desrever",
    "nul\x00 bell\x07 escape\x1b[31m",
    "x" * 10_000,
    "\u200b\u2066{{constructor.constructor('window.pwned=1')()}}",
)
GROUPED = 4
PLACES = [Position(8.0 * (at % 2) + 0.5 * (at // 4), 8.0 * (at % 4 // 2), 0.3, 0.1, 0.2) for at in range(8)]


@dataclass
class Story:
    """What the server says. rounds: how many of the run with groups are over. away: whether it is."""

    names: Sequence[str] = PLAIN
    rounds: int = 12
    away: bool = False

    def status(self, *, released: bool = True) -> ServerStatus:
        self._answers()
        states = ("working", "working", "idle", "idle", "idle", "absent", "absent", "idle")
        devices = []
        for number, (device, state) in enumerate(zip(self.names, states, strict=True)):
            lease = ("flux", self.rounds, 1) if state == "working" else None
            devices.append(DeviceStatus(device, state, 3.0 * number, self.names[0], lease))
        notices = (f"the disk of {self.names[0]} is full",)
        return ServerStatus("1.2.3", tuple(devices), (self.runs()[0],), notices)

    def runs(self) -> list[RunSummary]:
        self._answers()
        flux = RunSummary("flux", self.names[1], "flux", "default", "open", self.rounds + 1)
        flux = replace(flux, progress=self.rounds, rounds=20)
        fedavg = RunSummary("fedavg", "fedavg", "fedavg", "default", "finished", 10)
        waiting: dict[str, Any] = {
            "title": f"round for {self.names[2]}",
            "waiting_for": "6 of 8 reports are in",
            "waiting_devices": tuple(self.names[:2]),
            "time_left": 90.0,
        }
        return [
            replace(flux, **waiting, created=2_000.0, cluster_count=4, accuracy=0.914),
            replace(fedavg, created=1_990.0, cluster_count=1, accuracy=0.74),
        ]

    def devices(self) -> list[Known]:
        self._answers()
        found = []
        for number, device in enumerate(self.names):
            labels = {"site": self.names[number % 2]}
            standing = DeviceStanding.APPROVED
            found.append(Known(device, Role.TRAIN, labels, standing, 0.0, "", "", last_seen=1.0))
        return found

    def releases(self) -> tuple[list[ReleaseSummary], dict[str, list[Move]], list[RolloutStatus]]:
        """One release, in use and pinned, and a rollout; its group and its reason have hostile names."""
        self._answers()
        groups = (ReleaseGroup(self.names[0], 2, 0.9, 0.01),)
        found = ReleaseSummary("flux@10", "flux", 1_990.0, 10, 2, groups, 0.9, 0.01, "ab12", ("stable",))
        moved = WatchedCluster(self.names[3], 90, 0.62, 0.05, 1_990.0)
        found = replace(found, revoked=(self.names[4],), wrong=self.names[1], watched=(moved,))
        moves = [
            Move("stable", self.names[6], at=1_980.0),
            Move("stable", "flux@10", True, 1_990.0, self.names[2]),
        ]
        counted = Sum(2, 500, 0.97, 400, 300, 310, -0.01, 0.06)
        why = f"too few labels in {self.names[3]}"
        tried = RolloutStatus(
            "4f",
            "stable",
            "flux@10",
            "flux@12",
            0.1,
            0.01,
            1_995.0,
            why=why,
            clusters={self.names[0]: counted},
        )
        return [found], {"stable": moves}, [tried]

    def show(self, run: str) -> RunStatus:
        self._answers()
        for summary in self.runs():
            if summary.run == run:
                return self._shown(summary)
        raise NotFound(f"there is no run {run!r}")

    def _shown(self, summary: RunSummary) -> RunStatus:
        flux = summary.run == "flux"
        released = {
            device: Statement(Cost(0.1 + 0.1 * number), unprotected=(self.names[3],) * (number % 2))
            for number, device in enumerate(self.names)
        }
        return RunStatus(
            summary,
            {f"c{key}": tuple(self.names[key::4]) for key in range(4)} if flux else {"global": ()},
            tuple(self._figures(number, flux) for number in range(8)),
            missing={self.names[0]: f"it said {self.names[1]}"},
            released=released,
            spec=RunSpec(self.names[1], "flux", parameters={"rounds": 20, "note": self.names[4]}),
        )

    def _figures(self, number: int, flux: bool) -> DeviceFigures:
        cluster, accuracy = (f"c{number % 4}", 0.9 + 0.01 * (number % 4)) if flux else ("global", 0.74)
        return DeviceFigures(self.names[number], cluster, accuracy, 0.3, 40, 10_000, 20_000)

    def history(
        self, run: str, after: int = 0, *, devices: bool = True, most: int = 0
    ) -> Iterator[RoundHistory]:
        self._answers()
        found = map(self._round, range(after + 1, self.rounds + 1 if run == "flux" else 1))
        return found if devices else (replace(each, devices=(), positions={}) for each in found)

    def placements(self, run: str = "", device: str = "", after: int = 0) -> Iterator[PlacementRecord]:
        """Three newcomers: one was placed, one chooses by itself, and no cluster fits the third."""
        self._answers()
        one, two, three = self.names[5:8]
        because = f"said {self.names[0]}"
        found = [
            PlacementRecord("flux", one, "descriptor", "placed", "c1", "c0", 0.75, because, ("c1",)),
            PlacementRecord(
                "flux", two, "wish", "handed_out", reason=because, models=("c0", "c1", "c2", "c3")
            ),
            PlacementRecord("flux", three, "scores", "abstained", "c2", "c3", 0.125, because),
        ]
        times = {"since": 2_000.0, "at": 2_001.0}
        numbered = (replace(each, **times, number=number) for number, each in enumerate(found, 1))
        return (each for each in numbered if run in ("", each.run) and each.number > after)

    def _round(self, number: int) -> RoundHistory:
        groups = [f"c{each}" for each in range(4)] if number >= GROUPED else ["global"]
        accuracy = None if number % 2 else 1.0 - 0.7 / number
        clusters = [
            ClusterRound(
                key,
                devices=8 // len(groups),
                loss=(2.0 + 0.1 * at) / number,
                accuracy=None if accuracy is None else accuracy - 0.02 * at,
            )
            for at, key in enumerate(groups)
        ]
        devices = [
            DeviceRound(device, groups[at % len(groups)], worked=1.0 + 0.1 * at)
            for at, device in enumerate(self.names)
        ]
        found = RoundHistory(
            number,
            f"round for {self.names[2]}",
            seconds=2.0 + number % 3,
            progress=number,
            measured_on="train" if number % 2 else "held_out",
            loss=2.0 / number,
            accuracy=accuracy,
            bytes_up=1000,
            bytes_down=2000,
            clusters=tuple(clusters),
            devices=tuple(devices),
        )
        if number == GROUPED:
            event = RunEvent("grouped", f"8 devices form 4 clusters, said {self.names[0]}")
            places = dict(zip(self.names, PLACES, strict=True))
            found = replace(found, events=(event,), positions=places)
        return replace(found, digest=digest_of(found, {}))

    def _answers(self) -> None:
        if self.away:
            raise Unavailable("no server is running")


@dataclass(frozen=True)
class Served:
    """A page that is served. links: makes one."""

    address: str
    access: Access

    @property
    def link(self) -> str:
        return f"{self.address}/open/{self.access.link(time.time())}"


@contextmanager
def served(story: Story, interval: float = 0.02) -> Iterator[Served]:
    """Serve the page of a story, in a thread."""
    with bound("127.0.0.1:0") as at:
        access = Access(bytes(KEY_BYTES), "story")
        server: uvicorn.Server | None = None
        started = threading.Event()

        async def serve() -> None:
            nonlocal server
            feed = Feed(Server(story), interval)
            app = application(feed, access, "shoal-page")
            server = uvicorn.Server(uvicorn.Config(app, lifespan="off", ws="none", log_level="warning"))
            at.listen()
            asking = asyncio.create_task(feed.ask())
            started.set()
            await server.serve(sockets=[at])
            asking.cancel()

        thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        thread.start()
        assert started.wait(HANG)
        try:
            yield Served(f"http://127.0.0.1:{at.getsockname()[1]}", access)
        finally:
            assert server is not None
            server.should_exit = server.force_exit = True
            thread.join(HANG)
