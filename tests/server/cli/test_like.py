"""`fedserver run start --like`, `run show` and `run ls`: the same run again, and runs side by side."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedserver.cli.runs.run import _has_clusters
from fedserver.coordinator.status_types import RunStatus, RunSummary
from fedserver.rpc.client import OperatorClient
from fedserver.store.records import RunSpec
from shoal.core.types import Tensors
from shoal.shell.weights import save
from tests.server.cli.conftest import Verb
from tests.server.processes import daemon
from tests.server.servers import DEVICES, ROUNDS, spec
from tests.server.test_daemon import all_devices
from tests.server.toys import MODEL, same_models


def models(client: OperatorClient, run: str) -> dict[str, Tensors]:
    return {key: client.fetch(weights) for key, weights in client.show(run).models.items()}


def test_a_run_like_another_gives_the_same_models_bit_for_bit(tmp_path: Path, verb: Verb) -> None:
    state, file = tmp_path / "s", tmp_path / "first.safetensors"
    with daemon(state) as server, OperatorClient(state) as client:
        client.start_run(spec(), MODEL)
        asyncio.run(all_devices(server.address))
        refused = verb("start", "again", "--like", "toy", code=3)
        assert refused["message"] == "run toy began with weights that this machine does not have"
        save(MODEL, file, {})
        found = verb("start", "again", "--like", "toy", "--initial-weights", str(file))
        assert (found["run"], found["differing"]) == ("again", {})
        asyncio.run(all_devices(server.address))
        assert same_models(models(client, "toy"), models(client, "again"))
        first, second = verb("show", "toy"), verb("show", "again")
        assert first["digest"] == second["digest"]
        client.start_run(replace(spec(), name="other", seed=6), None)
        assert verb("show", "other")["digest"] != first["digest"]
        compared = verb("show", "toy", "again", "other")
        weights = first["initial_weights"][:12]
        assert compared["differing"] == {"seed": [5, 5, 6], "weights": [weights, weights, "-"]}
        assert "for one run" in verb("show", "toy", "again", "--newcomers", code=2)["message"]
        assert [each["progress"] for each in compared["runs"]] == [ROUNDS, ROUNDS, 0]
        assert compared["runs"][0]["accuracy"] == compared["runs"][1]["accuracy"]
        assert [each["run"] for each in verb("ls")["runs"]] == ["other", "again", "toy"]
        assert [each["run"] for each in verb("ls", "--stage", "over")["runs"]] == ["again", "toy"]
        assert [each["run"] for each in verb("ls", "--stage", "active")["runs"]] == ["other"]
        assert [each["run"] for each in verb("ls", "--last", "2")["runs"]] == ["other", "again"]
        (over, *_) = verb("ls", "--stage", "finished", "--last", "1")["runs"]
        assert over["ended"] >= over["created"]
        assert (over["progress"], over["rounds"]) == (ROUNDS, ROUNDS)


def test_a_run_whose_first_weights_a_device_made_is_repeated_as_it_is(tmp_path: Path, verb: Verb) -> None:
    with daemon(tmp_path / "s") as server, OperatorClient(tmp_path / "s") as client:
        client.start_run(spec(parameters={"rounds": 1}), None)
        asyncio.run(all_devices(server.address))
        assert verb("start", "--like", "toy")["run"] == "fedavg"
        asyncio.run(all_devices(server.address))
        assert same_models(models(client, "toy"), models(client, "fedavg"))


def test_a_run_like_one_that_measures_a_release_trains_nothing(tmp_path: Path, verb: Verb) -> None:
    with daemon(tmp_path / "s") as server, OperatorClient(tmp_path / "s") as client:
        client.start_run(spec(), MODEL)
        asyncio.run(all_devices(server.address))
        client.create_release("toy", "v1")
        client.start_run(replace(spec(), name="measured", evaluate="toy@v1"), None)
        found = verb("start", "again", "--like", "measured")
        assert found["differing"] == {}
        again = client.show("again").spec
        assert again is not None
        assert again.evaluate == "toy@v1"


def test_other_options_change_what_a_run_like_another_is_asked_for(tmp_path: Path, verb: Verb) -> None:
    file = tmp_path / "others.safetensors"
    save({**MODEL, "layer.bias": np.ones(3, np.float32)}, file, {})
    (tmp_path / "run.yaml").write_text("algorithm: fedavg")
    with daemon(tmp_path / "s") as server, OperatorClient(tmp_path / "s") as client:
        client.start_run(spec(), MODEL)
        asyncio.run(all_devices(server.address))
        first = verb("show", "toy")
        policy = ("--minimum", "2", "--set", "rounds=1", "--set", "epochs=3")
        found = verb("start", "other", "--like", "toy", "--initial-weights", str(file), *policy)
        changed = verb("show", "other")
        assert found["differing"] == {
            "epochs": [first["parameters"]["epochs"], 3],
            "policy.minimum": [DEVICES, 2],
            "rounds": [ROUNDS, 1],
            "weights": [first["initial_weights"][:12], changed["initial_weights"][:12]],
        }
        assert (changed["seed"], changed["policy"]["devices"]) == (first["seed"], DEVICES)
        refused = verb("start", "x", "--like", "toy", "-f", str(tmp_path / "run.yaml"), code=2)
        assert refused["message"] == "--file and --like exclude each other"
        assert verb("start", "x", "--like", "none", code=1)["code"] == "not-found"


def test_weights_of_a_learner_are_made_again(tmp_path: Path, verb: Verb) -> None:
    (tmp_path / "run.yaml").write_text("learner: {builtin: mlp, options: {classes: 3}, seed: 7}")
    with daemon(tmp_path / "s"):
        verb("start", "first", "--algorithm", "fedavg", "-f", str(tmp_path / "run.yaml"))
        assert verb("show", "first")["learner"]["seed"] == 7
        few = verb("start", "few", "--algorithm", "flux", "--set", "rounds=6")
        assert few["clustering"].endswith("give at least rounds=15 for 3 of them")
        assert verb("start", "second", "--like", "first")["differing"] == {}
        assert verb("show", "first")["digest"] == verb("show", "second")["digest"]
        assert verb("show", "first")["initial_weights"] == verb("show", "second")["initial_weights"] != ""


def test_what_is_said_of_a_run_that_goes_on_is_of_the_parameters_of_its_release(
    tmp_path: Path, verb: Verb
) -> None:
    with daemon(tmp_path / "s") as server, OperatorClient(tmp_path / "s") as client:
        client.start_run(spec(parameters={"rounds": 1, "aggregation": "mean"}), MODEL)
        asyncio.run(all_devices(server.address))
        client.create_release("toy", "v1")
        assert "aggregation=mean bounds nothing" in verb("start", "next", "--from", "toy@v1")["liars"]
        assert verb("start", "other", "--from", "toy@v1", "--set", "aggregation=clipped")["liars"] is None


def test_a_run_with_the_clusters_of_a_release_forms_none_first() -> None:
    summary = RunSummary("next", "next", "flux", "default", "waiting", 1)
    goes_on, fresh = RunSpec("next", "flux", release="first@3"), RunSpec("next", "flux")
    for clusters, asked, found in (
        ({"c0": ("a",)}, goes_on, True),
        ({"global": ("a",)}, goes_on, False),
        ({"c0": ("a",)}, fresh, False),
    ):
        assert _has_clusters(RunStatus(summary, clusters, spec=asked)) is found
