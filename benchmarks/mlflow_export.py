"""MLflow's own server shows a run of Shoal and its models, and its own flavors compute what PyTorch computes.

    python -m venv /path/to/venv && /path/to/venv/bin/pip install mlflow onnx onnxruntime
    python -m benchmarks.mlflow_export --mlflow /path/to/venv/bin

A simulation is deployed, and trains again on a server and two devices over gRPC; `fedserver model export
--mlflow` sends the run to an MLflow server that was started here; then MLflow's Python reads it back:
parameters, metrics of each round, and each model, loaded by `mlflow.pyfunc` from the server and from an
exported folder, and served by `mlflow models serve`.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import sklearn.datasets
import torch

import shoal

PATIENCE = 300.0
READ = """
import json, sys
import mlflow, mlflow.onnx, numpy as np
url, folder, samples = sys.argv[1:]
mlflow.set_tracking_uri(url)
client = mlflow.MlflowClient()
experiment = client.get_experiment_by_name("shoal")
(run,) = client.search_runs([experiment.experiment_id])
x = np.load(samples)
models = {each.name: each for each in client.search_logged_models([experiment.experiment_id])}
files = sorted(each.path for each in client.list_artifacts(run.info.run_id))
points = len(client.get_metric_history(run.info.run_id, "accuracy"))
scores = {}
for name, each in models.items():
    by_server = mlflow.pyfunc.load_model(f"models:/{each.model_id}").predict(x)
    by_folder = mlflow.pyfunc.load_model(f"{folder}/{name}").predict(x)
    mlflow.onnx.load_model(f"{folder}/{name}")
    scores[name] = [np.asarray(found["scores"]).tolist() for found in (by_server, by_folder)]
print(json.dumps({"name": run.info.run_name, "status": run.info.status, "params": len(run.data.params),
    "metrics": sorted(run.data.metrics), "points": points, "files": files, "scores": scores}))
"""


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--mlflow", type=Path, required=True, help="the folder of programs of a venv with MLflow"
    )
    programs = options.parse_args().mlflow
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder, url = Path(name), f"http://127.0.0.1:{free_port()}"
        state = ["--state", str(folder / "server")]
        result = deployed(folder)
        port = free_port()
        up = ["up", "--insecure-loopback", "--listen", f"127.0.0.1:{port}", "--join-listen", "127.0.0.1:0"]
        stack.enter_context(running(folder, [sys.executable, "-m", "fedserver", *up, *state]))
        wait_for(lambda: subprocess.run(verb("run", "ls", *state), capture_output=True).returncode == 0)
        subprocess.check_output(verb("run", "start", "--file", str(folder / "fleet" / "run.yaml"), *state))
        train(stack, folder, port)
        subprocess.check_output(verb("run", "wait", "flux", *state))
        place = f"--backend-store-uri=sqlite:///{folder}/mlflow.db"
        files = f"--artifacts-destination={folder}/artifacts"
        server = [
            programs / "mlflow",
            "server",
            place,
            files,
            "--port",
            url.rpartition(":")[2],
            "--workers=1",
        ]
        stack.enter_context(running(folder, [*map(str, server)]))
        wait_for(lambda: urlopen(f"{url}/health", timeout=1).status == 200)
        began = time.monotonic()
        sent = json.loads(subprocess.check_output(verb("model", "export", "flux", "--mlflow", url, *state)))
        print(f"sent in {time.monotonic() - began:.1f} s: {sent['data']['page']}")
        subprocess.check_output(verb("model", "export", "flux", "--folder", str(folder / "out"), *state))
        x = np.random.default_rng(43).random((64, 8, 8), np.float32)
        np.save(folder / "x.npy", x)
        line = [programs / "python", "-c", READ, url, folder / "out", folder / "x.npy"]
        found = json.loads(subprocess.check_output([*map(str, line)]).splitlines()[-1])
        scores = found.pop("scores")
        print(json.dumps(found, indent=1))
        compare(result, scores, x)
        served(stack, programs, folder, result, x)


def deployed(folder: Path) -> shoal.Result:
    """A simulation of two devices that see digits in two directions, and its folder."""
    data = sklearn.datasets.load_digits()
    wards = {f"ward-{i}": (np.rot90(data.images[i::4] / 16, i, (1, 2)), data.target[i::4]) for i in range(2)}
    fleet = shoal.Fleet(wards, seed=43)
    result = shoal.simulate("flux", fleet, rounds=6, privacy="off", learning_rate=0.05, seed=43)
    result.deploy(folder / "fleet")
    for name, own in fleet.items():
        train, test = own.stage(0), own.test
        place = folder / name
        shutil.copytree(folder / "fleet", place)
        assert train.y is not None
        assert test.y is not None
        np.savez(place / "data.npz", x=train.x, y=train.y, x_test=test.x, y_test=test.y)
    return result


def train(stack: ExitStack, folder: Path, port: int) -> None:
    for name in ("ward-0", "ward-1"):
        line = ["run", "-c", str(folder / name / "device.yaml"), "--insecure-loopback", "--device", name]
        address = ["--server", f"127.0.0.1:{port}", "--until-finished"]
        stack.enter_context(running(folder, [sys.executable, "-m", "fedclient", *line, *address]))


def compare(models: shoal.Result, scores: dict[str, Any], x: np.ndarray) -> None:
    """By cluster, how far MLflow's scores are from PyTorch's."""
    assert scores.keys() == models.models.keys()
    for cluster, ways in sorted(scores.items()):
        wanted = in_torch(models, cluster, x)
        far = [float(np.abs(np.asarray(each) - wanted).max()) for each in ways]
        print(f"{cluster}: scores from the server and the folder are at most {max(far):.1e} from PyTorch's")
        assert max(far) < 1e-5


def served(stack: ExitStack, programs: Path, folder: Path, models: shoal.Result, x: np.ndarray) -> None:
    port = free_port()
    line = [programs / "mlflow", "models", "serve", "-m", folder / "out" / "c0", "--port", port]
    path = {"PATH": f"{programs}:{os.environ['PATH']}"}
    stack.enter_context(running(folder, [*map(str, line), "--env-manager=local"], path))
    wait_for(lambda: urlopen(f"http://127.0.0.1:{port}/ping", timeout=1).status == 200)
    body = json.dumps({"inputs": x.tolist()}).encode()
    head = {"Content-Type": "application/json"}
    answer = json.loads(urlopen(Request(f"http://127.0.0.1:{port}/invocations", body, head)).read())
    far = np.abs(np.asarray(answer["predictions"]["scores"]) - in_torch(models, "c0", x))
    print(f"c0: `mlflow models serve` answers at most {far.max():.1e} from PyTorch")
    assert far.max() < 1e-5


def in_torch(models: shoal.Result, cluster: str, x: np.ndarray) -> np.ndarray:
    found: np.ndarray = models.module(cluster)(torch.from_numpy(x)).detach().numpy()
    return found


def verb(*words: str) -> list[str]:
    return [sys.executable, "-m", "fedserver", *words, "--json"]


def running(folder: Path, line: list[str], more: dict[str, str] | None = None) -> Any:
    """A process until the end of the block."""
    stack = ExitStack()
    log = stack.enter_context((folder / "log").open("a"))
    environment = {**os.environ, **(more or {}), "MLFLOW_DISABLE_TELEMETRY": "true"}
    process = subprocess.Popen(line, stdout=log, stderr=log, env=environment)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return stack


def wait_for(ready: Any) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            if ready():
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise TimeoutError


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    main()
