"""The daemon from Python: `shoal.Client("server/operator.sock").start("flux", rounds=20)`."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import Refused
from shoal.core.inference.graph.binding import bound
from shoal.core.inference.graph.model import Graph, read_graph, reference_of
from shoal.core.types import Tensors
from shoal.core.verdict import Verdict
from shoal.result import Accuracy, Result, Round

if TYPE_CHECKING:
    from fedserver.coordinator.status_types import ReleaseStatus, RunStatus
    from fedserver.rpc.client import OperatorClient
    from shoal.core.server_kit.history.records import RoundHistory

POLICY = tuple(each.name for each in fields(RoundPolicy))


class Client:
    """A server, as its operators have it. Connecting is left to the first call.

    path: the state folder of a server on this machine, or the operator socket in it; or the folder that
    `fedserver operator add` made, to reach the server over the network. Needs the extra `server`.

    Example:
        with shoal.Client("server/operator.sock") as client:
            run = client.start("flux", devices=8, rounds=20)
            result = run.result(progress=True)
    """

    def __init__(self, path: Path | str) -> None:
        from fedserver.rpc.channel import SOCKET
        from fedserver.rpc.client import OperatorClient

        path = Path(path)
        self.state = path.parent if path.name == SOCKET else path
        self._operator = OperatorClient(self.state)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; runs go on."""
        self._operator.__exit__(None, None, None)

    def start(
        self,
        algorithm: str,
        *,
        name: str = "",
        preset: str = "default",
        model: Any = None,
        latent: Any = None,
        seed: int = 0,
        model_seed: int = 42,
        **parameters: Any,
    ) -> "Run":
        """Start a run, and return at once.

        name: of the run; one is made from the algorithm's where it is left out. model, latent: as for
        `shoal.simulate`; the initial weights are made here, with PyTorch. Without a model, devices are
        asked for them. parameters: the algorithm's own, such as rounds=20, and those of the policy: devices,
        minimum, oversample, wait_for_devices, deadline, straggler_factor, device_timeout,
        max_abandoned_rounds and retry_after.

        Raises ConfigError for what is wrong, Unavailable when no server answers.

        Example:
            run = client.start("flux", devices=8, minimum=6, rounds=20, learning_rate=0.01)
        """
        from fedserver.config import read_run

        policy = {key: parameters.pop(key) for key in POLICY if key in parameters}
        given = {"name": name, "algorithm": algorithm, "preset": preset, "seed": seed}
        spec = read_run(None, {**given, "parameters": parameters, "policy": policy}).spec()
        initial: Tensors | None = None
        if model is not None:
            from shoal.core.device_kit.learner import initial_weights
            from shoal.simulation.learners import learner_of

            initial = initial_weights(learner_of(model, latent), model_seed)
        return Run(self._operator, self._operator.start_run(spec, initial).run, model)

    def run(self, name: str) -> "Run":
        """A run that was started before. Raises NotFound."""
        self._operator.show(name)
        return Run(self._operator, name)

    def release(self, name: str = "stable", model: Any = None) -> "DaemonResult":
        """A release, or the one that a channel has, as the result of its run. It has no history.

        model: the network, for `module`. Raises NotFound, Refused where the channel has none, and NotGenuine
        if it is not what the server's key has signed.

        Example:
            models = client.release("stable").models
            client.release("stable").download("folder")
            scores = client.release("stable").session("c0").run(["scores"], {"x": x})
        """
        from fedserver.cli.models import signature

        found = self._operator.release(name)
        signature.check(found)
        return DaemonResult(self._operator, found.status, [], model, found)

    def runs(self) -> dict[str, str]:
        """The runs, newest first, with the stage of each."""
        return {each.run: each.stage for each in self._operator.runs()}

    def __repr__(self) -> str:
        return f"shoal.Client({str(self.state)!r})"


