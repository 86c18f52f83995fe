"""The process that answers predictions over HTTP, started by `serving.py` and never by people. It has a run's
graph, or the learner of the settings.

    GET  /model     the model that is used now
    POST /predict   {"x": [[...], ...]} as JSON, or an array as .npy --> classes and probabilities, or values;
                    names, where the classes have some
    POST /label     {"x": [[...], ...], "y": [0, ...]} as JSON: samples, each once, whose classes are known by
                    now --> counted: how many of them count in a rollout

Standard input carries the settings and then orders, each a message of JSON: a model to use from now on, as
{"graph": PATH, "model": PATH, "facts": {...}}. Standard output says "" or why it is not used; until then, and
if so, the earlier model answers. {"shadow": true, "graph": PATH, "model": PATH, "counts": [...]} is
a model to compare with it after each answer, beginning with these counts, or without files none any more;
{"counts": true} asks for what was counted. Sockets come open from the parent, so that connections wait while
a process that died is replaced.
"""

import io
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedclient.config import WorkConfig
from fedclient.light.session import OnnxNetwork
from fedclient.light.trial import limit_memory, try_runtime
from fedclient.light.verdict import MAX_SAMPLES, STAYS, Checked, check
from fedclient.work.data import open_views
from fedclient.work.pipes import receive, send, take_pipes
from fedclient.work.predictions import arranged, graph_beside, read_mixture
from shoal.core.data.arrays import network_input, samples
from shoal.core.errors import BadPayload, ShoalError
from shoal.core.inference.graph.model import read_graph
from shoal.core.inference.network import Mixed, Network, Scorer, class_scores, numbers, softmax
from shoal.core.rollout import MAX_LABELED, MAX_PREDICTIONS, Counts
from shoal.core.types import Array
from shoal.shell.config import convert

MAX_BODY = 16 << 20
AT_ONCE = 8
"""Requests that are read or answered at a time; more are asked to come again."""
TIMEOUT = 10.0
"""Seconds for which a connection may be silent."""
LABELS = 'send {"x": [...], "y": [...]}: for each sample, the number of its class'
HOSTS = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, eq=False)
class Used:
    """The model that answers, or several together. facts: where they come from. names: of class 0, 1 and so
    on; empty where they have none."""

    network: Scorer
    checked: Checked
    facts: Mapping[str, Any]
    names: Sequence[str]


