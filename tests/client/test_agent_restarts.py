"""An agent that is ended at any point and started again sends what it had finished, once."""

import asyncio
import os
from typing import Any

import pytest

from fedclient.agent.agent import Until
from shoal.core.errors import Unavailable
from shoal.core.exchange.link import Failure
from shoal.core.exchange.payload import Payload
from tests.client.memory_server import MemoryLink, MemoryServer
from tests.client.visits import Device, train, trained


def crash(device: Device, server: MemoryServer, kind: str) -> None:
    """End the agent without ceremony at the first call of this kind after the work is done."""

    def away() -> None:
        server.away, server.away_from = 1 << 30, (kind, "leave")

    device.executor.before = [away]
    with pytest.raises(Unavailable):
        device.run(give_up_after=0.05)
    server.away, server.away_from = 0, ()


@pytest.mark.parametrize("kind", ["uploaded", "upload", "report"])
def test_a_finished_result_survives_a_restart(device: Device, server: MemoryServer, kind: str) -> None:
    crash(device, server, kind)
    assert server.reports == []
    restarted = Device(device.root, server)
    restarted.run()
    assert restarted.executor.performed == [2]  # round 1 was not trained again
    assert [(r.round, r.attempt) for r in server.reports] == [(1, 2), (2, 2)]
    assert trained(server, 0) == [0.0, 2.0, 4.0]


def test_a_result_that_waits_does_not_leave_once_consent_is_taken_back(
    device: Device, server: MemoryServer
) -> None:
    device.consents.give("r1", everything=True)
    crash(device, server, "uploaded")
    device.consents.revoke("r1")
    restarted = Device(device.root, server)

    def again() -> None:
        device.consents.give("r1", everything=True)

    restarted.executor.before = [again]
    restarted.run(Until.FINISHED)
    first, second = [report.result for report in server.reports]
    assert isinstance(first, Failure)
    assert first.code == "no-consent"
    assert isinstance(second, Payload)
    assert restarted.executor.performed == [2]
    assert len(server.uploads) == 1


def test_a_result_of_other_work_is_thrown_away(device: Device, server: MemoryServer) -> None:
    crash(device, server, "report")
    server.tasks = [train(server, 1, 5.0)]  # the same round of the same run, and another model
    restarted = Device(device.root, server)
    restarted.run()
    assert restarted.executor.performed == [1]
    assert trained(server, 0) == [0.0, 10.0, 20.0]


def test_a_damaged_outbox_costs_the_work_and_no_more(device: Device, server: MemoryServer) -> None:
    crash(device, server, "report")
    (name,) = os.listdir(device.root / "outbox")
    (device.root / "outbox" / name).write_bytes(b"\xff" * 20)
    restarted = Device(device.root, server)
    restarted.run(Until.ONCE)
    assert restarted.executor.performed == [1]
    assert os.listdir(device.root / "outbox") == []


def test_a_result_whose_blob_is_gone_is_made_again(device: Device, server: MemoryServer) -> None:
    crash(device, server, "report")
    device.executor.store.trim(0)
    server.uploads.clear()
    restarted = Device(device.root, server)
    restarted.run(Until.ONCE)
    assert restarted.executor.performed == [1]
    assert trained(server, 0) == [0.0, 2.0, 4.0]


def test_the_result_is_on_the_disk_before_anything_is_sent(device: Device, server: MemoryServer) -> None:
    seen: list[bool] = []

    class Looking(MemoryLink):
        async def uploaded(self, blob: Any) -> int:
            seen.append(device.outbox.pending() is not None)
            return await super().uploaded(blob)

    agent = device.agent(Looking(server))
    asyncio.run(agent.run(Until.ONCE))
    assert seen == [True]
