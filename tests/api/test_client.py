"""`shoal.Client`: a real daemon, and results that say what only a simulation knows."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import shoal
from fedserver.rpc.channel import SOCKET
from fedserver.rpc.client import OperatorClient
from shoal.client import DaemonResult
from shoal.core.algorithm import find
from shoal.core.device_kit.learner import initial_weights
from shoal.core.engine.simulate import simulate
from shoal.core.errors import BadPayload, ConfigError, Unavailable
from shoal.core.inference.graph.wire import message
from shoal.core.types import Tensors
from shoal.result import NotKnown
from tests.api.wards import Net
from tests.core.inference.graphs import graph
from tests.server.processes import daemon
from tests.server.servers import DEVICES, ROUNDS, spec
from tests.server.test_daemon import all_devices
from tests.server.toys import fleet, same_models


def simulated() -> dict[str, Tensors]:
    """The models of the same run in the simulator."""
    card, _ = find("fedavg")
    learner = shoal.Learner("net", Net)
    first = card.server().start(
        initial_weights(learner, 7), card.configure("default", {"rounds": ROUNDS, "inputs": "raw"})
    )
    return dict(simulate(card.server(), first, fleet(DEVICES), spec().policy, spec().seed).state.models)


def test_a_run_of_the_daemon_gives_a_result_like_a_simulation(tmp_path: Path) -> None:
    lines: list[str] = []
    with daemon(tmp_path / "s") as server, shoal.Client(tmp_path / "s" / SOCKET) as client:
        run = client.start(
            "fedavg", name="toy", model=Net, model_seed=7, seed=spec().seed, rounds=ROUNDS,
            inputs="raw",
            devices=DEVICES, minimum=DEVICES,
        )  # fmt: skip
        assert repr(run).startswith("run toy: ")
        asyncio.run(all_devices(server.address))
        result = run.result(progress=lines.append)
        assert client.runs() == {"toy": "finished"}
        assert client.run("toy").stage == "finished"
        assert same_models(client.release().models, result.models)
        assert client.release(f"toy@{ROUNDS}").accuracy == result.accuracy
        assert set(result.clusters) == {f"d{number}" for number in range(DEVICES)}
        assert result.accuracy.keys() == result.clusters.keys()
        assert same_models(result.models, simulated())
        assert set(result.module("global").state_dict()) == set(result.models["global"])
        assert [row["device"] for row in result.rows()] == list(result.clusters)
        assert "fedavg: 1 model for all of 3 devices" in repr(result)
        assert repr(result).startswith(str(result.verdict))
        assert result.verdict is not None
        assert result.verdict.accuracy == result.accuracy.mean
        assert [each.number for each in result.history] == list(range(1, ROUNDS + 2))
        assert [each.trained for each in result.history] == [True] * ROUNDS + [False]
        assert [each.measured_on for each in run.history] == ["train"] * ROUNDS + ["test"]
        assert result.history[-1].accuracy is not None
        assert all(each.devices == DEVICES and each.bytes_up > 0 for each in result.history[:ROUNDS])
        assert len(result.to_dict()["history"]) == ROUNDS + 1
        for ask in (lambda: result.place([[1.0]]), lambda: result.compare("flux")):
            with pytest.raises(NotKnown):
                ask()
        with pytest.raises(ConfigError, match="has no parameter"):
            client.start("fedavg", round=3)


def test_the_names_of_the_classes_are_those_of_the_runs_graph(tmp_path: Path) -> None:
    """Only there a server can know them."""
    named = graph(file=[(14, message([(1, "shoal.classes"), (2, '["cat", "dog", "eel"]')]))])
    with daemon(tmp_path / "s"), OperatorClient(tmp_path / "s") as operator:
        for name, given, names in (("plain", None, None), ("named", named, ("cat", "dog", "eel"))):
            first = {"weight": np.zeros((4, 3), np.float32), "bias": np.zeros(3, np.float32)}
            operator.start_run(replace(spec(), name=name), first, given)
            result = DaemonResult(operator, operator.show(name), [])
            assert result.class_names == names
            assert result.to_dict()["class_names"] == (None if names is None else list(names))
        status = operator.show(name)
        (weights,) = status.models.values()
        hostile = DaemonResult(operator, replace(status, models={"../elsewhere": weights}), [])
        with pytest.raises(BadPayload, match="cannot be the name of a file"):
            hostile.save(tmp_path / "saved")
        assert not list(tmp_path.glob("elsewhere*"))


def test_without_a_server_it_is_said_how_to_start_one(tmp_path: Path) -> None:
    with shoal.Client(tmp_path) as client, pytest.raises(Unavailable, match="fedserver up"):
        client.runs()
