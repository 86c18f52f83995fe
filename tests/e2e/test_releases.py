"""Releases between real processes: released by itself, followed, killed with -9, taken back, verified."""

import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from grpc import aio
from safetensors.numpy import save_file

from fedclient.work.predictions import header_of, read_model, sealed
from fedserver.rpc.client import OperatorClient
from shoal.core.errors import NotFound, Unavailable
from shoal.core.exchange.link import Placement
from shoal.core.types import RunId
from tests.client.test_genuine import changed
from tests.e2e.places import Place
from tests.server.coordinator.test_releases import reaching
from tests.server.processes import Daemon, daemon, restored
from tests.server.servers import DEVICES, spec
from tests.server.toys import MODEL, serve
from tests.server.wire_link import WireLink
from tests.waiting import HANG


def train(server: Daemon, accuracy: float) -> None:
    """Be the devices until no run is left, or the server dies."""

    async def play() -> None:
        async with aio.insecure_channel(server.address) as channel:
            links = (WireLink(channel, f"d{number}") for number in range(DEVICES))
            work = (serve(link, reaching(accuracy, number)) for number, link in enumerate(links))
            with suppress(aio.AioRpcError):
                await asyncio.gather(*work)

    asyncio.run(play())


def given(server: Daemon) -> str:
    """The release that a newcomer is given."""

    async def play() -> str:
        async with aio.insecure_channel(server.address) as channel:
            answer = await WireLink(channel, "newcomer").place("", None)
            assert isinstance(answer, Placement)
            return answer.release

    return asyncio.run(play())


def run(server: Daemon, name: RunId, accuracy: float) -> None:
    with OperatorClient(server.state) as client:
        client.start_run(spec(name=name, seed=len(client.runs())), MODEL)
    train(server, accuracy)


def test_the_channel_survives_kills_at_every_step_and_one_command_goes_back(tmp_path: Path) -> None:
    state = tmp_path / "server"

    def killed_at(point: str, doing: Callable[[Daemon, OperatorClient], object]) -> None:
        with daemon(state, environment={"SHOAL_CRASH_AT": point}) as server, OperatorClient(state) as client:
            with suppress(Unavailable):
                doing(server, client)
            assert server.process.wait(HANG) == -signal.SIGKILL

    killed_at("server.release-committing", lambda server, client: run(server, "first", 0.8))
    with daemon(state) as server, OperatorClient(state) as client:
        assert restored(client, "first").summary.stage == "finished", "it ended again at the start"
        assert [each.release for each in client.releases()[0]] == ["first@3"], "and was released once"
        assert given(server) == "first@3"
        run(server, "worse", 0.7)
        assert given(server) == "first@3"
    killed_at("server.run-ended", lambda server, client: run(server, "better", 0.9))
    with daemon(state) as server, OperatorClient(state) as client:
        assert restored(client, "better").summary.stage == "finished"
        assert given(server) == "better@3"
    killed_at("server.channel-moved", lambda server, client: client.use_release("first@3", pin=True))
    with daemon(state) as server:
        assert given(server) == "first@3"
    killed_at("server.release-stored", lambda server, client: client.create_release("worse", "kept"))
    with daemon(state) as server, OperatorClient(state) as client:
        found, channels, _ = client.releases()
        assert [each.release for each in found] == ["worse@kept", "better@3", "first@3"]
        assert [each.release for each in channels["stable"]] == ["first@3", "better@3", "first@3"]
        assert client.use_release("better@3")[0][-1].release == "better@3"
        assert given(server) == "better@3"
        with pytest.raises(NotFound, match="there is no run, release or channel 'first@4'"):
            client.use_release("first@4")


def test_a_release_is_signed_and_a_device_that_joined_gets_it(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.up():
        settings = place.joined("pi-17")
        newcomer = place.joined("attic", "--role", "infer-only")
        place.server("run", "start", "a", "--algorithm", "fedavg", "--set", "rounds=1")
        with place.running("pi-17", "fedclient", "run", "-c", settings, "--until-finished") as device:
            assert device.wait(HANG) == 0
        made = place.server("release", "create", "a", "v1")
        assert (made["release"], made["devices"]) == ("a@v1", 1)
        used = place.server("release", "use", "a@v1")
        assert (used["channel"], used["moves"][-1]["release"]) == ("stable", "a@v1")
        shown = place.server("release", "show")
        assert shown["signed"] == f"signed by key {shown['authority']}"
        assert (shown["run"], shown["channels"], shown["seed"]) == ("a", ["stable"], 0)
        place.server("run", "start", "newer", "--algorithm", "fedavg")
        place.server("run", "stop", "newer")
        found = place.call("fedclient", "place", "-c", newcomer, "--json")
        assert found.returncode == 0, found.stderr
        data = json.loads(found.stdout)["data"]
        assert (data["run"], data["release"], data["model"]) == (
            "a",
            "a@v1",
            shown["models"]["global"]["sha256"],
        )
        model = tmp_path / "attic/state/model/model.safetensors"
        sound = model.read_bytes()
        assert place.call("fedclient", "predict", "-c", newcomer).returncode == 0
        place.server("authority", "rotate")
        assert place.call("fedclient", "place", "-c", newcomer).returncode == 0, "it follows the key"
        tensors, header = read_model(model), header_of(model)
        facts = {name: each for name, each in header.items() if name != "digest"}
        save_file(dict(changed(tensors)), model, sealed(changed(tensors), facts))
        refused = place.call("fedclient", "predict", "-c", newcomer, "--json")
        assert json.loads(refused.stdout or refused.stderr)["error"]["code"] == "not-genuine"
        model.write_bytes(sound)
        assert place.call("fedclient", "predict", "-c", newcomer).returncode == 0, (
            "the former key has signed it"
        )
        unknown = place.call("fedclient", "place", "-c", newcomer, "--run", "beta")
        assert (unknown.returncode, "there is no run, release or channel 'beta'" in unknown.stderr) == (
            1,
            True,
        )
        files = place.server("model", "export", "stable", "--folder", tmp_path / "out")["files"]
        names = [str(Path(each).relative_to(tmp_path / "out")) for each in files]
        assert {
            "global/model.safetensors",
            "global/model.onnx",
            "graph.onnx",
            "release.json",
            "release.sig",
            "authority.pem",
        } < {*names}
        place.server("run", "start", "again", "--evaluate", "stable")
        unmeasured = ("--set", "rounds=2", "--set", "evaluate=false")
        place.server("run", "start", "unmeasured", "--algorithm", "fedavg", *unmeasured)
        with place.running("pi-17", "fedclient", "run", "-c", settings, "--until-finished") as device:
            assert device.wait(HANG) == 0
        assert place.server("run", "show", "unmeasured")["stage"] == "finished"
        found = place.call("fedclient", "place", "-c", newcomer, "--json")
        assert json.loads(found.stdout)["data"]["release"] == "a@v1"
        again = place.server("run", "show", "again")
        assert (again["stage"], again["progress"], again["evaluate"]) == ("finished", 0, "a@v1")
        assert again["models"] == shown["models"]
        (found,) = place.server("release", "show")["evaluations"]
        assert (found["run"], found["accuracy"]) == ("again", again["accuracy"])
        place.server("device", "revoke", "pi-17")
        listed = place.server("release", "ls")["releases"]
        assert [(each["release"], each["revoked"]) for each in listed] == [
            ("a@v1", ["pi-17"]),
            ("a@1", ["pi-17"]),
        ]
