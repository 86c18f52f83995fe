"""An experiment of the papers in one process: real data, a shift, an algorithm, and the tables' two figures.

known: mean accuracy on the devices' test parts of what each uses at the end of the run: its cluster's model
("known association"), or a personal one.
test: the same of what each device is given as a newcomer who shows its test data without labels.
"""

import contextlib
import mmap
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from fedcore.algorithm import Algorithm, Central, State, find, measurement
from fedcore.data import images
from fedcore.data.dataset import Dataset
from fedcore.data.pixels import unit
from fedcore.data.views import Views
from fedcore.errors import ConfigError, DeviceFault, Refused
from fedcore.events import Effect, Opened
from fedcore.local.bench import Bench
from fedcore.local.learner import Learner, builtin
from fedcore.local.samples import convert
from fedcore.local.simulated import Simulated
from fedcore.local.train import train
from fedcore.local.weights import initial_weights
from fedcore.messages import Evaluated, Message, Trained, TrainingSettings
from fedcore.parts import ClusterAssignment, Evidence
from fedcore.payload import fields_of
from fedcore.privacy.account import Unmetered
from fedcore.rounds import RoundPolicy
from fedcore.seeds import generator
from fedcore.shifts import DeviceData, make
from fedcore.simulate import Outcome, simulate
from fedcore.tensors import manifest_of, pack, unpack
from fedcore.types import DeviceId, Tensors

ENCODER = TrainingSettings(epochs=20, batch_size=32, learning_rate=0.02)
"""How an encoder is trained on public images."""


