"""A run whose devices train some tensors and send them in 8 bits: in the simulator and with a server the same
bits, fewer bytes, and only devices that know how."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedserver.config import Settings
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from shoal.core.algorithm import find
from shoal.core.device_kit.learner import initial_weights
from shoal.core.engine.bootstrap import ASKED, Bootstrap, Unstarted
from shoal.core.engine.simulate import simulate
from shoal.core.errors import ConfigError
from shoal.core.exchange.tensors import digest
from shoal.core.types import Tensors
from shoal.demo import fleet, processes
from shoal.simulation.simulated import Simulated

from .test_three_drivers import context, learner, visit

MEMBERS = fleet.trainers()[:4]
POLICY = replace(fleet.POLICY, devices=0, minimum=len(MEMBERS), wait_for_devices=60.0)
PARAMETERS: dict[str, Any] = {"rounds": 3, "evaluate": False}
HEAD = " ".join(list(initial_weights(learner(), 0))[-2:])
"""The last layer."""


def simulated(changes: dict[str, Any]) -> dict[str, Tensors]:
    card, _ = find("fedavg")
    parameters, memories = card.configure("default", {**PARAMETERS, **changes}), dict[str, Tensors]()
    devices = {each.name: Simulated(card.device(), context(each), each.name, memories) for each in MEMBERS}
    outcome = simulate(Bootstrap(card.server(), parameters), Unstarted(), devices, POLICY, fleet.SEED)
    assert not outcome.failed, outcome
    return dict(outcome.state.models)


async def served(folder: Path, changes: dict[str, Any]) -> tuple[str, int, int]:
    """The digest of the final model, and the bytes that went up and down."""
    coordinator = await Coordinator.open(folder / "server", Settings(tick=0.05))
    try:
        run = replace(processes.spec("fedavg"), parameters={**PARAMETERS, **changes}, policy=POLICY)
        await OperatorApi(coordinator).start_run(run, None)
        await asyncio.gather(*(visit(coordinator, member, folder) for member in MEMBERS))
        status = await OperatorApi(coordinator).show(run.name)
        assert status.summary.stage == "finished", status
        (model,) = status.models.values()
        up, down = (sum(getattr(each, way) for each in status.devices) for way in ("bytes_up", "bytes_down"))
        return model.blob.sha256, up, down
    finally:
        await coordinator.close()


@pytest.mark.parametrize("changes", [{"encoding": "int8"}, {"encoding": "bf16", "trainable": HEAD}])
def test_the_simulator_gives_the_bits_of_the_server_in_fewer_bytes(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    (model,) = simulated(changes).values()
    found, up, _ = asyncio.run(served(tmp_path, changes))
    assert found == digest(model)
    built = len(MEMBERS) * sum(array.nbytes for array in model.values())
    share = 0.3 if changes["encoding"] == "int8" else 0.2
    # Three devices also send the initial weights, whole.
    assert up < (ASKED / len(MEMBERS) + share * PARAMETERS["rounds"]) * built


def test_what_does_not_train_stays_as_it_was() -> None:
    (whole,), (head,) = simulated({}).values(), simulated({"trainable": HEAD}).values()
    started = initial_weights(learner(), 0)
    assert list(head) == list(whole) == list(started)
    changed = [name for name in head if not (head[name] == simulated_start()[name]).all()]
    assert changed == HEAD.split()


def simulated_start() -> Tensors:
    """The initial weights of the run: those of a head that trains at a rate of nearly nothing."""
    (found,) = simulated({"rounds": 1, "learning_rate": 1e-30}).values()
    return found


def test_a_pattern_without_a_tensor_is_refused() -> None:
    with pytest.raises(ConfigError, match="no tensor of the model is named 'heads"):
        simulated({"trainable": "heads.*"})


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("fedavg", {"encoding": "int8", "dp_epsilon": 3.0}, "DP-SGD"),
        ("flux", {"trainable": "fc.*", "dp_epsilon": 3.0}, "DP-SGD"),
        ("fedavg", {"encoding": "bf16", "secure_aggregation": True, "aggregation": "mean"}, "secure"),
        ("flux", {"encoding": "int8", "mixing": "soft"}, "mixture of models"),
        ("flux", {"trainable": "fc.*", "mixing": "soft"}, "mixture of models"),
    ],
)
def test_what_excludes_an_encoding_says_so(name: str, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        find(name)[0].configure("default", changes)
