"""A server is restarted while devices work, and operators see it all the time that it runs."""

import time
from contextlib import ExitStack
from pathlib import Path

from fedserver.coordinator.status_types import DeviceStatus
from fedserver.rpc.client import OperatorClient
from shoal.core.errors import Unavailable
from tests.e2e.places import Place
from tests.waiting import HANG

NAMES, RESTARTS = ("attic", "cellar"), 2


def test_no_status_fails_because_devices_come_back(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with ExitStack() as agents:
        for restart in range(1 + RESTARTS):
            with place.up():
                if not restart:
                    settings = [place.joined(name) for name in NAMES]
                    for name, path in zip(NAMES, settings, strict=True):
                        line = ("-m", "fedclient", "run", "-c", path)
                        agents.enter_context(place.running(name, *line))
                assert watched(place) > 0
            (place.state / "address").unlink(missing_ok=True)


def watched(place: Place) -> int:
    """How often all could be seen until both devices were back. A server that starts answers only later."""
    seen, until = 0, time.monotonic() + HANG
    while True:
        try:
            with OperatorClient(place.state) as operator:
                devices = operator.status().devices
        except Unavailable:
            assert not seen, "it answered before"
        else:
            seen += 1
            if len(devices) == len(NAMES) and all(map(is_back, devices)):
                return seen
        assert time.monotonic() < until, {name: place.log(name) for name in ("server", *NAMES)}


def is_back(device: DeviceStatus) -> bool:
    assert (device.last_seen is None) <= (device.presence in ("absent", "expected"))
    return device.presence == "idle"
