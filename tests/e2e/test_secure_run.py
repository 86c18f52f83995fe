"""Secure aggregation by real devices: identities, ledgers, outboxes, and one that dies between two lines."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclient.agent.agent import Agent, Until
from fedclient.agent.reporter import Reporter
from fedclient.identity.keyring import Keyring
from fedclient.store.blobs import BlobStore
from fedclient.store.ledger import Ledger
from fedclient.store.state import DeviceFolder, Outbox, Status
from fedclient.work.runtime import Runtime
from fedserver.config import Settings
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.operator_api import OperatorApi
from shoal.core.engine.policy import RoundPolicy
from shoal.core.errors import ConfigError
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.payload import Payload, decode, encode
from shoal.core.exchange.summing import Announce, Announced
from shoal.core.identity.signing import Signatures
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.ledger.entries import Failed, Open, Summed, chosen
from shoal.core.privacy.report import OPEN
from shoal.core.privacy.secure.cohort import KEYS, check_announcement
from shoal.demo import processes
from shoal.demo.fleet import Member
from tests.client.federation import Authority, Federation
from tests.client.in_process import InProcess

from .test_private_run import member, work

DEVICES, IMAGES = 8, 90
SECURE: dict[str, Any] = {
    "rounds": 2,
    "epochs": 1,
    "evaluate": False,
    "aggregation": "mean",
    "secure_aggregation": True,
    "central_clip": 10.0,
}
POLICY = RoundPolicy(minimum=DEVICES, wait_for_devices=600.0)  # for a device that comes back


class KilledError(BaseException):
    """The device's process ends here."""


class Dying(InProcess):
    """Dies once in the first task of each of these kinds, when the work is done and nothing is kept of it."""

    def __init__(self, runtime: Runtime, kinds: set[str]) -> None:
        super().__init__(runtime)
        self._kinds = kinds

    async def perform(self, task: Task) -> Payload | Failure:
        found = await super().perform(task)
        if task.payload.kind in self._kinds:
            self._kinds.remove(task.payload.kind)
            raise KilledError
        return found


def few(number: int) -> Member:
    """A device with a few digits."""
    whole = member(0)
    some = slice(number * 20, number * 20 + IMAGES)
    return Member(f"device-{number}", 0, whole.train.subset(some))


async def visit(
    coordinator: Coordinator, folder: Path, one: Member, federation: Federation, kinds: set[str]
) -> int:
    """Train until the run is over. Returns how often the device died."""
    root, died = folder / one.name, 0
    config = work(root, one.train, True, Budget())
    identity = DeviceFolder(root).identity
    Keyring(identity).keep(federation.identity_for(one.name))
    while True:
        executor = Dying(Runtime.open(replace(config, identity=identity)), kinds)
        reporter = Reporter(Status(one.name, "here"), root, lambda text: None, lambda text: None)
        link, outbox = DeviceApi(coordinator, one.name), Outbox(root / "outbox")
        agent = Agent(link, executor, BlobStore(config.blobs), outbox, DeviceFolder(root).mark, reporter)
        try:
            await agent.run(Until.FINISHED)
            return died
        except KilledError:
            died += 1


def test_devices_with_certificates_train_and_one_dies_in_every_exchange(tmp_path: Path) -> None:
    federation, members = Federation(), [few(number) for number in range(DEVICES)]
    run = replace(processes.spec("fedavg"), name="secure", parameters=SECURE, policy=POLICY)
    deaths = [
        {"announce", "share", "train_masked", "unmask"} if number == 3 else set() for number in range(8)
    ]

    async def play() -> None:
        coordinator = await Coordinator.open(tmp_path / "server", Settings(tick=0.05))
        try:
            await OperatorApi(coordinator).start_run(run, None)
            died = await asyncio.gather(
                *(
                    visit(coordinator, tmp_path, one, federation, kinds)
                    for one, kinds in zip(members, deaths, strict=True)
                )
            )
            status = await OperatorApi(coordinator).show("secure")
            lines = [line.text for line in await OperatorApi(coordinator).log("secure", 0)]
            assert status.summary.stage == "finished", lines
            assert died == [4 if number == 3 else 0 for number in range(8)]
            assert sum("8 of 8 devices counted" in line for line in lines) == 8, lines
            model = coordinator.runs["secure"].engine.state.models["global"]
            assert all(np.isfinite(array).all() for array in model.values())
        finally:
            await coordinator.close()

    asyncio.run(play())
    for one in members:
        entries = Ledger(DeviceFolder(tmp_path / one.name).privacy, Budget()).verify()
        assert [each.what for each in chosen(entries, Open)] == [OPEN["summed"]]
        assert chosen(entries, Failed) == []
        sums = chosen(entries, Summed)  # one of each round, also where the work was done twice
        sent = [each.update for each in sums]
        assert len({each.cohort for each in sent}) == len(sums) == SECURE["rounds"]
        assert {each.run for each in sums} == {"secure"}
        assert {(each.devices, each.fewest, each.clip, each.noise) for each in sent} == {
            (8, 6, SECURE["central_clip"], 0.0)
        }


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (RoundPolicy(minimum=7), "secure aggregation needs 8 devices"),
        (RoundPolicy(devices=9, minimum=9), "all devices take part in each round"),
    ],
)
def test_a_policy_that_could_not_work_is_refused_before_the_run_starts(
    tmp_path: Path, policy: RoundPolicy, reason: str
) -> None:
    run = replace(processes.spec("fedavg"), name="secure", parameters=SECURE, policy=policy)

    async def play() -> None:
        coordinator = await Coordinator.open(tmp_path, Settings(tick=0.05))
        try:
            with pytest.raises(ConfigError, match=reason):
                await OperatorApi(coordinator).start_run(run, None)
        finally:
            await coordinator.close()

    asyncio.run(play())


def test_keys_are_signed_with_the_certificate_that_the_device_has_now(tmp_path: Path) -> None:
    """A device goes on for months, and the server's key may change meanwhile."""
    federation, one = Federation(), few(0)
    config = work(tmp_path, one.train, True, Budget())
    folder = DeviceFolder(tmp_path).identity
    Keyring(folder).keep(federation.identity_for(one.name))
    runtime = Runtime.open(replace(config, identity=folder))
    proofs = []
    for number, authority in enumerate((federation.authority, Authority.made())):
        there = Federation(authority)
        Keyring(folder).keep(there.identity_for(one.name))
        announce = encode(Announce(f"sum {number}"), BlobStore(config.blobs).keep)
        found = runtime.perform(Task("secure", number + 1, 1, 0, "", announce))
        assert isinstance(found, Payload), found
        reply: Any = decode(found, {Announced.kind: Announced}, BlobStore(config.blobs).load)
        announcement = reply.keys.by_device[""]
        check_announcement(
            f"sum {number}", one.name, announcement, Signatures("shoal", authority.certificate)
        )
        proofs.append(announcement[KEYS:])
    assert proofs[0] != proofs[1]
