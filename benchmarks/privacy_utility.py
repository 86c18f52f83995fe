"""What privacy leaves of FLUX: the groups that it finds, and newcomers' accuracy, by mode and samples each.

    python -m benchmarks.privacy_utility --dataset digits --clients 4 --level 1 --samples 300
    python -m benchmarks.privacy_utility --dataset mnist --data-dir DATA --samples 300 600 6000 --seeds 3

Each data set, shift, number of samples and seed is a piece, kept in a file of its own: pieces that are there
are not run again. utility.json has all of them, and the table the most telling figures.

All modes share one warm-up, which asks for no descriptors, and so one encoder; where two modes find the
same groups they have the same models, which are then trained once. Devices of fewer than 1,000 samples train
in batches of 16 with steps of 0.05, or 0.02 (Fashion-MNIST). All else is as `fedserver simulate` has it.

The columns are means of --draws draws of the noise. ari is the adjusted Rand index of the groups that are
found without their number being given. newcomers is the accuracy, in percent, of the models that devices get
when they show unlabeled test images, of which no device has more than --samples. abstained is the share of
devices for which no cluster fits well or noise may have decided, and refused the share that has too few
images to release anything. The models are those of groups that one more draw found; known is their accuracy
for their own devices.
"""

import argparse
import dataclasses
import json
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from shoal.core.algorithm import Plan, Report, find
from shoal.core.algorithms.flux import server as server_half
from shoal.core.algorithms.flux.clustering import form_clusters
from shoal.core.algorithms.flux.state import State
from shoal.core.data.seeds import derive
from shoal.core.device_kit.learner import initial_weights
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import Outcome, simulate
from shoal.core.exchange.messages import Describe, Described, Train
from shoal.simulation.fleet import Fleet, Holding
from shoal.simulation.simulated import SimulatedDevices, spooled
from shoal_lab import models
from shoal_lab.experiment import Experiment, grouping, measure
from shoal_lab.setting import fleet_of

MODES: dict[str, dict[str, Any]] = {
    "off": {"privacy": "off"},
    "paper": {"privacy": "paper", "epsilon": 10.0, "grouping": "density"},
    "balanced": {"privacy": "balanced"},
    "strict": {"privacy": "strict"},
}
FIGURES = ("ari", "clusters", "known", "newcomers", "abstained", "refused")
FEW_SAMPLES = 1000
STEPS = {"fashion-mnist": 0.02}
"""Learning rates of devices with fewer samples than that; 0.05 for other data sets."""


@dataclass(frozen=True)
class Piece:
    """One fleet, in all modes."""

    dataset: str
    shift: str
    level: int
    clients: int
    samples: int
    seed: int

    @property
    def file(self) -> str:
        return "-".join(map(str, asdict(self).values())) + ".json"

    @property
    def _training(self) -> dict[str, Any]:
        few = {"learning_rate": STEPS.get(self.dataset, 0.05), "batch_size": 16}
        return few if self.samples < FEW_SAMPLES else {}

    def run(self, data_dir: Path | None, draws: int) -> dict[str, Any]:
        started = time.perf_counter()
        experiment = Experiment(
            dataset=self.dataset,
            data_dir=data_dir,
            shift=self.shift,
            level=self.level,
            clients=self.clients,
            samples=self.samples,
            rounds=10,
            seed=self.seed,
        )
        whole = fleet_of(experiment)[0]
        fleet = Fleet.of({name: fewer(one, self.samples) for name, one in whole.items()}, 10)
        algorithm, _ = find("flux")
        learner = models.learner(experiment.model, experiment.options, fleet)
        devices, *others = (
            SimulatedDevices(
                algorithm, fleet, learner, experiment.device, derive(experiment.seed, draw), spooled
            )
            for draw in range(1 + draws)
        )
        changes = {"rounds": experiment.rounds, **self._training}
        parameters = algorithm.configure("default", {**changes, **MODES["off"]})
        first = server_half.start(initial_weights(learner, experiment.model_seed), parameters)
        warm = self._until("bounds", first, devices, 1)
        figures: dict[str, Any] = {}
        trained: dict[tuple[str, ...], State] = {}
        for mode, change in MODES.items():
            state = replace(cast(State, warm.state), parameters=dataclasses.replace(parameters, **change))
            ready = self._until("cluster", state, devices, warm.rounds + 1)
            formed = self._until("clustered", ready.state, devices, ready.rounds + 1)
            groups = tuple(cluster for _, cluster in sorted(cast(State, formed.state).assignments.items()))
            if groups not in trained:
                done = self._until("", formed.state, devices, formed.rounds + 1)
                trained[groups] = cast(State, done.state)
            end, start = trained[groups], cast(State, formed.state)
            final = replace(start, models=end.models, progress=end.progress, phase="done")
            asked = cast(State, ready.state)
            drawn = [self._figures(asked, final, other) for other in others[: draws if mode != "off" else 1]]
            figures[mode] = {figure: mean_of(drawn, figure) for figure in FIGURES}
        seconds = time.perf_counter() - started
        return {**asdict(self), "draws": draws, "seconds": seconds, "modes": figures}

    def _until(self, phase: str, state: Any, devices: SimulatedDevices, round: int) -> Outcome:
        """The run, from a state at the start of a round, up to a phase."""
        policy = RoundPolicy(minimum=self.clients)
        half: Any = Until(phase)
        outcome = simulate(half, state, devices.calls(), policy, self.seed, round=round, keep=spooled)
        assert not outcome.failed, outcome.reason
        return outcome

    def _figures(self, ready: State, final: State, devices: SimulatedDevices) -> dict[str, float | None]:
        """Of one draw of the noise, which is the devices'. ready: when descriptors are asked for."""
        assigned = groups(ready, devices)
        found = grouping(ready, devices.fleet, [assigned[name] for name in devices.fleet])
        rows = [measure(cast(Any, server_half), final, devices, name, 0) for name in devices.fleet]
        placed = [row for row in rows if row["placed"] is not None]
        return {
            "ari": found["ari"],
            "clusters": found["clusters"],
            "known": 100.0 * float(np.mean([row["known"] for row in rows])),
            "newcomers": 100.0 * float(np.mean([row["test"] for row in placed])) if placed else None,
            "abstained": float(np.mean([row["abstained"] for row in placed])) if placed else None,
            "refused": 1.0 - len(placed) / len(rows),
        }