class Predictions:
    """The present model, and the exchange of it. One prediction is computed at a time. counts: what was
    counted beside the model in the shadow, if there is one."""

    def __init__(self, config: WorkConfig) -> None:
        self._config = config
        data = open_views(config).train
        rows = np.arange(min(len(data), MAX_SAMPLES))
        self._data = data.subset(rows)  # a copy: this process is there for months, and needs no more of them
        self._regression = config.data is not None and config.data.regression
        self._turn = threading.Lock()
        self.used: Used | None = None
        self.counts = Counts()
        self._shadow: Scorer | None = None

    def use(self, graph: Path, model: Path, facts: Mapping[str, Any]) -> None:
        """Answer with this model from now on. Raises a ShoalError, and then the earlier one stays."""
        network, names = self._opened(graph, model)
        before = self.used.checked if self.used else None
        checked = check(network, self._data, self._regression, before)
        own = self._config.data.classes if self._config.data is not None else ()
        self.used = Used(network, checked, facts, own or names)

    def try_out(self, files: tuple[Path, Path] | None, counts: Counts) -> None:
        """Compare with the model of these files from now on, a graph and weights; None: with none. Raises a
        ShoalError, and then with none, too."""
        network = None
        with self._turn:
            self._shadow, self.counts = None, counts
        if files is not None:
            if self._regression:
                raise BadPayload("numbers are predicted here, and a rollout counts classes", STAYS)
            network, _ = self._opened(*files)
            check(network, self._data, False, None)
        self._shadow = network

    def _opened(self, graph: Path, model: Path) -> tuple[Scorer, Sequence[str]]:
        """The network with these weights, and the names of its classes, if it has some. graph: of devices
        without a learner."""
        made, names = self._networks(graph, model)
        parts = list[tuple[float, Scorer]]()
        for share, tensors in read_mixture(model):
            part = made()
            part.load(arranged(tensors, part.manifest))
            parts.append((share, part))
        return Mixed(parts), names

    def _networks(self, graph: Path, model: Path) -> tuple[Callable[[], Network], Sequence[str]]:
        config = self._config
        if config.learner is not None:
            from fedclient.work.torch_network import maker

            return maker(config.learner, config.compute), ()
        opened = read_graph(graph_beside(graph, model))
        return lambda: OnnxNetwork(opened, config.compute.threads), opened.class_names

    def compare(self, x: Array, classes: Sequence[int]) -> None:
        """Count how often the model in the shadow says the same. What fails there is not counted, and is no
        one's error."""
        with suppress(ShoalError, MemoryError), self._turn:
            if self._shadow is not None:
                said = _classes(self._shadow, self._inputs(x))
                alike = int((said == np.asarray(classes)).sum())
                counts = self.counts
                most = MAX_PREDICTIONS - counts.predictions
                if len(said) <= most:
                    self.counts = replace(
                        counts, predictions=counts.predictions + len(said), agreed=counts.agreed + alike
                    )

    def label(self, x: Array, y: Array) -> int:
        """Count for which of these samples each of the two models is right. y: (n,) the classes, as numbers.
        Returns how many samples were counted. Raises ShoalErrors."""
        inputs = self._inputs(x)
        if y.shape != (len(inputs),) or y.dtype.kind not in "iu":
            raise BadPayload(f"{len(inputs)} samples and labels {list(y.shape)} {y.dtype}", LABELS)
        with self._turn:
            if self._shadow is None or self.used is None:
                return 0
            counts = self.counts
            room = MAX_LABELED - counts.labeled
            inputs, y = inputs[:room], y[:room]
            if not len(y):
                return 0
            said = class_scores(self.used.network, inputs, 0)
            if y.min() < 0 or y.max() >= said.shape[1]:
                raise BadPayload(f"labels from {y.min()} to {y.max()}, of {said.shape[1]} classes", LABELS)
            old, new = said.argmax(axis=1) == y, _classes(self._shadow, inputs) == y
            self.counts = replace(
                counts,
                labeled=counts.labeled + len(y),
                old_right=counts.old_right + int(old.sum()),
                new_right=counts.new_right + int(new.sum()),
                both_right=counts.both_right + int((old & new).sum()),
            )
        return len(y)

    def answer(self, x: Array) -> dict[str, Any]:
        """What the present model says of these samples. Raises ShoalErrors."""
        used = self.used
        if used is None:
            raise BadPayload("there is no model yet", "try again in a moment")
        inputs = self._inputs(x)
        with self._turn:
            if self._regression:
                return {**used.facts, "values": numbers(used.network, inputs).tolist()}
            found = softmax(class_scores(used.network, inputs, 0))
        classes = found.argmax(axis=1).tolist()
        named = {"names": list(used.names)} if used.names else {}
        return {**used.facts, **named, "classes": classes, "probabilities": found.round(6).tolist()}

    def _inputs(self, x: Array) -> Array:
        """The samples of a request as a network takes them. Raises BadPayload, and DataFault."""
        if x.ndim == 0 or len(x) == 0:
            raise BadPayload("there are no samples in it", 'send {"x": [...]}, with one sample in each row')
        own = self._data.x.shape[1:]
        if x.ndim == 1 and own:
            raise BadPayload(
                f"x is one list of {len(x)} numbers, and not a list of samples",
                f'send {{"x": [[...], ...]}}, with one sample of shape {list(own)} in each row',
            )
        return network_input(samples("x", x))


