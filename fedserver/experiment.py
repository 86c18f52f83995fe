"""An experiment of the papers in one process: real data, a shift, an algorithm, and the tables' two figures.

known: mean accuracy of the devices' own clusters' models on their test parts ("known association").
test: the same with the model that each device is given as a newcomer who shows its test data without labels,
or a few of them with labels.
"""

import contextlib
import mmap
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from fedcore.algorithm import Algorithm, Central, State, find
from fedcore.data import images, natural
from fedcore.data.dataset import Dataset
from fedcore.errors import ConfigError, Refused
from fedcore.events import Effect, Opened
from fedcore.local.learner import Learner, builtin
from fedcore.local.weights import initial_weights
from fedcore.messages import Describe, Evaluate
from fedcore.parts import ClusterAssignment
from fedcore.rounds import RoundPolicy
from fedcore.shifts import drifting, make
from fedcore.shifts.drift import MODES
from fedcore.simulate import Outcome, simulate
from fedcore.tensors import manifest_of, pack, unpack
from fedcore.types import Tensors
from fedserver.fleet import Fleet, Holding, name


@dataclass(frozen=True)
class Experiment:
    """What to run. seed: of the data and of the shuffling. model_seed: of the initial weights, 42 in all of
    the papers' repetitions. threads: of PyTorch; 0 leaves it to PyTorch. changes: to parameters, by name.

    drifts: stages that each device's data go through, see `fedcore.shifts.drift`, as is mode; 0: they stay.
    level: 1 to 8, or with drifts "low", "medium", "high". labels: samples of each class that newcomers show.
    """

    algorithm: str = "flux"
    preset: str = "default"
    dataset: str = "digits"
    data_dir: Path | None = None
    shift: str = "px"
    level: int | str = 5
    drifts: int = 0
    mode: str = MODES[0]
    labels: int = 0
    clients: int = 10
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
    holdings = _holdings(experiment)
    algorithm, parameters, preset = _configure(experiment, holdings)
    learner = _learner(holdings[0].test, _classes(holdings))
    fleet = Fleet(algorithm, holdings, learner, experiment.device, experiment.seed)
    central = algorithm.central()
    state = central.start(initial_weights(fleet.learner, experiment.model_seed), parameters)
    policy = RoundPolicy(minimum=experiment.clients)

    def watch(effect: Effect) -> None:
        if isinstance(effect, Opened):
            progress(effect.title)

    outcome = simulate(central, state, fleet.devices(), policy, experiment.seed, keep=spooled, watch=watch)
    if outcome.failed:
        raise Refused(f"the run failed: {outcome.reason}")
    shown = f"{experiment.labels} labels of each class" if experiment.labels else "no labels"
    progress(f"placing every device as a newcomer with {shown}")
    per_device = [
        _measure(central, outcome.state, fleet, number, experiment.labels) for number in range(len(holdings))
    ]
    return {
        "algorithm": experiment.algorithm,
        "preset": preset,
        "dataset": experiment.dataset,
        **_setting(experiment),
        "labels": experiment.labels,
        "seed": experiment.seed,
        "clients": experiment.clients,
        "rounds": experiment.rounds,
        "accuracy": {
            "known": _mean([row["known"] for row in per_device]),
            "test": _mean([row["test"] for row in per_device]),
            "per_device": per_device,
        },
        **_grouping(outcome, holdings),
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


def _setting(experiment: Experiment) -> dict[str, Any]:
    """How the devices differ, and how they change."""
    if experiment.dataset in natural.NAMES:
        return {"shift": "natural", "level": "", "drifts": experiment.drifts, "mode": "in time order"}
    mode = experiment.mode if experiment.drifts else ""
    return {"shift": experiment.shift, "level": experiment.level, "drifts": experiment.drifts, "mode": mode}


def _holdings(experiment: Experiment) -> list[Holding]:
    clients, seed, rounds = experiment.clients, experiment.seed, experiment.rounds
    try:
        if experiment.dataset in natural.NAMES:
            stages = max(experiment.drifts, 1)
            found = natural.load(experiment.dataset, experiment.data_dir, clients, stages)
            return [Holding.natural(device, rounds) for device in found]
        train, test = images.load(experiment.dataset, experiment.data_dir)
        if experiment.drifts:
            level = str(experiment.level)
            made = drifting(
                experiment.shift, level, experiment.drifts, clients, seed, train, test, experiment.mode
            )
            return [Holding.drifting(device, rounds) for device in made]
        if not isinstance(experiment.level, int):
            raise ValueError(f"level {experiment.level!r} needs --drifts: without, levels are 1 to 8")
        return [
            Holding.steady(device)
            for device in make(experiment.shift, experiment.level, clients, seed, train, test)
        ]
    except (ValueError, FileNotFoundError) as fault:
        raise ConfigError(str(fault)) from None


def _configure(experiment: Experiment, holdings: Sequence[Holding]) -> tuple[Algorithm, Any, str]:
    """The algorithm with its parameters; a preset of the data set's own goes before the general one."""
    algorithm, variant = find(experiment.algorithm)
    own = f"{experiment.preset}-{experiment.dataset}"
    preset = own if own in algorithm.presets else experiment.preset
    changes: dict[str, Any] = {**variant, "rounds": experiment.rounds}
    if hasattr(algorithm.parameters, "classes"):
        changes["classes"] = _classes(holdings)
    if changes.get("clusters") == -1:  # an algorithm that must be told how many there are: tell it the truth
        changes["clusters"] = len({holding.concept for holding in holdings})
    if experiment.labels and hasattr(algorithm.parameters, "labels_at_test"):
        changes["labels_at_test"] = True
    return algorithm, algorithm.configure(preset, {**changes, **experiment.changes}), preset


def _learner(data: Dataset, classes: int) -> Learner:
    """LeNet-5 as in the papers; small networks for small images, for windows of readings, and for rows."""
    if data.x.ndim == 2:
        return builtin("mlp", {"inputs": data.x.shape[1], "hidden": (32, 16), "classes": classes})
    if data.x.ndim == 3:
        return builtin("cnn1d", {"channels": data.x.shape[1], "length": data.x.shape[2], "classes": classes})
    channels, size = data.x.shape[1], data.x.shape[2]
    if size < 28:
        return builtin("mlp", {"inputs": channels * size * size, "hidden": (64,), "classes": classes})
    return builtin("lenet5", {"channels": channels, "size": size, "classes": classes})


def _classes(holdings: Sequence[Holding]) -> int:
    """How many classes there are; ten in all image sets, whoever lacks some."""
    labels = [each.test.y for each in holdings if each.test.y is not None]
    return 10 if holdings[0].test.x.ndim == 4 else 1 + max(int(own.max()) for own in labels)


def _measure(central: Central, state: State, fleet: Fleet, number: int, labels: int) -> dict[str, Any]:
    device = name(number)
    cluster = state.assignments[device]
    row: dict[str, Any] = {"device": device, "concept": fleet.holdings[number].concept, "cluster": cluster}
    row["known"] = fleet.evaluate(number, Evaluate(state.models[cluster], part="test"))
    row["test"] = row["placed"] = None
    with contextlib.suppress(Refused):
        answer = central.place(state, None)
        if isinstance(answer, Describe):
            answer = central.place(state, fleet.describe(number, answer, labels).descriptor)
        assert isinstance(answer, ClusterAssignment)
        row["placed"], row["abstained"] = answer.cluster, answer.abstained
        row["test"] = fleet.evaluate(number, Evaluate(state.models[answer.cluster], part="test"))
    return row


def _grouping(outcome: Outcome, holdings: Sequence[Holding]) -> dict[str, Any]:
    found = [outcome.state.assignments[name(number)] for number in range(len(holdings))]
    return {
        "clusters": len(set(found)),
        "ari": float(adjusted_rand_score([device.concept for device in holdings], found)),
        "clustering_round": outcome.state.facts.get("clustering_round"),
        "assignments": found,
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return 100.0 * float(np.mean(known)) if known else None
