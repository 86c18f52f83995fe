"""An experiment of the papers in one process: real data, a shift, an algorithm, and the tables' two figures.

known: mean accuracy on the devices' test parts of what each uses at the end of the run: its cluster's model
("known association"), or a personal one.
test: the same of what each device is given as a newcomer who shows its test data without labels, or a few of
them with labels.
own: what the devices measured themselves in the end, by the algorithm's own way of predicting.
newcomers: of devices that took no part and show labelled data, where the shift has some; with FedRC's shift,
the global accuracy of its paper.
"""

import mmap
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from shoal.core.algorithm import Algorithm, ServerHalf, State, find, measurement
from shoal.core.device_kit.learner import Learner, initial_weights
from shoal.core.engine.events import Effect, Opened
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import BadPayload, DeviceFault, Refused
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import ClusterAssignment
from shoal.core.exchange.tensors import manifest_of, pack, unpack
from shoal.core.types import Tensors
from shoal.lab.datasets import images, natural
from shoal.lab.fleet import Fleet, Holding, name
from shoal.lab.pretrain import encoder
from shoal.lab.setting import classes_of, holdings_of, learner_for, setting
from shoal.lab.shifts import newcomers
from shoal.lab.shifts.drift import MODES


@dataclass(frozen=True)
class Experiment:
    """What to run. seed: of the data and of the shuffling. model_seed: of the initial weights, 42 in all of
    the papers' repetitions. threads: of PyTorch; 0 leaves it to PyTorch. changes: to parameters, by name;
    privacy is off where they do not say otherwise, for simulated data are nobody's.
    samples: training images of a device; 0 shares out all that there are. rounds: 0 for the preset's.

    drifts: stages that each device's data go through, see `shoal.lab.shifts.drift`, as is mode; 0: they stay.
    level: 1 to 8, or with drifts "low", "medium", "high". labels: samples of each class that newcomers show.
    model: a network of `shoal.core.models`, with `options`; "" takes one that fits the images. public: the
    share of the train images that no device gets and that a frozen encoder is trained on, for algorithms that
    need one.
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
    samples: int = 0
    model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    public: float = 0.0
    rounds: int = 0
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
    experiment = replace(experiment, rounds=_rounds(experiment))
    progress(f"making {experiment.clients} devices of {experiment.dataset}")
    holdings, public = holdings_of(experiment)
    algorithm, parameters, preset = _configure(experiment, holdings)
    learner = learner_for(experiment, holdings[0].test, classes_of(holdings))
    if public is not None:
        channels = holdings[0].test.x.shape[1]
        progress(f"training an encoder on {len(public)} images that no device gets")
        learner = replace(learner, encoder=encoder(learner, public, channels, experiment.seed))
    fleet = Fleet(algorithm, holdings, learner, experiment.device, experiment.seed, spooled)
    server_half = algorithm.server()
    first, *others = (
        initial_weights(fleet.learner, experiment.model_seed + number)
        for number in range(algorithm.initial(parameters))
    )
    state = server_half.start(first, parameters, *others)
    policy = RoundPolicy(minimum=experiment.clients)

    def watch(effect: Effect) -> None:
        if isinstance(effect, Opened):
            progress(effect.title)

    outcome = simulate(
        server_half, state, fleet.devices(), policy, experiment.seed, keep=spooled, watch=watch
    )
    if outcome.failed:
        raise Refused(f"the run failed: {outcome.reason}")
    shown = f"{experiment.labels} labels of each class" if experiment.labels else "no labels"
    progress(f"placing every device as a newcomer with {shown}")
    per_device = [
        measure(server_half, outcome.state, fleet, number, experiment.labels)
        for number in range(len(holdings))
    ]
    strangers = _newcomers(experiment, algorithm, server_half, outcome.state, learner)
    return {
        "algorithm": experiment.algorithm,
        "preset": preset,
        "privacy": told(parameters),
        "dataset": experiment.dataset,
        **setting(experiment),
        "labels": experiment.labels,
        "seed": experiment.seed,
        "clients": experiment.clients,
        "samples": experiment.samples,
        "rounds": experiment.rounds,
        "accuracy": {
            "known": _mean([row["known"] for row in per_device]),
            "test": _mean([row["test"] for row in per_device]),
            "own": _mean([each.accuracy for _, each in sorted(outcome.state.metrics.items())]),
            "newcomers": _mean([row["accuracy"] for row in strangers]),
            "per_device": per_device,
            "per_newcomer": strangers,
        },
        "facts": dict(outcome.state.facts),
        **grouping(outcome.state, holdings),
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


def _configure(experiment: Experiment, holdings: Sequence[Holding]) -> tuple[Algorithm, Any, str]:
    """The algorithm with its parameters, and the name of its preset."""
    algorithm, variant = find(experiment.algorithm)
    preset = _preset(experiment, algorithm)
    changes: dict[str, Any] = {**variant, "rounds": experiment.rounds}
    if hasattr(algorithm.parameters, "classes"):
        changes["classes"] = classes_of(holdings)
    if hasattr(algorithm.parameters, "privacy"):
        changes["privacy"] = "off"
    changes |= experiment.changes
    if changes.get("clusters") == -1:  # an algorithm that must be told how many there are: tell it the truth
        changes["clusters"] = len({holding.concept for holding in holdings})
    if experiment.labels and hasattr(algorithm.parameters, "labels_at_test"):
        changes["labels_at_test"] = True
    return algorithm, algorithm.configure(preset, changes), preset


def _rounds(experiment: Experiment) -> int:
    """How many there are: the devices' data may drift by them, so they are known before anything else."""
    algorithm, _ = find(experiment.algorithm)
    asked = {"rounds": experiment.rounds} if experiment.rounds else {}
    asked |= {name: value for name, value in experiment.changes.items() if name == "rounds"}
    rounds: int = algorithm.configure(_preset(experiment, algorithm), asked).rounds
    return rounds


