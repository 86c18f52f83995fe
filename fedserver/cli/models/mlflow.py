"""A run, its rounds and its models in a server of MLflow, by that server's REST interface (2.0)."""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from fedserver.cli import text
from fedserver.cli.models.folder import write_folder
from fedserver.coordinator.status_types import ReleaseStatus, RunStatus
from shoal.core.errors import ConfigError, Refused, Unavailable
from shoal.core.server_kit.history.records import RoundHistory
from shoal.core.texts import measure

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient

EXPERIMENT = "shoal"
ANSWER = 60.0
"""Seconds for which an answer is awaited."""
MAX_METRICS, MAX_PARAMETERS = 1000, 100
"""In one call, by MLflow's rules."""
PROXY = "mlflow-artifacts:/"
"""How the places of artifacts begin that a server takes itself."""


def send(client: "OperatorClient", status: RunStatus, release: ReleaseStatus | None, url: str) -> str:
    """Send a run, or a release, as a run of MLflow: settings, a metric a round, files, and a model for each
    cluster. Returns the address of its page.

    Raises ConfigError for what is no address, Unavailable where no MLflow answers, Refused for what it
    refuses.
    """
    server, name = _Server(url), release.summary.release if release else status.summary.run
    experiment, rounds = server.experiment(), list(client.history(status.summary.run, devices=False))
    now = _milliseconds(time.time())
    begun = now if status.summary.created is None else _milliseconds(status.summary.created)
    run = server.post("runs/create", experiment_id=experiment, run_name=name, start_time=begun)["run"]["info"]
    for batch in _batches(status, rounds):
        server.post("runs/log-batch", run_id=run["run_id"], **batch)
    with tempfile.TemporaryDirectory() as folder:
        files = write_folder(client, status, Path(folder), release)
        for path in files:
            if path.parent == Path(folder):
                server.put(run["artifact_uri"], path.name, path.read_bytes())
        for key in status.models:
            own = [path for path in files if path.parent == Path(folder) / key]
            _send_model(server, experiment, run["run_id"], key, own)
    server.post("runs/update", run_id=run["run_id"], status="FINISHED", end_time=now)
    return f"{server.url}/#/experiments/{experiment}/runs/{run['run_id']}"


def _send_model(server: "_Server", experiment: str, run: str, key: str, files: list[Path]) -> None:
    made = server.post(
        "logged-models", experiment_id=experiment, name=key, source_run_id=run, model_type="shoal"
    )["model"]["info"]
    for path in files:
        server.put(made["artifact_uri"], path.name, path.read_bytes())
    ready = {"model_id": made["model_id"], "status": "LOGGED_MODEL_READY"}
    server.call("PATCH", f"logged-models/{made['model_id']}", ready)


def _batches(status: RunStatus, rounds: list[RoundHistory]) -> Iterator[dict[str, Any]]:
    """What is known of a run, in calls as large as MLflow takes them."""
    spec, summary = status.spec, status.summary
    settings = {} if spec is None else {"seed": spec.seed, **text.parameters(spec)}
    parameters = [
        {"key": key, "value": str(value)[:500]}
        for key, value in {"algorithm": summary.algorithm, "preset": summary.preset, **settings}.items()
    ]
    for start in range(0, len(parameters), MAX_PARAMETERS):
        yield {"params": parameters[start : start + MAX_PARAMETERS]}
    what = measure(summary.numbers).replace(" ", "_")
    metrics = [
        {"key": key, "value": value, "timestamp": _milliseconds(time.time()), "step": each.round}
        for each in rounds
        for key, value in _metrics(each, what).items()
    ]
    for start in range(0, len(metrics), MAX_METRICS):
        yield {"metrics": metrics[start : start + MAX_METRICS]}


def _metrics(found: RoundHistory, what: str) -> dict[str, float]:
    known = {"loss": found.loss, what: found.accuracy}
    known |= {f"{what}.{each.key}": each.accuracy for each in found.clusters}
    figures = {name: value for name, value in known.items() if value is not None}
    sizes = {"bytes_up": found.bytes_up, "bytes_down": found.bytes_down}
    return {**figures, **sizes, "devices": found.reported, "clusters": len(found.clusters)}


def _milliseconds(seconds: float) -> int:
    return int(1000 * seconds)


class _Server:
    """url: without a slash at its end."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r} is no address of a server", "give one such as http://127.0.0.1:5000")
        self.url = url.rstrip("/")

    def experiment(self) -> str:
        """The experiment for Shoal's runs; it is made if it is not there."""
        try:
            found = self.call("GET", f"experiments/get-by-name?experiment_name={EXPERIMENT}")
        except Refused:
            return str(self.post("experiments/create", name=EXPERIMENT)["experiment_id"])
        return str(found["experiment"]["experiment_id"])

    def post(self, path: str, **fields: Any) -> dict[str, Any]:
        return self.call("POST", path, fields)

    def call(self, method: str, path: str, fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
        body = None if fields is None else json.dumps(fields).encode()
        answer = self._answer(method, f"/api/2.0/mlflow/{path}", body, "application/json")
        try:
            found = json.loads(answer or b"{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Unavailable(f"what answers at {self.url} is no server of MLflow", "look at --mlflow")
        return found

    def put(self, place: str, name: str, data: bytes) -> None:
        """Store a file. place: the `artifact_uri` of what it belongs to."""
        if not place.startswith(PROXY):
            hint = "start it with: mlflow server --serve-artifacts"
            raise Refused(f"{self.url} takes no files, but has them at {place}", hint)
        path = quote(f"{place.removeprefix(PROXY).lstrip('/')}/{name}")
        self._answer("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{path}", data, "application/octet-stream")

    def _answer(self, method: str, path: str, body: bytes | None, kind: str) -> bytes:
        asked = Request(f"{self.url}{path}", body, {"Content-Type": kind}, method=method)  # noqa: S310
        try:
            with urlopen(asked, timeout=ANSWER) as answer:  # noqa: S310 -- its scheme was checked
                found: bytes = answer.read()
        except HTTPError as error:
            said = error.read()[:500].decode(errors="replace")
            raise Refused(f"MLflow at {self.url} refuses {method} {path}: {error.code} {said}") from None
        except (URLError, OSError) as error:
            raise Unavailable(f"no MLflow answers at {self.url}: {error}", "mlflow server") from None
        return found