class Until:
    """FLUX's server half, up to a phase."""

    def __init__(self, phase: str) -> None:
        self._phase = phase

    def plan(self, state: State, present: list[str]) -> Plan | None:
        return None if state.phase == self._phase else server_half.plan(state, present)

    def reduce(self, state: State, reports: list[Report]) -> State:
        return server_half.reduce(state, reports)


def groups(ready: State, devices: SimulatedDevices) -> dict[str, str]:
    """Those that are found from descriptors with these devices' noise, without training anything."""
    calls = devices.calls()
    plan, described = server_half.plan(ready, list(calls)), dict[str, Any]()
    assert plan is not None
    for device, task in plan.tasks.items():
        assert isinstance(task, Train)
        assert task.projector is not None
        question = Describe(task.model, task.projector, task.classes, task.privacy)
        answer = calls[device](question, 0)
        assert isinstance(answer, Described)
        described[device] = answer.descriptor
    assert isinstance(task, Train)
    assert task.projector is not None
    return form_clusters(ready.parameters, 1, task.model, task.projector, described)[1]


def fewer(device: Holding, samples: int) -> Holding:
    """A newcomer has no more samples than those who train."""
    return replace(device, test=device.test.subset(slice(samples)))


def summary(pieces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds, for each data set, shift, level, number of samples and mode."""
    runs = defaultdict(list)
    for piece in pieces:
        for mode, figures in piece["modes"].items():
            key = tuple(piece[name] for name in ("dataset", "shift", "level", "clients", "samples"))
            runs[(*key, mode)].append(figures)
    rows = []
    for (dataset, shift, level, clients, samples, mode), found in sorted(runs.items(), key=by_place):
        row = {"dataset": dataset, "shift": shift, "level": level, "clients": clients, "samples": samples}
        row |= {"mode": mode, "seeds": len(found)}
        for figure in FIGURES:
            row[figure] = mean_of(found, figure)
        rows.append(row)
    return rows


def mean_of(rows: list[dict[str, Any]], figure: str) -> float | None:
    """Over the rows that have it."""
    known = [row[figure] for row in rows if row[figure] is not None]
    return float(np.mean(known)) if known else None


def by_place(run: tuple[tuple[Any, ...], Any]) -> tuple[Any, ...]:
    *place, mode = run[0]
    return (*place, list(MODES).index(mode))


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, a line for each fleet: of each mode ari, newcomers, and in brackets abstained."""
    place = ("dataset", "shift", "level", "clients", "samples", "seeds")
    fleets: dict[tuple[Any, ...], dict[str, str]] = defaultdict(dict)
    for row in rows:
        placed = row["newcomers"] is not None
        shown = f"{row['newcomers']:.1f} % ({100.0 * row['abstained']:.0f} %)" if placed else "refused"
        fleets[tuple(row[name] for name in place)][row["mode"]] = f"{row['ari']:.2f}; {shown}"
    lines = [[*place, *MODES], ["---"] * (len(place) + len(MODES))]
    lines += [[*map(str, fleet), *(cells[mode] for mode in MODES)] for fleet, cells in fleets.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/utility"))
    parser.add_argument("--dataset", nargs="*", default=[], help="digits, mnist, fashion-mnist")
    parser.add_argument("--data-dir", type=Path, help="the folder with the data sets' files")
    parser.add_argument("--shift", nargs="*", default=["px"])
    parser.add_argument("--level", type=int, default=5)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--samples", type=int, nargs="*", default=[300], help="training images of a device")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--draws", type=int, default=10, help="of the noise, for each seed")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    for seed in range(asked.seeds):
        for dataset in asked.dataset:
            for shift in asked.shift:
                for samples in asked.samples:
                    piece = Piece(dataset, shift, asked.level, asked.clients, samples, 42 + seed)
                    if not (asked.out / piece.file).exists():
                        (asked.out / piece.file).write_text(
                            json.dumps(piece.run(asked.data_dir, asked.draws), indent=1)
                        )
                        print(f"{piece.file} is done", flush=True)
    pieces = [json.loads(path.read_text()) for path in sorted(asked.out.glob("*-*.json"))]
    rows = summary(pieces)
    (asked.out / "utility.json").write_text(json.dumps({"means": rows, "pieces": pieces}, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
