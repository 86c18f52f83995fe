"""How good the model is that a newcomer without labels gets, by each kind of evidence.

    python -m benchmarks.placing [--algorithm flux] [--dataset digits] [--data-dir DIR] [--seeds 43,44]
        [--shifts px,py,pxy] [--level 5] [--clients 8] [--rounds 30] [--samples 0] [--batch-size 64]
        [--privacy balanced] [--json FILE]

A row is a number of samples that each newcomer has: the mean accuracy over all newcomers of the model that it
gets by each way, beside that of its own cluster, of the best cluster for it, and of FedAvg with the same
seed. `paper` is the algorithm's own way, with labels if it takes them, `models` the one model that the mutual
information of the clusters' models names, and `default` what a device does: it weighs both that and the
likelihood of its samples in each cluster, with models in few bits, and the likeliest models predict together.
`whole` is the same with whole models, and `single` the one model of `default` that fits best. Newcomers are
the run's devices with their test parts, which no training has seen.

HAPT's devices differ by themselves: --dataset hapt --shifts natural --clients 30 --rounds 8 --batch-size 16.

A piece is a shift, a level and a seed. With --json, each piece is stored in FILE when it is done, in few
bytes, and one that is there already is not run again; tables are of the pieces that were asked for.

Where the algorithm knows where its clusters' data lie, a second table has the private vote at --epsilon: how
often the own cluster is named exactly, that is by the likeliest density of all samples, and by the vote
(mean over 50 draws), and the accuracy of the models.

The last table is for the reliability of the confidence: of placements by default, how many are right, that
is, as good for the newcomer as its own cluster's model, or better.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

import shoal
from shoal.core.algorithm import ServerHalf, State, densities
from shoal.core.data.dataset import Dataset
from shoal.core.data.seeds import generator
from shoal.core.device_kit.context import DeviceContext
from shoal.core.errors import DeviceFault, Refused
from shoal.core.exchange.choosing import Choose, Chosen
from shoal.core.exchange.choosing.compact import compact
from shoal.core.exchange.choosing.vote import vote_on
from shoal.core.exchange.messages import Describe, Evaluate
from shoal.core.exchange.parts import ClusterAssignment, FloatArray, Integers
from shoal.core.exchange.tensors import manifest_of
from shoal.core.inference.describing import projected
from shoal.core.inference.nearness import log_densities
from shoal.core.inference.network import class_scores, softmax
from shoal.core.inference.newcomer import chosen, members, vote
from shoal.core.privacy.accountant import R, T, Unmetered
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.noise.vote import drawn
from shoal.core.privacy.payment import Payment
from shoal.core.server_kit import placing
from shoal.core.types import Tensors
from shoal.simulation.learners import learner_of
from shoal.simulation.simulate import SimulationResult
from shoal_lab.setting import Experiment, encoder, fleet_of

SAMPLES = (5, 10, 20, 40, 100, 400)
BINS = (0.0, 0.5, 0.7, 0.9, 0.99, 1.01)


def main() -> None:
    asked = _arguments()
    rows = defaultdict[int, list[dict[str, Any]]](list)
    for shift in asked.shifts.split(","):
        for level in map(int, asked.level.split(",")):
            for seed in map(int, asked.seeds.split(",")):
                for row in piece(asked, shift, level, seed):
                    rows[row["samples"]].append(row)
    ways = ("paper", "models", "single", "whole", "default", "common", "own_cluster", "best", "fedavg")
    print(f"{'samples':>8}{'newcomers':>11}" + "".join(f"{way:>13}" for way in ways))
    for samples, found in sorted(rows.items()):
        print(f"{samples:>8}{len(found):>11}" + "".join(f"{_mean(found, way):>13.1f}" for way in ways))
    for samples, found in sorted(rows.items()):
        if "vote" in found[0] and samples == min(rows):
            print(f"\n{'samples':>8}{'exactly':>11}{'by vote':>11}{'exactly':>13}{'by vote':>13}")
        if "vote" in found[0]:
            named = "".join(f"{_mean(found, way):>11.1f}" for way in ("exactly_named", "vote_named"))
            print(
                f"{samples:>8}{named}" + "".join(f"{_mean(found, way):>13.1f}" for way in ("exactly", "vote"))
            )
    every = [row for found in rows.values() for row in found]
    bins = list(reliability(every))
    print(f"\n{'confidence':>14}{'placements':>12}{'mean':>8}{'right, %':>10}")
    for name, count, mean, right in bins:
        print(f"{name:>14}{count:>12}{mean:>8.2f}{100 * right:>10.1f}")


def piece(asked: argparse.Namespace, shift: str, level: int, seed: int) -> list[dict[str, Any]]:
    """The rows of a shift, a level and a seed: those in the file, or else what `cells` finds."""
    settings = "algorithm dataset clients rounds samples learning_rate batch_size privacy public epsilon"
    wanted = {name: getattr(asked, name) for name in settings.split()}
    wanted |= {"shift": shift, "level": level, "seed": seed}
    kept = json.loads(asked.json.read_text()) if asked.json and asked.json.exists() else []
    for each in kept:
        if each["settings"] == wanted:
            return [dict(zip(each["columns"], row, strict=True)) for row in each["rows"]]
    found = [
        {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
        for row in cells(asked, shift, level, seed)
    ]
    if asked.json:
        columns = list(found[0])
        lines = [[row[name] for name in columns] for row in found]
        kept.append({"settings": wanted, "columns": columns, "rows": lines})
        asked.json.write_text("[\n" + ",\n".join(json.dumps(each) for each in kept) + "\n]\n")
    return found


def reliability(rows: list[dict[str, Any]]) -> Iterator[tuple[str, int, float, float]]:
    """For each range of confidence: its name, how many placements have it, their mean, and the share that is
    right."""
    for low, high in pairwise(BINS):
        inside = [row for row in rows if low <= row["confidence"] < high]
        if inside:
            mean = float(np.mean([row["confidence"] for row in inside]))
            right = float(np.mean([row["right"] for row in inside]))
            yield f"{low:.2f} to {min(high, 1.0):.2f}", len(inside), mean, right


def cells(asked: argparse.Namespace, shift: str, level: int, seed: int) -> Iterator[dict[str, Any]]:
    """One row for each newcomer and number of samples."""
    setting = Experiment(
        dataset=asked.dataset, data_dir=asked.data_dir, shift=shift, level=level,
        clients=asked.clients, samples=asked.samples, seed=seed, public=asked.public,
    )  # fmt: skip
    fleet, public = fleet_of(setting)
    learner = learner_of(None, None, {}, fleet)
    if public is not None:
        learner = replace(learner, encoder=encoder(learner, public, fleet.shape[0], seed))
    given = {name: getattr(asked, name) for name in ("rounds", "learning_rate", "batch_size")}
    common = {name: value for name, value in given.items() if value}
    own_settings = {"privacy": asked.privacy} if asked.privacy else {}
    result, fedavg = (
        shoal.simulate(name, fleet, model=learner, seed=seed, model_seed=42, device="cpu", **common, **more)
        for name, more in ((asked.algorithm, own_settings), ("fedavg", {}))
    )
    assert isinstance(result, SimulationResult)
    assert isinstance(fedavg, SimulationResult)
    devices, server, state = result.devices, result.card.server(), result.state
    keys = [*placing.clusters(state), "global"]
    question = placing.offer(server, state)
    compacted = compact(question).opened(manifest_of(question.models[-1]))
    for name in fleet:
        test = fleet[name].test
        accuracy, given = (
            dict(zip(keys, (devices.accuracy(name, Evaluate(m, "test")) for m in each.models), strict=True))
            for each in (question, compacted)
        )
        every = devices.context(name, Dataset(test.x))
        tries = [Trial(every, each) for each in (question, compacted)]
        one = fedavg.devices.accuracy(name, Evaluate(fedavg.models["global"], "test"))
        order = generator(seed, "newcomer", name).permutation(len(test))
        for samples in SAMPLES:
            if samples > len(test) and samples > min(SAMPLES):
                break
            data = Dataset(test.x[order[:samples]])
            labels = test.subset(order[:samples])
            context = devices.context(name, data)
            rows = order[:samples]
            answer, predicted = tries[1].placed(rows)
            where, own = answer.assignment, state.assignments[name]
            best = max(value for key, value in accuracy.items() if key != "global")
            yield {
                "device": name, "samples": samples,
                "confidence": where.confidence, "placed": where.cluster,
                "default": float((predicted == test.y).mean()), "single": given[where.cluster],
                "together": 1 if answer.mixture is None else len(members(answer)),
                "right": bool(given[where.cluster] >= given[own]),
                "whole": float((tries[0].placed(rows)[1] == test.y).mean()),
                "models": accuracy[tries[0].placed(rows, densities=False)[0].assignment.cluster],
                "paper": accuracy.get(by_paper(result, name, data, labels), accuracy["global"]),
                "common": accuracy["global"],
                "own_cluster": accuracy[own], "best": best, "fedavg": one,
                **(voted(server, state, context, asked.epsilon, accuracy, own) if question.encoder else {}),
            }  # fmt: skip


class Trial:
    """A newcomer's test part and the models that it is given. Each model is tried once, on all samples; what
    a device with some of them does follows from that by the device's own function."""

    def __init__(self, context: DeviceContext, question: Choose) -> None:
        self._question = question
        self._plain = replace(question, encoder=None, projector=None, densities=None)
        self._said = np.stack([predictions(context, model) for model in question.models])
        described = question.described
        self._projected = (
            None
            if described is None
            else projected(context, described.encoder, described.projector, context.usable)
        )

    def placed(self, rows: Integers, densities: bool = True) -> tuple[Chosen, Integers]:
        """What a device with the samples `rows` finds, and the classes that it predicts of all samples."""
        shown = self._projected[rows] if densities and self._projected is not None else None
        question = self._plain if shown is None else self._question
        found = chosen(question, list(self._said[:, rows]), None, shown)
        number = question.keys.index(found.assignment.cluster)
        shares = np.eye(len(question.models))[number] if found.mixture is None else np.array(found.mixture)
        classes: Integers = np.tensordot(shares, self._said, 1).argmax(axis=1)
        return found, classes


