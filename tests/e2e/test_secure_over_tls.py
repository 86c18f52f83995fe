"""Secure aggregation over gRPC and mutual TLS, where processes die and devices drop out or lie.

The masks cancel, so what is expected is exact: the model of the same run in simulation, whose sums
`tests/core/server_kit/test_summing.py` compares with plain ones in fixed point.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedclient.agent.agent import Agent, Until
from fedclient.agent.reporter import Reporter
from fedclient.identity import join
from fedclient.identity.keyring import Keyring
from fedclient.identity.link import SecureLink
from fedclient.store.blobs import BlobStore
from fedclient.store.state import DeviceFolder, Outbox, Status
from fedclient.work.runtime import Runtime, signer_of
from fedserver.authority import setup
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.rpc.client import OperatorClient
from fedserver.store.identities.records import Terms
from fedserver.store.records import RunSpec
from shoal.core.algorithm import find
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import builtin, initial_weights
from shoal.core.engine.bootstrap import Bootstrap
from shoal.core.engine.policy import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import Unavailable
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import Letters
from shoal.core.exchange.payload import Payload, decode, encode
from shoal.core.exchange.summing import Announce, Announced, TrainMasked
from shoal.core.exchange.tensors import digest
from shoal.core.identity.join import parse
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.secure.cohort import KEYS, signed_part
from shoal.core.types import DeviceId, Tensors
from shoal.demo import fleet, processes
from shoal.demo.fleet import Member
from shoal.shell.console import Console
from shoal.shell.crash import VARIABLE
from shoal.simulation.simulated import Simulated
from tests.client.in_process import InProcess
from tests.server.authority.peers import World, play
from tests.server.processes import Daemon, daemon
from tests.server.toys import Hands, pieces_of
from tests.waiting import HANG, free_port, until

from .test_private_run import work
from .test_secure_run import SECURE, Dying, KilledError, few

FEWEST = 8
PATIENT = RoundPolicy(minimum=FEWEST, deadline=3600.0, device_timeout=3600.0, wait_for_devices=3600.0)
"""Only what happens decides, and never how long it took."""
Wrap = Callable[[Runtime], InProcess]


def spec() -> RunSpec:
    return replace(
        processes.spec("fedavg"), name="secure", parameters={**SECURE, "rounds": 1}, policy=PATIENT
    )


class GoneError(Exception):
    """The device leaves, and does not come back."""


class Leaving(InProcess):
    """Leaves when it is asked for its masked update."""

    async def perform(self, task: Task) -> Payload | Failure:
        if task.payload.kind == TrainMasked.kind:
            raise GoneError
        return await super().perform(task)


class Lying(InProcess):
    """Announces keys with another proof than its own. proof: of what would have to be signed."""

    def __init__(self, runtime: Runtime, proof: Callable[[bytes], bytes]) -> None:
        super().__init__(runtime)
        self._proof = proof

    async def perform(self, task: Task) -> Payload | Failure:
        found = await super().perform(task)
        if task.payload.kind != Announce.kind or not isinstance(found, Payload):
            return found
        asked: Any = decode(task.payload, {Announce.kind: Announce}, _no_tensors)
        reply: Any = decode(found, {Announced.kind: Announced}, _no_tensors)
        keys = reply.keys.by_device[""][:KEYS]
        proof = self._proof(signed_part(asked.session, keys))
        return encode(Announced(Letters({"": keys + proof})), _no_tensors)


def _no_tensors(_: Any) -> Any:
    raise AssertionError("announcements have no tensors")


async def visit(folder: Path, one: Member, wrap: Wrap, end: Until = Until.FINISHED) -> int:
    """Take part as `fedclient run` does. Returns how often the device died."""
    died, state = 0, DeviceFolder(folder / one.name)
    config = replace(work(state.root, one.train, True, Budget()), identity=state.identity)
    identity = Keyring(state.identity).identity()
    assert identity is not None
    while True:
        reporter = Reporter(Status(one.name, "here"), state.root, lambda text: None, lambda text: None)
        link = SecureLink(Keyring(state.identity), identity, lambda text: None)
        try:
            outbox, store = Outbox(state.outbox), BlobStore(config.blobs)
            agent = Agent(link, wrap(Runtime.open(config)), store, outbox, state.mark, reporter)
            await agent.run(end)
            return died
        except KilledError:
            died += 1
        except GoneError:
            await link.leave()
            return died
        finally:
            await link.close()


LEARNER = builtin(fleet.LEARNER["builtin"], fleet.LEARNER["options"])  # type: ignore[arg-type]
FIRST = initial_weights(LEARNER, 0)


def simulated(members: list[Member], absent: dict[DeviceId, type[Message]]) -> str:
    """The hash of the run's model in simulation. absent: who drops out, and at which question."""
    card, _ = find("fedavg")
    memories: dict[DeviceId, Tensors] = {}

    def device(one: Member) -> Callable[[Message, int], Message]:
        views = Views.of(replace(one.train, x=one.train.x.reshape(-1, 1, 8, 8)))
        context = DeviceContext(LEARNER, views, "cpu", 0, np.random.default_rng())
        usual = Simulated(card.device(), context, one.name, memories)

        def perform(message: Message, seed: int) -> Message:
            if isinstance(message, absent.get(one.name, ())):
                raise Unavailable("gone")
            return usual(message, seed)

        return perform

    half = Bootstrap(card.server(), card.configure("default", spec().parameters))
    devices = {one.name: device(one) for one in members}
    outcome = simulate(half, half.start(FIRST, half.parameters), devices, PATIENT, spec().seed)
    assert not outcome.failed
    return digest(outcome.state.models["global"])


