"""A gateway that loses its server, or hears from it late: its devices are neither refused nor forgotten."""

from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from fedserver.rpc.gateway import brain, carrying
from shoal.core.exchange._pb.fed.v1 import observer_service_pb2 as observer_pb
from shoal.core.exchange._pb.fed.v1.device_service_pb2_grpc import DeviceServiceStub
from shoal.core.exchange._pb.fed.v1.observer_service_pb2_grpc import ObserverServiceStub
from shoal.core.identity.certificates import new_key
from shoal.core.identity.joining import Role
from tests.server.authority.peers import World, play, refused
from tests.server.gateways import HELLO, added, behind, gateway, hello, waiting_behind
from tests.waiting import HANG, until


def test_a_call_whose_connection_the_gateway_closes_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has fallen silent: nothing that went to it comes back."""
    monkeypatch.setattr(brain, "LARGE", 0)  # the call goes by itself
    monkeypatch.setattr(carrying, "SIGN_OF_LIFE", 0.1)

    async def story(world: World) -> None:
        async with gateway(await added(world, tmp_path / "gate")) as found:
            device = await world.device("attic")
            async with waiting_behind(world, device, found) as waiting:
                monkeypatch.setattr(brain, "SILENCE", 0.0)
                error, fault = await refused(waiting)
                assert (error.code(), fault.code) == (grpc.StatusCode.UNAVAILABLE, "unavailable")

    play(story, tmp_path / "s")


@pytest.mark.parametrize("large", [0, brain.LARGE])
def test_a_server_that_stops_still_answers_what_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(brain, "LARGE", large)  # 0: the call goes by itself; else it goes in a batch
    monkeypatch.setattr(brain, "GRACE", HANG)

    async def story(world: World) -> None:
        async with gateway(await added(world, tmp_path / "gate")) as found:
            device = await world.device("attic")
            async with waiting_behind(world, device, found) as waiting:
                assert world.listeners.gateways is not None
                world.listeners.gateways.close()
                await until(lambda: not found.brain.here.is_set())
                world.coordinator.stop_serving()
                _, fault = await refused(waiting)
                assert fault.message == "the server is stopping"

    play(story, tmp_path / "s")


@pytest.mark.parametrize("role", [Role.TRAIN, Role.OBSERVER])
def test_a_device_that_the_gateway_has_not_heard_of_yet_is_judged_by_the_server(
    tmp_path: Path, role: Role
) -> None:
    async def story(world: World) -> None:
        async with gateway(await added(world, tmp_path / "gate")) as found:
            found.brain._hear = lambda heard: None  # what the server says is late
            device = behind(await world.device("attic", role=role), found)
            next_key = new_key()
            identity = await device.renew(next_key)
            device.go_on(next_key, identity)
            if role is Role.TRAIN:
                await hello(device)
            async with device.channel() as channel:
                observed = ObserverServiceStub(channel).ObserveRuns(observer_pb.ObserveRunsRequest())
                if role is Role.OBSERVER:
                    await observed
                else:
                    error, _ = await refused(observed)
                    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
            stranger = world.peers.authority.issue("attic", device.key.public_key())
            assert device.issued is not None
            device.issued = replace(device.issued, certificate=stranger.pem)
            async with device.channel() as channel:
                error, fault = await refused(DeviceServiceStub(channel).Hello(HELLO))
                assert (error.code(), fault.code) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")

    play(story, tmp_path / "s")


def test_devices_of_a_gateway_that_has_long_had_no_server_are_sent_to_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        async with gateway(await added(world, tmp_path / "gate")) as found:
            device = behind(await world.device("attic"), found)
            await hello(device)
            await world.api.revoke("gate", "")
            await until(lambda: not found.brain.here.is_set())
            for takeover, code in ((HANG, "unavailable"), (0.0, "not-leader")):
                monkeypatch.setattr(brain, "TAKEOVER", takeover)
                async with device.channel() as channel:
                    error, fault = await refused(DeviceServiceStub(channel).Hello(HELLO))
                assert (error.code(), fault.code) == (grpc.StatusCode.UNAVAILABLE, code)

    play(story, tmp_path / "s")
