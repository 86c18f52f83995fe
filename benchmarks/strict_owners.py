"""FLUX where no owner lets anything leave in the open: does it finish, with which guarantee, and how well?

    python -m benchmarks.strict_owners --data-dir DATA [--samples 600] [--hidden 32] [--lenet] [--seed 42]

Each device of MNIST, turned and colored in one of several ways (px, level 5), does its tasks through the
runtime of `fedclient`, with a privacy ledger on the disk. There are two runs. In `strict` the owners allow
nothing without a guarantee, and the run has the preset `private`: `dp_epsilon` 3, descriptors of epsilon 3;
in `plain` they allow everything, and the run asks for no privacy. The network is linear, or an MLP with the
given hidden layers, or LeNet-5. Prints JSON: for both runs the mean accuracy, on the devices' own test parts,
of their clusters' models, and the adjusted Rand index of the clusters; and for each device its (epsilon,
delta), what left in the open (for a strict device, nothing) and the codes of the tasks that failed.
docs/results.md has what came out.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedclient.config import WorkConfig
from fedclient.store.blobs import BlobStore
from fedclient.store.ledger import Ledger
from fedclient.store.privacy_report import statement
from fedclient.work.runtime import Runtime
from shoal.core import algorithm
from shoal.core.algorithm.asks import terms_of
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, initial_weights
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import DeviceFault
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import decode, encode
from shoal.core.privacy.budget import Budget
from shoal.core.types import DeviceId
from shoal.simulation.fleet import Fleet, Holding
from shoal.simulation.learners import learner_of
from shoal.simulation.simulated import SimulatedDevices
from shoal_lab.experiment import Experiment, grouping, measure
from shoal_lab.setting import fleet_of

STRICT = Budget(allow_unprotected=False, allow_plain_weights=False)
PLAIN = {"batch_size": 16, "learning_rate": 0.05}


class Owned:
    """A device with its ledger, as `fedclient` runs it."""

    def __init__(
        self, folder: Path, learner: Learner, network: Any, holding: Holding, budget: Budget
    ) -> None:
        self.budget, self.failures = budget, list[str]()
        self.ledger = Ledger(folder / "privacy", budget, "records")
        views = Views.of(holding.stage(0), holding.test)
        noise = np.random.default_rng()
        context = DeviceContext(learner, views, "cpu", 0, noise, network, self.ledger)
        work = WorkConfig(folder / "blobs", folder / "privacy", privacy=budget)
        self._store = BlobStore(work.blobs)
        self._runtime, self._tasks = Runtime(context, self._store), 0

    def call(self, terms: str) -> Callable[[Message, int], Message]:
        def perform(message: Message, seed: int) -> Message:
            self._tasks += 1
            payload = encode(message, self._store.keep)
            found = self._runtime.perform(Task("strict", self._tasks, 1, seed, "", payload, terms))
            self._store.trim(1 << 24)
            if isinstance(found, Failure):
                self.failures.append(found.code)
                raise DeviceFault(f"{found.code}: {found.message}")
            reply = type(message).reply
            return decode(found, {reply.kind: reply}, self._store.load)

        return perform


def played(
    fleet: Fleet, learner: Learner, budget: Budget, preset: str, changes: dict[str, Any], seed: int
) -> dict[str, Any]:
    """One run, and what it gave."""
    card, _ = algorithm.find("flux")
    half, parameters = card.server(), card.configure(preset, changes)
    network, began = learner.module(seed=0), time.process_time()
    with tempfile.TemporaryDirectory(prefix="shoal-strict-") as folder:
        owned: dict[DeviceId, Owned] = {
            name: Owned(Path(folder) / name, learner, network, holding, budget)
            for name, holding in fleet.items()
        }
        calls = {name: each.call(terms_of(card, parameters)) for name, each in owned.items()}
        state = half.start(initial_weights(learner, seed), parameters)
        outcome = simulate(half, state, calls, RoundPolicy(minimum=len(fleet)), seed)
        devices = SimulatedDevices(card, fleet, learner, "cpu", seed)
        rows = [measure(half, outcome.state, devices, name, 0) for name in fleet]
        stated = {name: statement(each.ledger.verify(), budget) for name, each in owned.items()}
        return {
            "finished": not outcome.failed,
            "accuracy": round(100 * float(np.mean([row["known"] for row in rows])), 2),
            "ari": grouping(outcome.state, fleet, [row["cluster"] for row in rows])["ari"],
            "clusters": len(outcome.state.models),
            "devices": {
                name: {
                    "epsilon": None if each.unprotected else round(each.epsilon, 4),
                    "if_replaced": round(each.if_replaced, 4),
                    "delta": each.delta,
                    "open": list(each.unprotected),
                    "failed": owned[name].failures,
                }
                for name, each in stated.items()
            },
            "seconds": round(time.process_time() - began, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rate", type=float, help="learning rate of DP-SGD  [default: the preset's]")
    parser.add_argument("--hidden", type=int, nargs="*", default=[], help="widths of hidden layers")
    parser.add_argument("--lenet", action="store_true", help="LeNet-5 instead")
    parser.add_argument("--runs", nargs="+", choices=("strict", "plain"), default=["strict", "plain"])
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    experiment = Experiment(
        dataset="mnist",
        data_dir=arguments.data_dir,
        shift="px",
        level=5,
        clients=arguments.clients,
        samples=arguments.samples,
        rounds=arguments.rounds,
        seed=arguments.seed,
    )
    fleet = fleet_of(experiment)[0]
    network, options = ("lenet5", {}) if arguments.lenet else ("mlp", {"hidden": arguments.hidden})
    learner = learner_of(network, None, options, fleet)
    rounds = {"rounds": arguments.rounds}
    private = rounds | ({"learning_rate": arguments.rate} if arguments.rate else {})
    kinds = {"strict": (STRICT, "private", private), "plain": (Budget(), "default", {**PLAIN, **rounds})}
    found = {kind: played(fleet, learner, *kinds[kind], arguments.seed) for kind in arguments.runs}
    print(json.dumps({**{key: str(value) for key, value in vars(arguments).items()}, **found}, indent=2))


if __name__ == "__main__":
    main()
