"""What FLUX's default loses, setting by setting, against the best of other ways to train.

    python -m benchmarks.regret [--seeds 42,43,44] [--only digits,hapt] [--methods flux,fedavg,local]
                                [--data-dir DIR] [--json FILE]

A row is a setting: the accuracy of what devices have in the end, in percent and as a mean over seeds, by
each method, and the regret: how far FLUX's default is below the best of the others, in points, as a mean and
for the worst seed. A negative regret is a lead. The best of several ways at one seed is partly chance, so the
last line has the regret against the way that is best in the mean over seeds, too. `flux` is what
`fedclient place` gives to devices that train: their cluster's model, fine-tuned where that pays. `clusters`
is the same without fine-tuning, and `fedavg tuned` is one model with it; neither counts for the regret.
`local` trains each device by itself. IFCA is given the true number of groups, so it is left out where there
is none.

Nothing is set by any method. Settings are those in which groups pay, and those in which they do not: alike
devices, few samples, class shares, drift, data that come from many places. A cell that is in FILE already is
not run again.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.algorithm import find, measurement
from shoal.simulation.fleet import Fleet
from shoal.simulation.simulate import simulate
from shoal_lab import models
from shoal_lab.experiment import Experiment, run
from shoal_lab.setting import fleet_of

METHODS: Mapping[str, tuple[str, str]] = {
    "flux": ("flux", "default"),
    "clusters": ("flux", "default"),
    "fedavg": ("fedavg", "default"),
    "fedavg tuned": ("fedavg", "default"),
    "local": ("fedavg", "default"),
    "ifca": ("ifca", "default"),
}
TUNED = {"flux": "clusters", "fedavg tuned": "fedavg"}
"""The methods whose devices fine-tune, and what they fine-tune. One run has the figures of both."""
DIGITS: dict[str, Any] = {"dataset": "digits", "rounds": 20}
FEW: dict[str, Any] = {"dataset": "mnist", "samples": 300, "rounds": 10}


def settings() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each setting by name, and its experiment."""
    for shift in ("px", "py", "pyx", "pxy"):
        for level in (1, 3, 5, 8):
            yield f"digits {shift} {level}", {**DIGITS, "shift": shift, "level": level}
    for level in (1, 4, 7):
        yield f"digits dirichlet {level}", {**DIGITS, "shift": "dirichlet", "level": level, "clients": 20}
    yield "digits px, drift", {**DIGITS, "shift": "px", "level": "medium", "drifts": 4}
    for shift, level in (("py", 1), ("px", 5), ("pxy", 5)):
        yield f"mnist {shift} {level}, 300 images", {**FEW, "shift": shift, "level": level}
    for shift, level in (("px", 5), ("py", 1)):
        crowd = {**FEW, "shift": shift, "level": level, "clients": 50, "samples": 100, "rounds": 30}
        yield f"mnist {shift} {level}, 50 devices", crowd
    for level in (1, 2):
        sizes = {"dataset": "mnist", "shift": "qs-features", "level": level, "clients": 40, "rounds": 8}
        yield f"mnist sizes {level}, 40 devices", sizes
    yield "hapt", {"dataset": "hapt", "clients": 30, "rounds": 8}
    for stages in (4, 10):
        yield f"elec2, {stages} stages", {"dataset": "elec2", "clients": 8, "drifts": stages, "rounds": 20}


def accuracies(
    method: str, wanted: dict[str, Any], seed: int, folder: Path | None
) -> dict[str, float | None]:
    """The mean accuracy, in percent, of what devices have by this method, and by the one that it fine-tunes;
    None for a method that needs the groups.
    """
    algorithm, preset = METHODS[method]
    experiment = Experiment(algorithm, preset, data_dir=folder, seed=seed, threads=1, **wanted)
    if method == "local":
        return {method: _local(experiment)}
    if method == "ifca":
        concepts = {holding.concept for holding in fleet_of(experiment)[0].values()}
        if wanted["dataset"] in ("hapt", "elec2") or len(concepts) == 1 or wanted["shift"] == "dirichlet":
            return {method: None}
        experiment = replace(experiment, changes={"clusters": len(concepts)})
    found = run(replace(experiment, tuned=method in TUNED))["accuracy"]
    if method in TUNED:
        return {method: found["tuned"], TUNED[method]: found["known"]}
    return {method: found["known"]}


def _local(experiment: Experiment) -> float:
    fleet, _ = fleet_of(experiment)
    found, server = [], find("fedavg")[0].server()
    for name, holding in fleet.items():
        own = Fleet.of({name: holding}, fleet.classes, fleet.held_out)
        learner = models.learner(experiment.model, experiment.options, fleet)
        changes = {"rounds": experiment.rounds, **experiment.changes}
        result = simulate(
            "fedavg",
            own,
            model=learner,
            seed=experiment.seed,
            model_seed=experiment.model_seed,
            device="cpu",
            **changes,
        )
        task = measurement(server, result.state, result.state.assignments[name])
        found.append(100.0 * result.devices.accuracy(name, task))
    return float(np.mean(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", default="42,43,44", help="comma-separated")
    parser.add_argument("--only", default="", help="only settings whose names contain one of these words")
    parser.add_argument("--methods", default=",".join(METHODS), help="comma-separated; flux is always run")
    parser.add_argument("--data-dir", type=Path, help="the folder with mnist, hapt and elec2")
    parser.add_argument("--json", type=Path, help="keep every cell in this file")
    asked = parser.parse_args()
    words = [word for word in asked.only.split(",") if word]
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    methods = [name for name in METHODS if name == "flux" or name in asked.methods.split(",")]
    rivals = [number for number, name in enumerate(methods) if name not in (*TUNED, "clusters")]
    cells: dict[str, float | None] = {}
    if asked.json and asked.json.exists():
        cells = json.loads(asked.json.read_text())
    print(f"| setting | {' | '.join(methods)} | regret | worst seed |\n|---|{'---|' * (len(methods) + 2)}")
    regrets, of_means = [], []
    for name, wanted in settings():
        chosen = not words or any(word in name for word in words)
        if not chosen or (wanted["dataset"] != "digits" and asked.data_dir is None):
            continue
        figures: dict[str, list[float | None]] = {method: [] for method in methods}
        for seed in seeds:
            for method in methods:
                key = f"{name} / {method} / {seed}"
                if key not in cells:
                    made = accuracies(method, wanted, seed, asked.data_dir)
                    cells |= {f"{name} / {each} / {seed}": value for each, value in made.items()}
                    if asked.json:
                        asked.json.write_text(json.dumps(cells, indent=1) + "\n")
                figures[method].append(cells[key])
        rows = np.array([[np.nan if value is None else value for value in row] for row in figures.values()])
        lost = np.nanmax(rows[rivals], axis=0) - rows[0]
        regrets.append(lost)
        means = rows.mean(axis=1)
        of_means.append(np.nanmax(means[rivals]) - means[0])
        shown = ["-" if np.isnan(mean) else f"{mean:.1f}" for mean in means]
        print(f"| {name} | {' | '.join(shown)} | {lost.mean():+.1f} | {lost.max():+.1f} |", flush=True)
    if regrets:
        every, steady = np.maximum(np.array(regrets), 0.0), np.maximum(np.array(of_means), 0.0)
        print(f"\nmean regret {every.mean():.2f}, largest {every.max():.2f}, over {every.size} cells")
        print(f"against the best in the mean over seeds: {steady.mean():.2f}, largest {steady.max():.2f}")


if __name__ == "__main__":
    main()