def _preset(experiment: Experiment, algorithm: Algorithm) -> str:
    """A preset of the data set's own goes before the general one."""
    own = f"{experiment.preset}-{experiment.dataset}"
    return own if own in algorithm.presets else experiment.preset


def told(parameters: Any) -> str:
    """How private the descriptors are, for people; empty where the algorithm asks for none."""
    mode = getattr(parameters, "privacy", "")
    remarks = {"off": "off, since simulated data are nobody's", "paper": "paper, which is not private"}
    return remarks.get(mode, mode)


def measure(server_half: ServerHalf, state: State, fleet: Fleet, number: int, labels: int) -> dict[str, Any]:
    """How good the final models are for a device: its own cluster's, and the one that it gets as a newcomer;
    None where it is refused one, and why."""
    device = name(number)
    cluster = state.assignments[device]
    row: dict[str, Any] = {"device": device, "concept": fleet.holdings[number].concept, "cluster": cluster}
    row["known"] = fleet.accuracy(number, measurement(server_half, state, cluster))
    row["test"] = row["placed"] = row["refused"] = None
    try:
        answer = server_half.place(state, None)
        if isinstance(answer, Message):
            answer = server_half.place(state, fleet.show(number, answer, labels))
        assert isinstance(answer, ClusterAssignment)
        row["placed"], row["abstained"] = answer.cluster, answer.abstained
        task = measurement(server_half, state, answer.cluster)
        row["test"] = fleet.accuracy(number, task, newcomer=True)
    except BadPayload:
        raise
    except (Refused, DeviceFault) as refusal:  # labels are missing, say, or samples
        row["refused"] = str(refusal)
    return row


def _newcomers(
    experiment: Experiment, algorithm: Algorithm, server_half: ServerHalf, state: State, learner: Learner
) -> list[dict[str, Any]]:
    """How labelled devices fare that took no part, one for each concept, where the shift has them."""
    if experiment.dataset in natural.NAMES:
        return []
    made = newcomers(experiment.shift, experiment.seed, *images.load(experiment.dataset, experiment.data_dir))
    if not made:
        return []
    holdings = [Holding.steady(device) for device in made]
    fleet = Fleet(algorithm, holdings, learner, experiment.device, experiment.seed)
    rows = []
    for number, device in enumerate(made):
        answer = server_half.place(state, None)
        if isinstance(answer, Message):
            answer = server_half.place(state, fleet.shown(number, answer, device.train))
        assert isinstance(answer, ClusterAssignment)
        accuracy = fleet.accuracy(number, measurement(server_half, state, answer.cluster), newcomer=True)
        rows.append({"concept": device.concept, "placed": answer.cluster, "accuracy": accuracy})
    return rows


def grouping(state: State, holdings: Sequence[Holding]) -> dict[str, Any]:
    """What groups were found, and how well they agree with the truth."""
    found = [state.assignments[name(number)] for number in range(len(holdings))]
    return {
        "clusters": len(set(found)),
        "ari": float(adjusted_rand_score([device.concept for device in holdings], found)),
        "clustering_round": state.facts.get("clustering_round"),
        "assignments": found,
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return 100.0 * float(np.mean(known)) if known else None