class Handler(BaseHTTPRequestHandler):
    """Speaks HTTP to programs of this machine. Pages of a browser are refused: they may be from anywhere."""

    predictions: ClassVar[Predictions]
    places: ClassVar[threading.Semaphore] = threading.Semaphore(AT_ONCE)
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT

    def do_GET(self) -> None:
        used = self.predictions.used
        if not self._from_here():
            return
        if self.path != "/model":
            self._send(404, {"error": f"there is no {self.path[:100]}; GET /model or POST /predict"})
        elif used is None:
            self._send(503, {"error": "there is no model yet"})
        else:
            self._send(200, dict(used.facts))

    def do_POST(self) -> None:
        if not self._from_here():
            return
        if not self.places.acquire(blocking=False):
            self.close_connection = True
            self._send(503, {"error": f"{AT_ONCE} requests are being answered; try again"})
            return
        try:
            self._answer()
        finally:
            self.places.release()

    def _answer(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path not in ("/predict", "/label") or not length.isdecimal() or int(length) > MAX_BODY:
            self.close_connection = True  # the body stays unread
            self._send(400, {"error": f"POST /predict or /label with a Content-Length of at most {MAX_BODY}"})
            return
        try:
            body = self.rfile.read(int(length))
            x: Array | None = None
            found: dict[str, Any]
            if self.path == "/label":
                found = {"counted": self.predictions.label(*_labeled_of(body))}
            else:
                x = _array_of(body)
                found = self.predictions.answer(x)
        except ShoalError as error:
            status = 503 if self.predictions.used is None else 400
            self._send(status, {"error": error.message, "hint": error.hint})
        except MemoryError:
            self._send(413, {"error": "these samples take too much memory; send fewer at a time"})
        else:
            self._send(200, found)
            if x is not None and "classes" in found:  # no program waits for it
                self.predictions.compare(x, found["classes"])

    def _from_here(self) -> bool:
        host = self.headers.get("Host", "localhost").rpartition(":")
        name = host[0] if host[0] and host[2].isdecimal() else "".join(host)
        if self.headers.get("Origin") is None and name in HOSTS:
            return True
        self.close_connection = True
        self._send(403, {"error": "only programs of this machine are answered, under the name localhost"})
        return False

    def _send(self, status: int, answer: Mapping[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def address_string(self) -> str:
        return "local"

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    """On a socket that is bound already."""

    daemon_threads = True

    def __init__(self, descriptor: int) -> None:
        super().__init__(("", 0), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.socket(fileno=descriptor)

    def get_request(self) -> tuple[Any, Any]:
        found, address = self.socket.accept()
        return found, address or ("local", 0)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A program that hangs up, as `curl --fail` does on an error, is no fault of this device."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _array_of(body: bytes) -> Array:
    """The samples in a request. Raises BadPayload."""
    try:
        if body.startswith(np.lib.format.MAGIC_PREFIX):
            return np.asarray(np.load(io.BytesIO(body), allow_pickle=False))
        return np.asarray(json.loads(body)["x"], dtype=np.float64)
    except (ValueError, KeyError, TypeError, EOFError, OverflowError, RecursionError) as error:
        raise BadPayload(f"the samples cannot be read: {error}"[:300], 'send {"x": [...]}, or .npy') from None


def _labeled_of(body: bytes) -> tuple[Array, Array]:
    """The samples and labels in a request. Raises BadPayload."""
    try:
        found = json.loads(body)
        return np.asarray(found["x"], dtype=np.float64), np.asarray(found["y"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise BadPayload(f"the labels cannot be read: {error}"[:300], LABELS) from None


def _classes(network: Scorer, inputs: Array) -> Array:
    found: Array = class_scores(network, inputs, 0).argmax(axis=1)
    return found


def _obey(order: Mapping[str, Any]) -> Any:
    """What is said to an order. Raises ShoalErrors."""
    predictions = Handler.predictions
    files = (Path(order["graph"]), Path(order["model"])) if "model" in order else None
    if "shadow" in order:
        predictions.try_out(files, Counts(*order.get("counts", ())))
    elif files is None:
        return astuple(predictions.counts)
    else:
        predictions.use(*files, order["facts"])
    return ""


def main() -> None:
    source, sink = take_pipes()
    try:
        given = json.loads(receive(source) or b"{}")
        config = convert(given["config"], WorkConfig, "the settings")
        if config.learner is None:
            limit_memory(config.memory_bytes)
            try_runtime()
        Handler.predictions = Predictions(config)
        refused = ""
    except ShoalError as error:
        refused = str(error)
    send(sink, json.dumps(refused).encode())
    if refused:
        sys.exit(1)
    for descriptor in given["sockets"]:
        threading.Thread(target=_Server(descriptor).serve_forever, daemon=True).start()
    while (order := receive(source)) is not None:
        said: Any
        try:
            said = _obey(json.loads(order))
        except ShoalError as error:
            said = str(error)
        except (MemoryError, OSError) as error:
            said = f"{type(error).__name__}: {error}"
        send(sink, json.dumps(said).encode())
    os._exit(0)  # the agent is gone


if __name__ == "__main__":
    main()
