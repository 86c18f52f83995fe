"""What the default is worth on real devices, whose owners protect descriptions of their data.

    python -m benchmarks.nothing_set_over_grpc --out FILE --data-dir DIR [--sets digits,cancer,elec2]
        [--samples 100,300] [--seeds 47]

Eight `fedclient run` and `fedserver up`, over mutual TLS: FLUX with nothing set, and owners with the default
terms, who have allowed plain weights. So descriptions have noise (`balanced`), which needs 65 samples. Beside
it stands the simulation without noise, with the same data, network and seed. Devices have digits in four
rotations, breast cancer in two units, or hours of the day of elec2. Of digits and breast cancer each device
draws from the same rows, as there are not more. Each run is one line of FILE, with the first line that a
person reads; what is there is not run again.
"""

import argparse
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import yaml
from sklearn import datasets as bundled

from benchmarks.nothing_set import DEVICES, Rows, elec2, numbers
from fedserver.rpc.client import OperatorClient
from fedserver.store.identities.records import Terms
from fedserver.store.records import RunSpec
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import ShoalError
from shoal.demo.processes import POLL_SECONDS, Stage, prepared
from shoal.shell.console import Console
from shoal.simulation.fleet import Fleet
from shoal.simulation.images import rotate
from shoal.simulation.simulate import simulate

RUN = "flux"
POLICY = RoundPolicy(devices=DEVICES, minimum=DEVICES, wait_for_devices=600.0)
TEST = 150


def drawn(x: np.ndarray, y: np.ndarray, samples: int, seed: int) -> list[Rows]:
    chance = np.random.default_rng(seed)
    order = chance.permutation(len(x))
    apart, rest = order[:TEST], order[TEST:]
    own = (chance.choice(rest, samples, replace=False) for _ in range(DEVICES))
    return [(x[rows], y[rows], x[apart], y[apart]) for rows in own]


def digits(samples: int, seed: int, folder: Path | None) -> list[Rows]:
    x, y = bundled.load_digits(return_X_y=True)
    found = enumerate(drawn(x.reshape(-1, 8, 8) / 16.0, y, samples, seed))
    return [
        (*(_turned(part, number) if part.ndim > 1 else part for part in device),) for number, device in found
    ]


def _turned(images: np.ndarray, number: int) -> np.ndarray:
    found: np.ndarray = rotate(images, 90 * (number % 4)).reshape(len(images), -1)
    return found


def cancer(samples: int, seed: int, folder: Path | None) -> list[Rows]:
    x, y = bundled.load_breast_cancer(return_X_y=True)
    found = enumerate(drawn(x, y, samples, seed))
    return [(a * (1, 25.4)[n % 2], b, c * (1, 25.4)[n % 2], d) for n, (a, b, c, d) in found]


SETS = {"digits": digits, "cancer": cancer, "elec2": elec2}


class Programs(Stage):
    """The server and its devices, as their owners would set them up."""

    def prepare(self, devices: dict[str, Rows], options: dict[str, Any]) -> None:
        for name, (x, y, x_test, y_test) in devices.items():
            folder = self.folder / name
            folder.mkdir()
            for file, rows, labels in (("data", x, y), ("test", x_test, y_test)):
                np.savez(folder / f"{file}.npz", x=rows.astype(np.float32), y=labels.astype(np.int64))
            settings = {
                "learner": {"builtin": "mlp", "options": options},
                "data": {"npz": "data.npz", "test": "test.npz"},
                "privacy": {"allow_plain_weights": True},
            }
            (folder / "device.yaml").write_text(yaml.safe_dump(settings))

    def played(self, names: list[str], spec: RunSpec) -> dict[str, Any]:
        """What a person sees of the run in the end, and the mean accuracy; None if nothing was measured."""
        configs = {name: str(self.folder / name / "device.yaml") for name in names}
        with self.server(), OperatorClient(self.folder / "server") as operator:
            _, line = operator.create_token(Terms(uses=len(names)))
            for name, config in configs.items():
                join = ["fedclient", "join", "-", "--config", config, "--device", name, "--json"]
                with self._process(name, join, line):
                    self._answer(name)
            operator.start_run(spec, None)
            with ExitStack() as stack:
                for name, config in configs.items():
                    run = ["fedclient", "run", "--config", config, "--until-finished"]
                    stack.enter_context(self._process(name, run))
                while not (status := operator.show(RUN)).summary.over:
                    if all(self._processes[name].poll() is not None for name in names):
                        break  # they have said why
                    time.sleep(POLL_SECONDS)
            said = str(status.verdict or status.summary.waiting_for)
            if not status.summary.over:
                log = (self.folder / "logs" / f"{names[0]}.log").read_text()
                said = " ".join(line.strip() for line in log.splitlines()[-3:])
            found = [each.accuracy for each in status.devices if each.accuracy is not None]
            return {
                "stage": status.summary.stage, "said": said, "clusters": len(status.clusters),
                "accuracy": 100.0 * fmean(found) if found else None,
            }  # fmt: skip


def tried(name: str, samples: int, seed: int, folder: Path | None) -> dict[str, Any]:
    rows = {f"device-{n}": each for n, each in enumerate(SETS[name](samples, seed, folder))}
    classes = 1 + max(int(each[1].max()) for each in rows.values())
    options = {"inputs": rows["device-0"][0].shape[1], "hidden": [32, 16], "classes": classes}
    with tempfile.TemporaryDirectory() as root:
        programs = Programs(prepared(Path(root) / "fleet"), Console())
        programs.prepare(rows, options)
        found = programs.played(list(rows), RunSpec(RUN, "flux", policy=POLICY, seed=seed, learner="mlp"))
    fleet = Fleet(
        {key: tuple(np.float32(a) if a.ndim > 1 else a for a in each) for key, each in rows.items()}
    )
    try:
        simulated = 100.0 * simulate("flux", fleet, model="mlp", options=options, seed=seed).accuracy.mean
    except ShoalError as error:
        simulated, found = None, found | {"simulation": str(error)}
    return {"set": name, "samples": samples, "seed": seed, **found, "simulated": simulated}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--samples", type=numbers, default=[100, 300])
    parser.add_argument("--seeds", type=numbers, default=[47])
    given = parser.parse_args()
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    known = {(row["set"], row["samples"], row["seed"]): row for row in map(json.loads, lines)}
    for seed in given.seeds:
        for name in given.sets.split(","):
            for samples in given.samples:
                row = known.get((name, samples, seed))
                if row is None:
                    row = tried(name, samples, seed, given.data_dir)
                    with given.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                figures = "".join(
                    f"{'-' if row[key] is None else format(row[key], '.1f'):>10}"
                    for key in ("accuracy", "simulated")
                )
                print(f"{name:<8}{samples:>5}{seed:>4}{figures}  {row['stage']}: {row['said']}", flush=True)


if __name__ == "__main__":
    main()