def predictions(context: DeviceContext, model: Tensors) -> FloatArray:
    """p(class | sample), (n, C), of all samples of a device."""
    context.network.load(model)
    return softmax(class_scores(context.network, context.inputs(context.usable), 0))


class Noted(Unmetered):
    """Notes the scores of a vote."""

    def pay(self, payment: Payment, exact: Callable[[], T], noised: Callable[[T, Entropy], R]) -> R:
        self.scores = exact()
        return super().pay(payment, lambda: self.scores, noised)


def voted(
    server: ServerHalf,
    state: State,
    context: DeviceContext,
    epsilon: float,
    accuracy: dict[str, float],
    own: str,
) -> dict[str, float]:
    """What a vote names, on the mean of many draws, and what the likelihood of all samples names."""
    found = densities(server, state)
    assert found is not None
    keys = tuple(placing.clusters(state))
    context.account = noted = Noted(np.random.default_rng(1).bytes)
    vote(vote_on(keys, found, epsilon), context)
    named = [keys[drawn(cast(Any, noted.scores), epsilon, np.random.default_rng(n).bytes)] for n in range(50)]
    shown = projected(context, found.encoder, found.projector, context.usable)
    exactly = keys[int(log_densities(shown, found.clusters).sum(axis=0).argmax())]
    return {
        "exactly_named": float(exactly == own), "exactly": accuracy[exactly],
        "vote_named": float(np.mean([key == own for key in named])),
        "vote": float(np.mean([accuracy[key] for key in named])),
    }  # fmt: skip


