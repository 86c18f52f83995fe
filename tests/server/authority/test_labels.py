"""Runs that take only devices with certain labels, which their tokens gave them."""

from pathlib import Path

import pytest

from fedserver.cli.runs.policy import Devices, DevicesType
from fedserver.config import read_run
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.rpc.wire import operator_wire
from shoal.core.engine.policy import RoundPolicy
from shoal.core.errors import ConfigError
from tests.server.authority.peers import World, play
from tests.server.servers import scenario, spec, start
from tests.server.toys import Hands

BASEL = {"site": "basel"}
WANTED = {"site": "basel", "kind": "cam"}


def test_a_run_takes_only_devices_with_all_of_its_labels(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        two = RoundPolicy(devices=2, minimum=2)
        await start(found.coordinator, name="cams", labels=WANTED, policy=two)
        await start(found.coordinator, name="all", policy=two)
        terms = {"a": WANTED, "b": BASEL, "c": {**WANTED, "floor": "2"}, "d": {**WANTED, "kind": "lidar"}}
        peers = {name: await found.device(name, labels=labels) for name, labels in terms.items()}
        late = await found.device("late", labels=WANTED)
        assert late.name == "late"
        for name, peer in peers.items():
            if name == "c":
                runs = (await OperatorApi(found.coordinator).status()).runs
                summary = next(run for run in runs if run.run == "cams")
                assert summary.waiting_for.startswith("1 of 2 devices are here")
                assert summary.waiting_devices == ("c", "late")
            async with peer.channel() as channel:
                hands = await Hands(peer.link(channel)).hello()
                await hands.link.next_task(0.0)
        cams, everyone = found.coordinator.runs["cams"], found.coordinator.runs["all"]
        assert [name for name in terms if cams.present(name)] == ["a", "c"]
        assert [name for name in terms if everyone.present(name)] == list(terms)
        assert sorted(cams.engine.plan.tasks) == ["a", "c"]
        # A run that is started later takes those of them that are connected.
        await start(found.coordinator, name="basel", labels=BASEL, policy=two)
        assert found.coordinator.connected(BASEL) == ("a", "b", "c", "d")
        assert found.coordinator.connected(WANTED) == ("a", "c")

    play(story, tmp_path / "s")


def test_a_server_without_certificates_refuses_labels(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        with pytest.raises(ConfigError, match="labels only on a server with certificates"):
            await start(coordinator, labels=BASEL)

    scenario(story, tmp_path)


@pytest.mark.parametrize(
    ("given", "number", "labels"),
    [
        ("8", 8, {}),
        ("site=basel", None, BASEL),
        ("site=basel, kind=cam", None, WANTED),
        ("6,site=basel,kind=cam", 6, WANTED),
        ("path=a=b", None, {"path": "a=b"}),
    ],
)
def test_devices_are_a_number_labels_or_both(given: str, number: int | None, labels: dict[str, str]) -> None:
    assert DevicesType().convert(given, None, None) == Devices(number, labels)


@pytest.mark.parametrize("wrong", ["", "8,9", "-1", "basel", "site=", "=basel", "site=a,site=b", "8.5"])
def test_what_is_neither_is_refused_with_an_example(wrong: str) -> None:
    with pytest.raises(Exception, match="use 8, site=basel,kind=cam or 8,site=basel"):
        DevicesType().convert(wrong, None, None)


def test_labels_travel_and_are_part_of_what_a_run_starts_from(tmp_path: Path) -> None:
    plain, labeled = spec(), spec(labels=WANTED)
    assert operator_wire.spec_from_pb(operator_wire.spec_to_pb(labeled)) == labeled
    assert plain.digest != labeled.digest
    assert plain.digest == spec(labels={}).digest
    (tmp_path / "run.yaml").write_text("algorithm: fedavg\nlabels: {site: basel}\n")
    assert read_run(tmp_path / "run.yaml", {}).spec().labels == BASEL