class Run:
    """A run of a daemon. It goes on whether anyone watches or not."""

    def __init__(self, operator: "OperatorClient", name: str, model: Any = None) -> None:
        self.name = name
        self._operator, self._network = operator, model

    @property
    def stage(self) -> str:
        """waiting, open, reducing, finished, failed or stopped."""
        return self._operator.show(self.name).summary.stage

    def result(
        self, timeout: float | None = None, progress: bool | Callable[[str], None] = False
    ) -> "DaemonResult":
        """Wait until the run is over, and return what it found.

        timeout: seconds; None waits as long as it takes. Raises Refused when the run failed or was stopped,
        and TimeIsUp after `timeout`.
        """
        say = progress if callable(progress) else _line if progress else _silent
        status = self._operator.show(self.name)
        if not status.summary.over:
            for status in self._operator.watch(self.name, timeout):
                say(f"{self.name}: {status.summary.title or status.summary.stage}")
        if status.summary.stage != "finished":
            raise Refused(f"run {self.name} {status.summary.stage}: {status.summary.waiting_for}")
        return DaemonResult(self._operator, self._operator.show(self.name), self.history, self._network)

    @property
    def history(self) -> list[Round]:
        """The rounds that are over; while the run goes on, they become more."""
        return _rounds(self._operator.history(self.name, devices=False))

    def stop(self, reason: str = "") -> None:
        """End the run for good; its last models stay."""
        self._operator.stop_run(self.name, reason)

    def __repr__(self) -> str:
        return f"run {self.name}: {self.stage}"


class DaemonResult(Result):
    """A `Result` of a run on real devices, as far as the server knows it: the data stayed on the devices.

    models: fetched from the server when they are first used. history: losses and accuracies in it are means
    weighted by the devices' samples.
    """

    def __init__(
        self,
        operator: "OperatorClient",
        status: "RunStatus",
        history: Sequence[Round],
        model: Any = None,
        release: "ReleaseStatus | None" = None,
    ) -> None:
        self._operator, self._status, self._network, self._release = operator, status, model, release
        self.history = history
        self.algorithm = status.summary.algorithm
        self.clusters = {each.device: each.cluster for each in status.devices if each.cluster}
        self.facts = {"abandoned": dict(status.abandoned), "missing": dict(status.missing)}

    @cached_property
    def models(self) -> Mapping[str, Tensors]:  # type: ignore[override]
        return {key: self._operator.fetch(weights) for key, weights in self._status.models.items()}

    @cached_property
    def class_names(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """Of the run's graph, where its author's settings name the classes."""
        return None if self._graph is None else self._graph.class_names or None

    @cached_property
    def _graph(self) -> Graph | None:
        spec = self._status.spec
        if spec is None or not spec.graph:
            return None
        found = self._operator.fetch(reference_of(spec.graph, spec.graph_bytes))
        return read_graph(found["graph"].tobytes())

    def _onnx(self, cluster: str) -> bytes:
        weights = self.weights(cluster)
        if self._graph is None:
            from fedserver.cli.models.onnx import no_graph

            raise no_graph(self._status.summary.run, self._status.spec)
        return bound(self._graph, weights)

    def download(self, folder: Path | str) -> Path:
        """Write the folder that `fedserver model export --folder` writes. Returns it.

        In it are the models, also as ONNX files where the run has a graph, settings, a card and checksums; of
        a release also what was signed, and the signature.
        """
        from fedserver.cli.models.folder import write_folder

        write_folder(self._operator, self._status, Path(folder), self._release)
        return Path(folder)

    @property
    def accuracy(self) -> Accuracy:
        devices = self._status.devices
        return Accuracy({each.device: each.accuracy for each in devices if each.accuracy is not None})

    @property
    def verdict(self) -> Verdict | None:
        """Whether anything was learned, by what the devices have reported."""
        return self._status.verdict

    def rows(self) -> list[dict[str, Any]]:
        """One row for each device: its name, cluster, accuracy, samples, and bytes both ways."""
        found = {each.device: each for each in self._status.devices}
        return [
            {
                **row,
                "samples": found[row["device"]].examples,
                "bytes_up": found[row["device"]].bytes_up,
                "bytes_down": found[row["device"]].bytes_down,
            }
            for row in super().rows()
        ]

    def _model(self) -> Any:
        return super()._model() if self._network is None else self._network


def _rounds(found: "Iterable[RoundHistory]") -> list[Round]:
    """The server's history of a run as that of a result. It has no phases."""
    rounds, progress = [], 0
    for each in found:
        rounds.append(
            Round(
                each.round,
                each.title,
                "",
                each.seconds,
                each.reported,
                each.loss,
                each.accuracy,
                each.measured_on,
                each.progress > progress,
                len(each.clusters),
                each.bytes_up,
                each.bytes_down,
                {one.key: one.accuracy for one in each.clusters if one.accuracy is not None},
            )
        )
        progress = each.progress
    return rounds


def _silent(text: str) -> None:
    pass


def _line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