def test_the_server_dies_after_every_exchange_and_a_device_dies_in_every_one(tmp_path: Path) -> None:
    state, members = tmp_path / "server", [few(number) for number in range(FEWEST)]
    address, join_address = (f"127.0.0.1:{free_port()}" for _ in range(2))
    setup.init(state, ("127.0.0.1",), address, join_address, "clinic")
    kinds = {"announce", "share", "train_masked", "unmask"}

    async def devices() -> list[int]:
        def wrap(one: Member) -> Wrap:
            return lambda runtime: Dying(runtime, kinds if one is members[3] else set())

        return await asyncio.gather(*(visit(tmp_path, one, wrap(one)) for one in members))

    async def story() -> list[int]:
        dies = {VARIABLE: "server.round-saved"}
        with daemon(state, options=(), environment=dies) as server, OperatorClient(state) as operator:
            _, line = operator.create_token(Terms(uses=len(members)))
            string = parse(line)
            joining = (join.join(DeviceFolder(tmp_path / m.name), string, m.name, Console()) for m in members)
            await asyncio.gather(*joining)
            operator.start_run(spec(), FIRST)
            playing = asyncio.ensure_future(devices())
            await killed(server, playing)
        for _ in range(2):
            with daemon(state, options=(), environment=dies) as server:
                await killed(server, playing)
        with daemon(state, options=()), OperatorClient(state) as operator:
            died = await playing
            *_, status = await asyncio.to_thread(lambda: list(operator.watch("secure")))
        assert status.summary.stage == "finished", status
        assert not status.abandoned
        assert status.models["global"].blob.sha256 == simulated(members, {})
        return died

    assert asyncio.run(story()) == [4 if number == 3 else 0 for number in range(FEWEST)]


async def killed(server: Daemon, playing: "asyncio.Future[list[int]]") -> None:
    """Wait until the server has died where it had to."""
    end = asyncio.ensure_future(asyncio.to_thread(server.process.wait, HANG))
    await asyncio.wait([playing, end], return_when=asyncio.FIRST_COMPLETED)
    assert server.process.poll() == -9, server.log.read_text()


def test_one_device_drops_out_and_two_that_lie_about_their_keys_end_no_round(tmp_path: Path) -> None:
    members = [few(number) for number in range(FEWEST + 3)]
    gone, liar, thief = (one.name for one in members[FEWEST:])

    async def story(world: World) -> None:
        line = await world.token(uses=len(members))
        await asyncio.gather(
            *(join.join(DeviceFolder(tmp_path / one.name), line, one.name, Console()) for one in members)
        )

        def of_another(data: bytes) -> bytes:
            return signer_of(DeviceFolder(tmp_path / members[0].name).identity).sign(data)

        wraps: dict[str, Wrap] = {
            gone: Leaving,
            liar: lambda runtime: Lying(runtime, lambda data: b"\0\1-"),
            thief: lambda runtime: Lying(runtime, of_another),
        }
        playing = [
            asyncio.ensure_future(visit(tmp_path, one, wraps.get(one.name, InProcess), Until.STOPPED))
            for one in members
        ]
        await until(lambda: len(world.coordinator.visitors) == len(members))
        operator = OperatorApi(world.coordinator)
        hands = Hands(operator)  # type: ignore[arg-type]
        weights = hands.keep(FIRST)
        await operator.upload(weights.blob, 0, pieces_of(hands.blobs[weights.blob.sha256], 4096))
        await operator.start_run(spec(), weights)
        run = world.coordinator.runs["secure"]
        await until(lambda: run.standing.value != "active" or any(each.done() for each in playing[:FEWEST]))
        for each in playing:
            each.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
        status = await operator.show("secure")
        lines = [line.text for line in await operator.log("secure", 0)]
        assert status.summary.stage == "finished", lines
        assert not status.abandoned
        refused = {liar: "did not sign its keys", thief: "are signed by another device"}
        for name, why in refused.items():
            assert any(why in text and repr(name) in text for text in lines), lines
        expected = simulated(members, {gone: TrainMasked, liar: Announce, thief: Announce})
        assert status.models["global"].blob.sha256 == expected

    play(story, tmp_path / "server")
