"""An experiment of the papers in one process: real data, a shift, an algorithm, and the tables' two figures.

known: mean accuracy on the devices' test parts of what each uses at the end of the run: its cluster's model
("known association"), or a personal one.
test: the same of what each device is given as a newcomer that shows its test data without labels, or a few of
them with labels. Where an algorithm cannot place a newcomer without labels, it is the accuracy of the models
of all clusters together, each weighted by its devices, which is how the papers measure such algorithms (FLUX,
F.1; FEROMA, I.3). A device that is refused a model predicts nothing right; None if all are refused.
tuned: what is known, if each device fine-tunes its cluster's model as `fedclient place` does.
f1, auc: of what is known, the mean over classes (`evaluation.metrics`); None where devices have
models or mixtures of their own. random: accuracy with a random cluster's model, where it is asked for.
worst, deviation: of the devices' known accuracies, the lowest one and the population's standard deviation.
own: what the devices measured themselves in the end, by the algorithm's own way of predicting.
newcomers: of devices that took no part and show labeled data, where the shift has any; with FedRC's shift,
the global accuracy of its paper.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from shoal.core.algorithm import Algorithm, ServerHalf, State, find, measurement, most_rounds
from shoal.core.data.dataset import Dataset
from shoal.core.data.seeds import generator
from shoal.core.device_kit.learner import Learner
from shoal.core.errors import BadPayload, DeviceFault, Refused
from shoal.core.exchange.choosing import Choose, Wish
from shoal.core.exchange.choosing.vote import Vote
from shoal.core.exchange.messages import Describe, Evaluate, Message, Represent
from shoal.core.exchange.parts import MAX_MODELS
from shoal.core.server_kit import placing
from shoal.core.server_kit.standard import ensemble
from shoal.core.types import DeviceId, ModelKey
from shoal.simulation.fleet import Fleet, Holding, numbered
from shoal.simulation.simulate import simulate, training_rounds
from shoal.simulation.simulated import SimulatedDevices, on_threads
from shoal_lab import models
from shoal_lab.datasets import images, natural
from shoal_lab.setting import Experiment, encoder, fleet_of, setting
from shoal_lab.shifts import newcomers

ENSEMBLE = "all clusters"

__all__ = ["Experiment", "grouping", "measure", "run"]


def run(experiment: Experiment, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Run it; what `fedserver simulate --json` prints as its data."""
    with on_threads(experiment.threads):
        return _run(experiment, progress)


def _run(experiment: Experiment, progress: Callable[[str], None]) -> dict[str, Any]:
    started = time.perf_counter()
    fixed = bool(experiment.rounds or experiment.drifts)
    experiment = replace(experiment, rounds=_rounds(experiment))
    progress(f"making {experiment.clients} devices of {experiment.dataset}")
    fleet, public = fleet_of(experiment)
    learner = models.learner(experiment.model, experiment.options, fleet)
    if public is not None:
        progress(f"training an encoder on {len(public)} images that no device gets")
        learner = replace(learner, encoder=encoder(learner, public, fleet.shape[0], experiment.seed))
    card = find(experiment.algorithm)[0]
    changes = {**({"rounds": experiment.rounds} if fixed else {}), **experiment.changes}
    if experiment.labels and hasattr(card.parameters, "labels_at_test"):
        changes["labels_at_test"] = True
    result = simulate(
        experiment.algorithm,
        fleet,
        model=learner,
        preset=_preset(experiment, card),
        seed=experiment.seed,
        model_seed=experiment.model_seed,
        device=experiment.device,
        threads=experiment.threads,
        workers=experiment.workers,
        participation=experiment.participation,
        progress=progress,
        **changes,
    )
    server, state = card.server(), result.state
    shown = f"{experiment.labels} labels of each class" if experiment.labels else "no labels"
    progress(f"placing every device as a newcomer with {shown}")
    per_device = [
        measure(server, state, result.devices, name, experiment.labels, experiment.random, experiment.tuned)
        for name in fleet
    ]
    strangers = _newcomers(experiment, card, server, state, learner)
    return {
        "algorithm": experiment.algorithm,
        "preset": result.preset,
        "privacy": remark(result.parameters),
        "dataset": experiment.dataset,
        **setting(experiment),
        "labels": experiment.labels,
        "seed": experiment.seed,
        "clients": experiment.clients,
        "samples": experiment.samples,
        "held_out": experiment.held_out,
        "participation": experiment.participation,
        "copies": experiment.copies,
        "rounds": experiment.rounds,
        "accuracy": {
            "known": _mean([row["known"] for row in per_device]),
            "test": mean_of_placed(per_device),
            "refused": sum(row["test"] is None for row in per_device),
            "tuned": _mean([row["tuned"] for row in per_device]),
            "worst": 100.0 * min(row["known"] for row in per_device),
            "random": _mean([row["random"] for row in per_device]),
            "f1": _mean([row["f1"] for row in per_device]),
            "auc": _mean([row["auc"] for row in per_device]),
            "deviation": 100.0 * float(np.std([row["known"] for row in per_device])),
            "own": _mean([each.accuracy for _, each in sorted(state.metrics.items())]),
            "newcomers": _mean([row["accuracy"] for row in strangers]),
            "per_device": per_device,
            "per_newcomer": strangers,
        },
        "verdict": None if result.verdict is None else result.verdict.facts(),
        "facts": result.facts,
        "remarks": list(result.remarks),
        **grouping(state, fleet, [row["cluster"] for row in per_device]),
        "trained": training_rounds(result.history),
        "history": [asdict(each) for each in result.history],
        "seconds": {"total": time.perf_counter() - started, "training": result.devices.training_seconds},
        "bytes": {"up": sum(result.outcome.up.values()), "down": sum(result.outcome.down.values())},
    }


