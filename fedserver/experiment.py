"""An experiment of the papers in one process: real data, a shift, an algorithm, and the tables' two figures.

known: mean accuracy of the devices' own clusters' models on their test parts ("known association").
test: the same with the model that each device is given as a newcomer who shows its test data without labels.
"""

import contextlib
import mmap
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from fedcore.algorithm import Algorithm, Central, State, find
from fedcore.data import images
from fedcore.data.dataset import Dataset
from fedcore.data.views import Views
from fedcore.errors import ConfigError, Refused
from fedcore.events import Effect, Opened
from fedcore.local.bench import Bench
from fedcore.local.learner import Learner, builtin
from fedcore.local.weights import initial_weights
from fedcore.messages import Describe, Described, Evaluate, Evaluated, Message, Trained
from fedcore.parts import ClusterAssignment
from fedcore.privacy.account import Unmetered
from fedcore.rounds import RoundPolicy
from fedcore.seeds import generator
from fedcore.shifts import DeviceData, make
from fedcore.simulate import simulate
from fedcore.tensors import manifest_of, pack, unpack
from fedcore.types import DeviceId, Tensors


@dataclass(frozen=True)
class Experiment:
    """What to run. seed: of the data and of the shuffling. model_seed: of the initial weights, 42 in all of
    the papers' repetitions. samples: training images of a device; 0 shares out all that there are.
    threads: of PyTorch; 0 leaves it to PyTorch. changes: to parameters, by name; privacy is off where they do
    not say otherwise, for simulated data are nobody's."""

    algorithm: str = "flux"
    preset: str = "default"
    dataset: str = "digits"
    data_dir: Path | None = None
    shift: str = "px"
    level: int = 5
    clients: int = 10
    samples: int = 0
    rounds: int = 10
    seed: int = 42
    model_seed: int = 42
    device: str = "auto"
    threads: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)


