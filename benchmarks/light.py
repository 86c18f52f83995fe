"""A device without PyTorch beside one with it: the same clusters, and what both cost in memory and time.

    python -m benchmarks.light --python /path/to/infer/bin/python --directory runs/light

It plays the demo's fleet (eight trainers, FLUX) with a graph, and then LeNet-5 on 300 images of 28x28 (two
trainers, IFCA with two clusters, one round). Each newcomer is placed and predicts twice: with PyTorch, and
with the other Python, in which only `shoal-fed[infer]` has to be installed. Memory is the largest sum of the
proportional set sizes of a command and its children, read every 10 ms, and that of the largest process.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml

from fedserver.rpc.client import OperatorClient
from fedserver.store.identities.records import Terms
from fedserver.store.records import RunSpec
from shoal.core.device_kit.learner import builtin, initial_weights
from shoal.core.device_kit.tracing import export, sample_of
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.identity.joining import Role
from shoal.demo import fleet
from shoal.demo.processes import Stage, prepared, spec
from shoal.shell.console import Console

LENET = {"builtin": "lenet5", "options": {}}
SAMPLES, SEED = 300, 42
LOOK = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the Python without PyTorch")
    parser.add_argument("--directory", type=Path, default=Path("runs/light"))
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--only", choices=("demo", "lenet5"), help="play only this part")
    given = parser.parse_args()
    stage = Stage(prepared(given.directory), Console())
    parts = {"demo": demo, "lenet5": lenet}
    found = {name: play(stage, given.python) for name, play in parts.items() if given.only in (None, name)}
    for name, rows in found.items():
        print(f"{name}\n{table(rows)}\n")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


def demo(stage: Stage, python: str) -> list[dict[str, Any]]:
    """The demo's newcomers, with and without PyTorch."""
    learner = builtin(str(fleet.LEARNER["builtin"]), cast(Any, fleet.LEARNER["options"]))
    graph = export(learner, sample_of((1, 8, 8)), {}).data
    rows = []
    with stage.server():
        state = stage.folder / "server"
        with OperatorClient(state) as operator:
            stage.join(operator)
            run = operator.start_run(spec("flux"), None, graph).run
            with stage.trainers():
                stage.watch(operator, {"flux": run})
            for member in fleet.newcomers():
                assert member.train.y is not None
                folder = stage.folder / member.name
                rows += both(member.name, folder, python, run, member.train.y)
    return rows


def lenet(stage: Stage, python: str) -> list[dict[str, Any]]:
    """One newcomer of LeNet-5, with and without PyTorch."""
    learner = builtin("lenet5", {})
    graph = export(learner, sample_of((1, 28, 28)), {}).data
    chance = np.random.default_rng(SEED)
    stage = Stage(stage.folder / "lenet5", Console())
    (stage.folder / "logs").mkdir(parents=True)
    names = ("one", "two", "newcomer")
    for number, name in enumerate(names):
        folder = stage.folder / name
        folder.mkdir()
        x = chance.integers(0, 256, (SAMPLES, 1, 28, 28)).astype(np.uint8) // (1 + number % 2)
        labels: dict[str, Any] = {} if name == "newcomer" else {"y": chance.integers(0, 10, SAMPLES)}
        np.savez(folder / "data.npz", x=x, **labels)
        settings = {
            "learner": LENET,
            "data": {"npz": "data.npz"},
            "privacy": {"allow_unprotected": True, "allow_plain_weights": True},
        }
        (folder / "device.yaml").write_text(yaml.safe_dump(settings))
    with stage.server():
        state = stage.folder / "server"
        with OperatorClient(state) as operator:
            for name in names:
                role = Role.INFER_ONLY if name == "newcomer" else Role.TRAIN
                _, line = operator.create_token(Terms(role, uses=1))
                call(sys.executable, stage.folder / name, "join", "-", "--device", name, given=line)
            policy = RoundPolicy(devices=2, minimum=2, wait_for_devices=600.0)
            parameters = {"rounds": 1, "clusters": 2}
            asked = RunSpec("lenet", "ifca", parameters=parameters, policy=policy, seed=SEED)
            run = operator.start_run(asked, initial_weights(learner, SEED), graph).run
            with trainers(stage, names[:2]):
                while not operator.show(run).summary.over:
                    time.sleep(0.2)
            rows = both("newcomer", stage.folder / "newcomer", python, run, None)
            most, steady = served(stage.folder / "newcomer", python)
            print(f"run --serve: at most {most} MB while it is placed, then {steady} MB")
            return rows


@contextmanager
def trainers(stage: Stage, names: tuple[str, ...]) -> Iterator[None]:
    started = [
        subprocess.Popen([sys.executable, *line(stage.folder / name, "run", "--until-finished")])
        for name in names
    ]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
            process.wait()


