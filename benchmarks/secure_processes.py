"""Secure aggregation by real programs: `fedserver up`, and `fedclient run` for each device, over mutual TLS.

    python -m benchmarks.secure_processes [--directory FOLDER]

Nine devices join by a join string and train a small network on 140 digits each, in one round whose update the
server learns only as a sum. One device is killed when it has trained, before its masked update leaves. Then
the model is compared, bit for bit, with that of the same run in a simulation without processes, and each
device's ledger is read by `fedclient ledger`. Prints JSON: whether the models are equal, the lines about
sums in the ledgers, and the processor seconds of all processes. It starts some twenty processes, nine of them
with PyTorch, and takes about a minute of processor time.
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from fedserver.rpc.client import OperatorClient
from fedserver.store.identities.records import Terms
from fedserver.store.records import RunSpec
from shoal.core import algorithm
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import builtin, initial_weights
from shoal.core.engine.bootstrap import Bootstrap
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import Unavailable
from shoal.core.exchange.messages import Message
from shoal.core.exchange.summing import TrainMasked
from shoal.core.exchange.tensors import digest
from shoal.core.types import Tensors
from shoal.demo import fleet
from shoal.demo.fleet import Member
from shoal.demo.processes import POLL_SECONDS, Stage, prepared
from shoal.shell.console import Console
from shoal.shell.crash import VARIABLE
from shoal.simulation import images
from shoal.simulation.simulated import Simulated

DEVICES, IMAGES, RUN = 9, 140, "secure"
DIES = "device.performed:3"
"""After the third task of the device: keys, shares, and now its masked update, which it has computed."""
PARAMETERS: Mapping[str, bool | int | float | str] = {
    "rounds": 1,
    "evaluate": False,
    "aggregation": "mean",
    "secure_aggregation": True,
    "central_clip": 10.0,
}
POLICY = RoundPolicy(minimum=DEVICES, wait_for_devices=5.0, deadline=60.0, device_timeout=30.0)
"""All devices begin; from then on seven suffice, once the others had five seconds."""
SPEC = RunSpec(
    name=RUN,
    algorithm="fedavg",
    parameters=PARAMETERS,
    policy=POLICY,
    seed=fleet.SEED,
    learner=str(fleet.LEARNER["builtin"]),
)
OPTIONS: Any = fleet.LEARNER["options"]


def members() -> list[Member]:
    train, test = images.digits()
    slices = [slice(number * IMAGES, (number + 1) * IMAGES) for number in range(DEVICES)]
    return [Member(f"device-{number}", 0, train.subset(own), test) for number, own in enumerate(slices)]


class Programs(Stage):
    """The programs of this fleet, with folders and logs as in the demo."""

    def enroll(self, operator: OperatorClient, members: list[Member]) -> None:
        _, line = operator.create_token(Terms(uses=len(members)))
        with ExitStack() as stack:
            for one in members:
                self._prepare(one)
                config = str(self._settings(one))
                join = ["fedclient", "join", "-", "--config", config, "--device", one.name, "--json"]
                stack.enter_context(self._process(one.name, join, line))
            for one in members:
                self._answer(one.name)

    def sum(self, operator: OperatorClient, members: list[Member], first: Tensors) -> str:
        """The hash of the run's model, made by all devices, of which the last one dies."""
        operator.start_run(SPEC, first)
        with ExitStack() as stack:
            for one in members:
                dies = {VARIABLE: DIES} if one is members[-1] else {}
                with patch.dict("os.environ", dies):
                    line = ["fedclient", "run", "--config", str(self._settings(one))]
                    stack.enter_context(self._process(one.name, line))
            while not (status := operator.show(RUN)).summary.over:
                for one in members[:-1]:
                    self._check_alive(one.name)
                time.sleep(POLL_SECONDS)
            assert self._processes[members[-1].name].poll() == -9, "the last device was to die"
        assert status.summary.stage == "finished", status.summary
        return status.models["global"].blob.sha256

    def ledger(self, one: Member) -> list[dict[str, Any]]:
        """What this device's ledger says of sums."""
        line = ["fedclient", "ledger", "--config", str(self._settings(one)), "--json"]
        with self._process(one.name, line):
            entries = self._answer(one.name)["entries"]
        kept = ("run", "devices", "fewest", "clip", "noise")
        return [{name: entry[name] for name in kept} for entry in entries if "cohort" in entry]


def expected(members: list[Member], first: Tensors) -> str:
    """The hash of the model that the same run has in a simulation."""
    card, _ = algorithm.find("fedavg")
    learner, gone = builtin(str(fleet.LEARNER["builtin"]), OPTIONS), members[-1].name
    memories: dict[str, Tensors] = {}

    def device(one: Member) -> Callable[[Message, int], Message]:
        x = one.train.x.reshape(-1, 1, 8, 8)
        views = Views.of(replace(one.train, x=x), one.test)
        context = DeviceContext(learner, views, "cpu", 0, np.random.default_rng())
        usual = Simulated(card.device(), context, one.name, memories)

        def perform(message: Message, seed: int) -> Message:
            if one.name == gone and isinstance(message, TrainMasked):
                raise Unavailable("it was killed")
            return usual(message, seed)

        return perform

    half = Bootstrap(card.server(), card.configure("default", PARAMETERS))
    devices = {one.name: device(one) for one in members}
    outcome = simulate(half, half.start(first, half.parameters), devices, POLICY, SPEC.seed)
    assert not outcome.failed, outcome.reason
    return digest(outcome.state.models["global"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, help="for the programs' folders and logs; else a new one")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as each device does: with another number, sums have other last bits
    everybody, began = members(), time.monotonic()
    first = initial_weights(builtin(str(fleet.LEARNER["builtin"]), OPTIONS), fleet.SEED)
    with tempfile.TemporaryDirectory(prefix="shoal-secure-") as folder:
        programs = Programs(prepared(arguments.directory or Path(folder) / "fleet"), Console())
        with programs.server(), OperatorClient(programs.folder / "server") as operator:
            programs.enroll(operator, everybody)
            found = programs.sum(operator, everybody, first)
        ledgers = {one.name: programs.ledger(one) for one in everybody}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = {
        "equal": found == expected(everybody, first),
        "model": found,
        "ledgers": ledgers,
        "seconds": round(time.monotonic() - began, 1),
        "processor_seconds": round(used.ru_utime + used.ru_stime, 1),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