def by_paper(result: SimulationResult, name: str, data: Dataset, labels: Dataset) -> str:
    """The cluster that the algorithm's own way names, even if it abstains; "" if it refuses. labels: the same
    data with labels."""
    server = result.card.server()
    try:
        answer = server.place(result.state, None)
        if not isinstance(answer, ClusterAssignment):
            assert not isinstance(answer, Choose)
            shown = data if isinstance(answer, Describe) and not answer.classes else labels
            answer = server.place(result.state, result.devices.shown(name, answer, shown))
    except (Refused, DeviceFault):
        return ""
    assert isinstance(answer, ClusterAssignment)
    return answer.cluster


def _mean(rows: list[dict[str, Any]], way: str) -> float:
    return 100 * float(np.mean([row[way] for row in rows]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--algorithm", default="flux")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", default="43,44")
    parser.add_argument("--shifts", default="px,py,pxy")
    parser.add_argument("--level", default="5", help="comma-separated")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=0, help="0, here and below: nothing set")
    parser.add_argument("--samples", type=int, default=0, help="training images of each device; 0: all")
    parser.add_argument("--learning-rate", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument("--privacy", default="", help="of the algorithm's descriptors; by default none")
    parser.add_argument(
        "--public", type=float, default=0.0, help="share of the images that an encoder learns from (FMCL)"
    )
    parser.add_argument("--epsilon", type=float, default=1.0, help="of the private vote")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store each piece in this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
