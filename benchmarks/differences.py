"""How often what separates clusters is named rightly, does not show, or is named wrongly.

    python -m benchmarks.differences [--datasets digits,mnist] [--data-dir DIR] [--seeds 47,48]
        [--levels 3,5,7] [--samples 300] [--privacy off,balanced] [--draws 4]

Fleets of ten devices of the laboratory's shifts describe their data by the encoder of a run of FLUX, in five
rounds with nothing else set, and again with noise, as often as --draws says. They are grouped as in a run,
and what separates each two clusters is looked for in the same descriptions. A row is a data set, a shift and
a privacy mode: of all runs, the shares in which most of the pairs of clusters are named rightly, in which for
most it does not show, in which most of those that are named are named wrongly, and in which there is one
cluster; and of all pairs of clusters, the shares that are named rightly, not, and wrongly.
"""

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

import shoal
from benchmarks.grouping import Cell, Samples, described
from shoal.core.exchange.parts import LatentBounds
from shoal.core.exchange.privacy_modes import mode_of
from shoal.core.inference.network import batches
from shoal.core.server_kit.fleet import groups
from shoal.core.server_kit.fleet.differences import INPUTS, LABELS, NAMES, SOME_INPUTS, UNKNOWN, differences
from shoal.core.server_kit.frozen_encoder import make_projector, public_projector
from shoal.core.types import Tensors
from shoal.simulation.learners import learner_of
from shoal.simulation.simulate import SimulationResult
from shoal_lab.setting import Experiment, fleet_of

TRUTH = {"px": INPUTS, "py": LABELS, "pyx": NAMES, "pxy": SOME_INPUTS}
DIMS, ROUNDS = 10, 5
RIGHT, HIDDEN, WRONG, ONE = "right", "hidden", "wrong", "one cluster"


def latents(experiment: Experiment) -> list[Samples]:
    """For each device its latents by the encoder of a run of FLUX, and its classes."""
    fleet, _ = fleet_of(experiment)
    learner = learner_of(None, None, {}, fleet)
    rounds, seed = experiment.rounds, experiment.seed
    result = shoal.simulate(
        "flux", fleet, model=learner, rounds=rounds, seed=seed, model_seed=42, device="cpu"
    )
    assert isinstance(result, SimulationResult)
    found = []
    for name in fleet:
        part = fleet[name].stage(0)
        context = result.devices.context(name, part)
        context.network.load(cast(Any, result.state).clustering.encoder)
        latents = np.concatenate(
            [context.network.latents(each) for each in batches(context.network, context.inputs(["train"]))]
        )
        found.append((latents.astype(np.float64), np.asarray(part.y)))
    return found


def pairs(fleet: list[Samples], privacy: str, seed: int, draw: int) -> list[str]:
    """The kind of difference of each two clusters that are found; none where there is one cluster."""

    width = fleet[0][0].shape[1]

    def projector(mode: str) -> dict[str, np.ndarray]:
        if mode_of(mode).calibrated:
            return dict(public_projector(width, DIMS))
        every = np.concatenate([found for found, _ in fleet])
        bounds = LatentBounds(every.min(keepdims=True)[0], every.max(keepdims=True)[0])
        made: Tensors = make_projector(bounds, width, DIMS)
        return dict(made)

    cell = Cell("", len(fleet), lambda chance: (fleet, []), privacy, projector)
    found = described(cell, fleet, np.random.default_rng([seed, draw]))
    named = {f"d{number:02}": each for number, each in enumerate(found)}
    homes = {name: f"c{label}" for name, label in zip(named, groups(found).tolist(), strict=True)}
    return [each.kind for each in differences(named, homes)]


def verdict(kinds: list[str], truth: str) -> str:
    """Of a run: by most of its pairs; of those that are named, by the most frequent name."""
    if not kinds:
        return ONE
    named = [kind for kind in kinds if kind != UNKNOWN]
    if len(named) * 2 < len(kinds) or not named:
        return HIDDEN
    return RIGHT if Counter(named).most_common(1)[0][0] == truth else WRONG


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--datasets", default="digits")
    parser.add_argument("--data-dir", type=Path, help="a folder with a folder for each data set but digits")
    parser.add_argument("--seeds", default="47,48,49,50,51")
    parser.add_argument("--levels", default="3,5,7")
    parser.add_argument("--samples", type=int, default=0, help="training images of each device; 0: all")
    parser.add_argument("--privacy", default="off,balanced")
    parser.add_argument("--draws", type=int, default=1, help="of the noise, for each fleet")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    columns = (RIGHT, HIDDEN, WRONG, ONE, "pairs", RIGHT, HIDDEN, WRONG)
    print(f"{'data set':16}{'shift':6}{'privacy':10}{'runs':>5}" + "".join(f"{each:>13}" for each in columns))
    for dataset in asked.datasets.split(","):
        base = Experiment(dataset=dataset, samples=asked.samples, rounds=ROUNDS)
        if asked.data_dir:
            base = replace(base, data_dir=asked.data_dir / dataset)
        for shift in TRUTH:
            found: dict[str, list[list[str]]] = {mode: [] for mode in asked.privacy.split(",")}
            for level in map(int, asked.levels.split(",")):
                for seed in map(int, asked.seeds.split(",")):
                    fleet = latents(replace(base, shift=shift, level=level, seed=seed))
                    for mode, runs in found.items():
                        draws = asked.draws if mode_of(mode).calibrated else 1
                        runs += [pairs(fleet, mode, seed, draw) for draw in range(1, draws + 1)]
            for mode, runs in found.items():
                print(f"{dataset:16}{shift:6}{mode:10}{row(runs, TRUTH[shift])}", flush=True)


def row(runs: list[list[str]], truth: str) -> str:
    """The figures of a row. runs: for each the kinds of its pairs."""
    of_runs = Counter(verdict(kinds, truth) for kinds in runs)
    named = {truth: RIGHT, UNKNOWN: HIDDEN}
    of_pairs = Counter(named.get(kind, WRONG) for kinds in runs for kind in kinds)
    shares = [f"{of_runs[each] / len(runs):>13.0%}" for each in (RIGHT, HIDDEN, WRONG, ONE)]
    total = max(of_pairs.total(), 1)
    more = [f"{of_pairs[each] / total:>13.1%}" for each in (RIGHT, HIDDEN, WRONG)]
    return f"{len(runs):>5}{''.join(shares)}{of_pairs.total():>13}{''.join(more)}"


if __name__ == "__main__":
    main()