def both(name: str, folder: Path, python: str, run: str, truth: Any) -> list[dict[str, Any]]:
    """Place and predict with PyTorch, and without."""
    rows = []
    settings = yaml.safe_load((folder / "device.yaml").read_text())
    del settings["learner"]
    (folder / "light.yaml").write_text(yaml.safe_dump(settings))
    for what, using, config in (("PyTorch", sys.executable, "device.yaml"), ("graph", python, "light.yaml")):
        out = folder / f"{what}.npz"
        placed = call(using, folder, "place", "--run", run, "--json", config=config)
        predicted = call(using, folder, "predict", "--json", "--out", str(out), config=config)
        with np.load(out) as found:
            classes, probabilities = found["classes"], found["probabilities"]
        accuracy = None if truth is None else float((classes == truth).mean())
        rows.append(
            {
                "device": name,
                "with": what,
                "cluster": placed["data"]["cluster"],
                "confidence": placed["data"]["confidence"],
                "accuracy": accuracy,
                "place": placed["cost"],
                "predict": predicted["cost"],
                "probabilities": probabilities,
            }
        )
    first, second = (row.pop("probabilities") for row in rows)
    rows[1]["furthest"] = float(np.abs(first - second).max())
    return rows


def served(folder: Path, python: str) -> tuple[float, float]:
    """The largest sum of memory, in MB, until `run --serve` uses its model, and that afterwards."""
    process = subprocess.Popen(
        [python, *line(folder, "run", "--serve", f"unix:{folder}/s", config="light.yaml")],
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment(python),
    )
    assert process.stderr is not None
    said, most = process.stderr, 0
    seen = threading.Event()

    def look() -> None:
        if any(b"is used from now on" in text for text in said):
            seen.set()
        said.read()  # so that its pipe never fills

    threading.Thread(target=look, daemon=True).start()
    while not seen.is_set() and process.poll() is None:
        most = max(most, sum(map(proportional, family(process.pid))))
        time.sleep(LOOK)
    while len(family(process.pid)) > 2:  # the one that tried the models ends a moment later
        time.sleep(LOOK)
    steady = sum(map(proportional, family(process.pid)))
    process.terminate()
    process.wait()
    return round(most / 1e6, 1), round(steady / 1e6, 1)


def line(folder: Path, *arguments: str, config: str = "device.yaml") -> list[str]:
    return ["-m", "fedclient", arguments[0], "--config", str(folder / config), *arguments[1:]]


def environment(python: str) -> dict[str, str]:
    """The other Python has an installation of its own, with bytecode: it is not to find this repository."""
    own = python == sys.executable
    return {name: value for name, value in os.environ.items() if own or not name.startswith("PYTHON")}


def call(
    python: str, folder: Path, *arguments: str, given: str = "", config: str = "device.yaml"
) -> dict[str, Any]:
    """What a command found, with its cost: seconds, and the largest sum of memory of it and its children."""
    began, most, single = time.monotonic(), 0, 0
    process = subprocess.Popen(
        [python, *line(folder, *arguments, config=config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env=environment(python),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(given.encode())
    process.stdin.close()
    while process.poll() is None:
        sizes = [proportional(pid) for pid in family(process.pid)]
        most, single = max(most, sum(sizes)), max(single, *sizes)
        time.sleep(LOOK)
    said = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}: {said.decode()}")
    answer: dict[str, Any] = json.loads(said) if b"{" in said else {}
    seconds = time.monotonic() - began
    memory = {"megabytes": round(most / 1e6, 1), "largest": round(single / 1e6, 1)}
    return {**answer, "cost": {"seconds": round(seconds, 2), **memory}}


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += family(int(child))
    return found


def proportional(pid: int) -> int:
    """Bytes of a process; what it shares with others is divided by their number."""
    with suppress(OSError, StopIteration, ValueError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return 1024 * int(next(row for row in text.splitlines() if row.startswith("Pss:")).split()[1])
    return 0


def table(rows: list[dict[str, Any]]) -> str:
    names = ("place s", "MB", "largest", "predict s", "MB", "largest", "furthest")
    head = f"{'device':<12}{'with':<9}{'cluster':<9}{'accuracy':>9}" + "".join(
        f"{name:>11}" for name in names
    )
    return "\n".join([head, *map(_row, rows)])


def _row(row: Mapping[str, Any]) -> str:
    accuracy = "-" if row["accuracy"] is None else f"{row['accuracy']:.3f}"
    furthest = f"{row['furthest']:.1e}" if "furthest" in row else ""
    place, predict = row["place"], row["predict"]
    costs = (each[name] for each in (place, predict) for name in ("seconds", "megabytes", "largest"))
    figures = (*costs, furthest)
    shown = "".join(f"{figure:>11}" for figure in figures)
    return f"{row['device']:<12}{row['with']:<9}{row['cluster']:<9}{accuracy:>9}{shown}"


if __name__ == "__main__":
    main()