@dataclass(frozen=True)
class Experiment:
    """What to run. seed: of the data and of the shuffling. model_seed: of the initial weights, 42 in all of
    the papers' repetitions. threads: of PyTorch; 0 leaves it to PyTorch. changes: to parameters, by name.

    model: a network of `fedcore.models`, with `options`; "" takes one that fits the images. public: the share
    of the train images that no device gets and that a frozen encoder is trained on, for algorithms that
    need one.
    """

    algorithm: str = "flux"
    preset: str = "default"
    dataset: str = "digits"
    data_dir: Path | None = None
    shift: str = "px"
    level: int = 5
    clients: int = 10
    model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    public: float = 0.0
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
    truth, public = _devices(experiment)
    algorithm, parameters, preset = _configure(experiment, truth)
    learner = _learner(experiment, truth[0].train)
    if public is not None:
        channels = truth[0].train.x.shape[1]
        progress(f"training an encoder on {len(public)} images that no device gets")
        learner = replace(learner, encoder=encoder(learner, public, channels, experiment.seed))
    fleet = Fleet(algorithm, truth, learner, experiment)
    central = algorithm.central()
    first, *others = (
        initial_weights(fleet.learner, experiment.model_seed + number)
        for number in range(algorithm.initial(parameters))
    )
    state = central.start(first, parameters, *others)
    policy = RoundPolicy(minimum=experiment.clients)

    def watch(effect: Effect) -> None:
        if isinstance(effect, Opened):
            progress(effect.title)

    outcome = simulate(central, state, fleet.devices(), policy, experiment.seed, keep=spooled, watch=watch)
    if outcome.failed:
        raise Refused(f"the run failed: {outcome.reason}")
    progress("placing every device as a newcomer without labels")
    per_device = [_measure(central, outcome.state, fleet, number) for number in range(experiment.clients)]
    return {
        "algorithm": experiment.algorithm,
        "preset": preset,
        "dataset": experiment.dataset,
        "shift": experiment.shift,
        "level": experiment.level,
        "seed": experiment.seed,
        "clients": experiment.clients,
        "rounds": experiment.rounds,
        "accuracy": {
            "known": _mean([row["known"] for row in per_device]),
            "test": _mean([row["test"] for row in per_device]),
            "per_device": per_device,
        },
        **_grouping(outcome, truth),
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
        self._memories: dict[DeviceId, Tensors] = {}
        self._benches = [self._bench(number, Views.of(d.train, d.test)) for number, d in enumerate(truth)]

    def devices(self) -> dict[DeviceId, Callable[[Message, int], Message]]:
        return {name(number): self._device(name(number), bench) for number, bench in enumerate(self._benches)}

    def accuracy(self, number: int, task: Message, newcomer: bool = False) -> float:
        """By a task that `measurement` gave. A newcomer remembers nothing of the run."""
        memory = None if newcomer else self._memories.get(name(number))
        answer = self._local.perform(task, self._benches[number].for_task(0, memory))
        assert isinstance(answer, Evaluated)
        return answer.accuracy

    def show(self, number: int, question: Message) -> Evidence:
        """As a newcomer: the test images, without labels. Raises DeviceFault where it takes some."""
        newcomer = self._bench(number, Views.of(Dataset(self.truth[number].test.x)))
        answer = self._local.perform(question, newcomer)
        parts = (getattr(answer, name) for name in fields_of(type(answer)))
        return next(part for part in parts if isinstance(part, Evidence))

    def _bench(self, number: int, views: Views) -> Bench:
        noise = generator(self._experiment.seed, "privacy noise", number)
        account = Unmetered(noise.bytes)
        return Bench(self.learner, views, self._experiment.device, 0, noise, self._network, account)

    def _device(self, device: DeviceId, bench: Bench) -> Callable[[Message, int], Message]:
        simulated = Simulated(self._local, bench, device, self._memories, spooled)

        def perform(message: Message, seed: int) -> Message:
            started = time.perf_counter()
            answer = simulated(message, seed)
            if message.reply is Trained:
                self.training_seconds += time.perf_counter() - started
            return answer

        return perform


def name(number: int) -> DeviceId:
    """Device ids sort as their numbers do."""
    return f"device-{number:03}"


def _devices(experiment: Experiment) -> tuple[list[DeviceData], Dataset | None]:
    """The devices' data, and what is public."""
    if not 0.0 <= experiment.public < 1.0:
        raise ConfigError(f"a share of {experiment.public} of the images is public", "give 0 to below 1")
    try:
        train, test = images.load(experiment.dataset, experiment.data_dir)
        public, train = apart(train, experiment.public, experiment.seed)
        found = make(experiment.shift, experiment.level, experiment.clients, experiment.seed, train, test)
        return found, public if experiment.public else None
    except (ValueError, FileNotFoundError) as fault:
        raise ConfigError(str(fault)) from None


def apart(data: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """So large a share of the rows, drawn at random, and the rest in its own order."""
    chosen = np.zeros(len(data), bool)
    count = round(share * len(data))
    chosen[generator(seed, "public").permutation(len(data))[:count]] = True
    return data.subset(chosen), data.subset(~chosen)


def encoder(learner: Learner, public: Dataset, channels: int, seed: int) -> Callable[[Tensor], Tensor]:
    """The latent of a network like the learner's, trained on public images and then frozen."""
    network = learner.module(seed)
    x = np.repeat(unit(public.x), channels, axis=1) if public.x.ndim == 3 else unit(public.x)
    train(learner, network, convert(Dataset(x, public.y), torch.device("cpu")), ENCODER, seed)
    return cast(Callable[[Tensor], Tensor], network.requires_grad_(False).eval().latent)


def _configure(experiment: Experiment, truth: list[DeviceData]) -> tuple[Algorithm, Any, str]:
    """The algorithm with its parameters; a preset of the data set's own goes before the general one."""
    algorithm, variant = find(experiment.algorithm)
    own = f"{experiment.preset}-{experiment.dataset}"
    preset = own if own in algorithm.presets else experiment.preset
    changes: dict[str, Any] = {**variant, "rounds": experiment.rounds}
    if changes.get("clusters") == -1:  # an algorithm that must be told how many there are: tell it the truth
        changes["clusters"] = len({device.concept for device in truth})
    return algorithm, algorithm.configure(preset, {**changes, **experiment.changes}), preset


def _learner(experiment: Experiment, data: Dataset) -> Learner:
    """LeNet-5 as in the papers, a small network for images too small for it, or what is asked for."""
    channels, size = data.x.shape[1], data.x.shape[2]
    if experiment.model:
        image = {"channels": channels, "size": size}
        own = {"inputs": channels * size * size} if experiment.model == "mlp" else image
        return builtin(experiment.model, {**own, **experiment.options})
    if size < 28:
        return builtin("mlp", {"inputs": channels * size * size, "hidden": (64,), "classes": 10})
    return builtin("lenet5", {"channels": channels, "size": size, "classes": 10})


def _measure(central: Central, state: State, fleet: Fleet, number: int) -> dict[str, Any]:
    device = name(number)
    cluster = state.assignments[device]
    row: dict[str, Any] = {"device": device, "concept": fleet.truth[number].concept, "cluster": cluster}
    row["known"] = fleet.accuracy(number, measurement(central, state, cluster))
    row["test"] = row["placed"] = None
    with contextlib.suppress(Refused, DeviceFault):
        answer = central.place(state, None)
        if isinstance(answer, Message):
            answer = central.place(state, fleet.show(number, answer))
        assert isinstance(answer, ClusterAssignment)
        row["placed"], row["abstained"] = answer.cluster, answer.abstained
        task = measurement(central, state, answer.cluster)
        row["test"] = fleet.accuracy(number, task, newcomer=True)
    return row


def _grouping(outcome: Outcome, truth: list[DeviceData]) -> dict[str, Any]:
    found = [outcome.state.assignments[name(number)] for number in range(len(truth))]
    return {
        "clusters": len(set(found)),
        "ari": float(adjusted_rand_score([device.concept for device in truth], found)),
        "clustering_round": outcome.state.facts.get("clustering_round"),
        "assignments": found,
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return 100.0 * float(np.mean(known)) if known else None