def run(experiment: Experiment, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Run it; what `fedserver simulate --json` prints as its data."""
    started = time.perf_counter()
    if experiment.threads:
        torch.set_num_threads(experiment.threads)
    progress(f"making {experiment.clients} devices of {experiment.dataset}")
    truth = devices_of(experiment)
    algorithm, parameters, preset = _configure(experiment, truth)
    fleet = Fleet(algorithm, truth, learner_for(truth[0].train), experiment)
    central = algorithm.central()
    state = central.start(initial_weights(fleet.learner, experiment.model_seed), parameters)
    policy = RoundPolicy(minimum=experiment.clients)

    def watch(effect: Effect) -> None:
        if isinstance(effect, Opened):
            progress(effect.title)

    outcome = simulate(central, state, fleet.devices(), policy, experiment.seed, keep=spooled, watch=watch)
    if outcome.failed:
        raise Refused(f"the run failed: {outcome.reason}")
    progress("placing every device as a newcomer without labels")
    per_device = [measure(central, outcome.state, fleet, number) for number in range(experiment.clients)]
    return {
        "algorithm": experiment.algorithm,
        "preset": preset,
        "privacy": told(parameters),
        "dataset": experiment.dataset,
        "shift": experiment.shift,
        "level": experiment.level,
        "seed": experiment.seed,
        "clients": experiment.clients,
        "samples": experiment.samples,
        "rounds": experiment.rounds,
        "accuracy": {
            "known": _mean([row["known"] for row in per_device]),
            "test": _mean([row["test"] for row in per_device]),
            "per_device": per_device,
        },
        **grouping(outcome.state, truth),
        "seconds": {"total": time.perf_counter() - started, "training": fleet.training_seconds},
        "bytes": {"up": sum(outcome.up.values()), "down": sum(outcome.down.values())},
    }


def spooled(tensors: Tensors) -> Tensors:
    """The same tensors in a mapped file that goes when they do: memory does not grow with the devices."""
    with tempfile.TemporaryFile() as file:
        for piece in pack(tensors):
            file.write(piece)
        if not file.tell():  # an empty file cannot be mapped
            return tensors
        file.flush()
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return unpack(manifest_of(tensors), memoryview(data))


class Fleet:
    """The simulated devices. They take turns in one network, so memory holds their data and one model."""

    def __init__(
        self, algorithm: Algorithm, truth: list[DeviceData], learner: Learner, experiment: Experiment
    ) -> None:
        self.learner, self.truth = learner, truth
        self.training_seconds = 0.0
        self._local = algorithm.local()
        self._experiment = experiment
        self._network = learner.module(seed=0)
        self._benches = [self._bench(number, Views.of(d.train, d.test)) for number, d in enumerate(truth)]

    def devices(self) -> dict[DeviceId, Callable[[Message, int], Message]]:
        return {name(number): self._device(bench) for number, bench in enumerate(self._benches)}

    def evaluate(self, number: int, task: Evaluate) -> float:
        answer = self._local.perform(task, self._benches[number])
        assert isinstance(answer, Evaluated)
        return answer.accuracy

    def describe(self, number: int, task: Describe) -> Described:
        """As a newcomer: the test images, without their labels."""
        newcomer = self._bench(number, Views.of(Dataset(self.truth[number].test.x)))
        answer = self._local.perform(task, newcomer)
        assert isinstance(answer, Described)
        return answer

    def _bench(self, number: int, views: Views) -> Bench:
        noise = generator(self._experiment.seed, "privacy noise", number)
        account = Unmetered(noise.bytes)
        return Bench(self.learner, views, self._experiment.device, 0, noise, self._network, account)

    def _device(self, bench: Bench) -> Callable[[Message, int], Message]:
        def perform(message: Message, seed: int) -> Message:
            started = time.perf_counter()
            answer = self._local.perform(message, bench.for_task(seed))
            if message.reply is Trained:
                self.training_seconds += time.perf_counter() - started
            return answer

        return perform


def name(number: int) -> DeviceId:
    """Device ids sort as their numbers do."""
    return f"device-{number:03}"


def devices_of(experiment: Experiment) -> list[DeviceData]:
    """The simulated devices' data. Raises ConfigError."""
    try:
        train, test = images.load(experiment.dataset, experiment.data_dir)
        if experiment.samples:
            train = _some(train, experiment)
        return make(experiment.shift, experiment.level, experiment.clients, experiment.seed, train, test)
    except (ValueError, FileNotFoundError) as fault:
        raise ConfigError(str(fault)) from None


def told(parameters: Any) -> str:
    """How private the descriptors are, for people; empty where the algorithm asks for none."""
    mode = getattr(parameters, "privacy", "")
    remarks = {"off": "off; real devices are asked for balanced", "paper": "paper, which is not private"}
    return remarks.get(mode, mode)


def _some(train: Dataset, experiment: Experiment) -> Dataset:
    """As many images as the devices are to have, drawn by the seed. Raises ValueError where they lack."""
    due = experiment.samples * experiment.clients
    if not 0 < due <= len(train):
        raise ValueError(
            f"{experiment.clients} devices with {experiment.samples} images each need {due}, and "
            f"{experiment.dataset} has {len(train)}: ask for fewer"
        )
    return train.subset(generator(experiment.seed, "samples").permutation(len(train))[:due])


def _configure(experiment: Experiment, truth: list[DeviceData]) -> tuple[Algorithm, Any, str]:
    """The algorithm with its parameters; a preset of the data set's own goes before the general one."""
    algorithm, variant = find(experiment.algorithm)
    own = f"{experiment.preset}-{experiment.dataset}"
    preset = own if own in algorithm.presets else experiment.preset
    changes: dict[str, Any] = {**variant, "rounds": experiment.rounds}
    if "privacy" in {field.name for field in fields(algorithm.parameters)}:
        changes["privacy"] = "off"
    if changes.get("clusters") == -1:  # an algorithm that must be told how many there are: tell it the truth
        changes["clusters"] = len({device.concept for device in truth})
    return algorithm, algorithm.configure(preset, {**changes, **experiment.changes}), preset


def learner_for(data: Dataset) -> Learner:
    """LeNet-5 as in the papers; a small network for images that are too small for it."""
    channels, size = data.x.shape[1], data.x.shape[2]
    if size < 28:
        return builtin("mlp", {"inputs": channels * size * size, "hidden": (64,), "classes": 10})
    return builtin("lenet5", {"channels": channels, "size": size, "classes": 10})


def measure(central: Central, state: State, fleet: Fleet, number: int) -> dict[str, Any]:
    """How good the final models are for a device: its own cluster's, and the one that it gets as a newcomer;
    None where it is refused one."""
    device = name(number)
    cluster = state.assignments[device]
    row: dict[str, Any] = {"device": device, "concept": fleet.truth[number].concept, "cluster": cluster}
    row["known"] = fleet.evaluate(number, Evaluate(state.models[cluster], part="test"))
    row["test"] = row["placed"] = None
    with contextlib.suppress(Refused):
        answer = central.place(state, None)
        if isinstance(answer, Describe):
            answer = central.place(state, fleet.describe(number, answer).descriptor)
        assert isinstance(answer, ClusterAssignment)
        row["placed"], row["abstained"] = answer.cluster, answer.abstained
        row["test"] = fleet.evaluate(number, Evaluate(state.models[answer.cluster], part="test"))
    return row


def grouping(state: State, truth: list[DeviceData]) -> dict[str, Any]:
    """What groups were found, and how well they agree with the truth."""
    found = [state.assignments[name(number)] for number in range(len(truth))]
    return {
        "clusters": len(set(found)),
        "ari": float(adjusted_rand_score([device.concept for device in truth], found)),
        "clustering_round": state.facts.get("clustering_round"),
        "assignments": found,
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return 100.0 * float(np.mean(known)) if known else None