def _rounds(experiment: Experiment) -> int:
    """How many there are: the devices' data may drift by them, so they are known before anything else."""
    algorithm, _ = find(experiment.algorithm)
    asked = {"rounds": experiment.rounds} if experiment.rounds else {}
    asked |= {name: value for name, value in experiment.changes.items() if name == "rounds"}
    return most_rounds(algorithm.configure(_preset(experiment, algorithm), asked))


def _preset(experiment: Experiment, algorithm: Algorithm) -> str:
    """A preset of the data set's own goes before the general one."""
    own = f"{experiment.preset}-{experiment.dataset}"
    return own if own in algorithm.presets else experiment.preset


def remark(parameters: Any) -> str:
    """How private the descriptors are, for people; empty where the algorithm asks for none."""
    mode = getattr(parameters, "privacy", "")
    remarks = {
        "off": "off, since simulated devices have no one to protect",
        "paper": "paper, which is not private",
    }
    return remarks.get(mode, mode)


def measure(
    server: ServerHalf,
    state: State,
    devices: SimulatedDevices,
    device: DeviceId,
    labels: int,
    random: bool = False,
    tuned: bool = False,
) -> dict[str, Any]:
    """How good the final models are for a device: its own cluster's, and the one that it gets as a newcomer;
    None where it is refused one, and why.

    random: also the mean over all clusters' models, which is what a newcomer gets from a random one. tuned:
    also what it has after fine-tuning, or what it has anyway where its algorithm predicts in another way.
    placed: the newcomer's cluster, or `ENSEMBLE` where it cannot be placed without labels.
    """
    cluster, asked = _home(server, state, devices, device)
    row: dict[str, Any] = {"device": device, "concept": devices.fleet[device].concept, "cluster": cluster}
    if isinstance(asked, Evaluate):  # the standard task, which can tell macro F1 and AUC, too
        asked = replace(asked, detailed=True, rho=None)
    known = devices.evaluated(device, asked)
    row["known"], row["f1"], row["auc"] = known.accuracy, known.f1, known.auc
    tasks = (measurement(server, state, key) for key in state.models)
    by_chance = [devices.accuracy(device, task, newcomer=True) for task in tasks] if random else []
    row["random"] = float(np.mean(by_chance)) if by_chance else None
    row["tuned"] = None
    if tuned:
        task = devices.tuned(server, state, device)
        row["tuned"] = known.accuracy if task is None else devices.accuracy(device, task)
    row["test"] = row["placed"] = row["refused"] = None
    try:
        answer = placing.place(server, state, Wish(MAX_MODELS), MAX_MODELS)
        if isinstance(answer, Message) and not labels and not label_free(answer):
            row["placed"] = ENSEMBLE
            row["test"] = devices.accuracy(device, ensemble(state), newcomer=True)
            return row
        by_labels = not (isinstance(answer, Describe | Vote) and label_free(answer))
        data = newcomer(devices, device, labels if by_labels else 0)
        placed = devices.placed(server, state, device, data)
        found = placed.assignment
        row["placed"], row["abstained"] = found.cluster, found.abstained
        row["confidence"] = found.confidence
        row["test"] = devices.accuracy(device, placed.task, newcomer=True)
    except BadPayload:
        raise
    except (Refused, DeviceFault) as refusal:  # labels are missing, say, or samples
        row["refused"] = str(refusal)
    return row


def newcomer(devices: SimulatedDevices, name: DeviceId, labels: int) -> Dataset:
    """What a device has as a newcomer: its test part without labels, or at most `labels` samples of each
    class with them, drawn at random."""
    data = devices.fleet[name].test
    if not labels:
        return Dataset(data.x)
    assert data.y is not None
    order = generator(devices.seed, "labelled", [*devices.fleet].index(name)).permutation(len(data))
    ranks = [order[data.y[order] == label][:labels] for label in np.unique(data.y)]
    return data.subset(np.concatenate(ranks))


def _home(
    server: ServerHalf, state: State, devices: SimulatedDevices, device: DeviceId
) -> tuple[ModelKey, Message]:
    """The cluster of a device, and what measures its model. One that no round has asked for what shows its
    cluster finds it by its own labeled samples, as a newcomer does; where it cannot, it has the model that
    most devices have."""
    cluster = state.assignments.get(device)
    if cluster is None and state.assignments:
        holding = devices.fleet[device]
        try:
            placed = devices.placed(server, state, device, holding.stage(len(holding.begins) - 1))
            return placed.assignment.cluster, placed.task
        except (Refused, DeviceFault):
            cluster = Counter(state.assignments.values()).most_common(1)[0][0]
    cluster = cluster or next(iter(state.models))
    return cluster, measurement(server, state, cluster)


def label_free(question: Message) -> bool:
    """Whether a newcomer can answer a question about its data without labels."""
    return (
        isinstance(question, Choose | Vote)
        or (isinstance(question, Describe) and not question.classes)
        or (isinstance(question, Represent) and not question.by_class)
    )


def _newcomers(
    experiment: Experiment, algorithm: Algorithm, server: ServerHalf, state: State, learner: Learner
) -> list[dict[str, Any]]:
    """How well labeled devices do that took no part, one for each concept, where the shift has them."""
    if experiment.dataset in natural.NAMES:
        return []
    data = images.load(experiment.dataset, experiment.data_dir, experiment.label)
    made = newcomers(experiment.shift, experiment.seed, *data)
    if not made:
        return []
    fleet = numbered([Holding.steady(one.train, one.test, one.concept) for one in made])
    devices = SimulatedDevices(algorithm, fleet, learner, experiment.device, experiment.seed)
    rows = []
    for name, one in zip(fleet, made, strict=True):
        placed = devices.placed(server, state, name, one.train)
        accuracy = devices.accuracy(name, placed.task, newcomer=True)
        rows.append({"concept": one.concept, "placed": placed.assignment.cluster, "accuracy": accuracy})
    return rows


def grouping(state: State, fleet: Fleet, found: list[ModelKey]) -> dict[str, Any]:
    """What groups were found, and how well they agree with the truth. found: the cluster of each device."""
    return {
        "clusters": len(set(found)),
        "ari": float(adjusted_rand_score(fleet.concepts, found)),
        "clustering_round": state.facts.get("clustering_round"),
        "assignments": found,
    }


def mean_of_placed(rows: list[dict[str, Any]]) -> float | None:
    """The mean of the newcomers' accuracies, 0 for those that were refused; None if all were."""
    if all(row["test"] is None for row in rows):
        return None
    return _mean([row["test"] or 0.0 for row in rows])


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return 100.0 * float(np.mean(known)) if known else None
