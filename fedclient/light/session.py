"""ONNX Runtime: one session for each model, with one graph that was checked before."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from shoal.core.errors import DeviceFault, LearnerFault, WrongShape
from shoal.core.inference.graph.binding import bound
from shoal.core.inference.graph.model import (
    EMBEDDING,
    LATENT,
    SAMPLES,
    SCORES,
    Graph,
    read_encoder,
)
from shoal.core.inference.network import batches
from shoal.core.types import Array, Tensors

INSTALL = "pip install onnxruntime"
BATCH = 16
"""Samples at a time: light devices have little memory."""
FATAL = 4
"""The severity from which on the runtime writes to standard error itself: it names files and memory there."""


def open_session(data: bytes, threads: int) -> Any:
    """A session of an ONNX file. It has no custom operators, and finds no files beside it.

    Raises DeviceFault where ONNX Runtime is not installed, LearnerFault where it refuses the file.
    """
    ort = runtime()
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.log_severity_level = FATAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with _refusals("opening the model"):
        return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def runtime() -> Any:
    """The module of ONNX Runtime. Raises DeviceFault."""
    try:
        import onnxruntime
    except ImportError as error:
        raise DeviceFault(f"ONNX Runtime cannot be used on this device: {error}", INSTALL) from None
    return onnxruntime


class OnnxNetwork:
    """A graph as a `shoal.core.inference.network.Network`."""

    batch = BATCH

    def __init__(self, graph: Graph, threads: int) -> None:
        self.graph, self._threads = graph, threads
        self.name = graph.facts.get("learner") or "the run's graph"
        self.classifier, self.manifest = graph.classifier, graph.weights
        self._session: Any = None
        self._loaded: Tensors | None = None

    def load(self, weights: Tensors) -> None:
        if weights is not self._loaded:
            self._session = self._loaded = None
            self._session = open_session(bound(self.graph, weights), self._threads)
            self._loaded = weights

    def scores(self, x: Array) -> Array:
        return self._run(SCORES, x)

    def latents(self, x: Array) -> Array:
        if LATENT not in self.graph.outputs:
            raise LearnerFault(
                f"{self.name} has no latent",
                "start a run with the graph of a learner that has one",
            )
        found = self._run(LATENT, x)
        if found.ndim != 2 or len(found) != len(x):
            raise LearnerFault(f"the latent of {len(x)} samples has shape {found.shape}, not ({len(x)}, v)")
        return found

    def embeddings(self, x: Array) -> Array:
        """(n, ...) samples -> (n, d), of a frozen encoder. Raises LearnerFault."""
        return np.concatenate([self._run(EMBEDDING, batch) for batch in batches(self, x)])

    def _run(self, output: str, x: Array) -> Array:
        assert self._session is not None  # a model was loaded
        sample = self.graph.sample
        if x.shape[1:] != sample.shape or x.dtype.name != sample.dtype:
            flat = x.ndim == 2 and len(sample.shape) == 1 and x.shape[1:] != sample.shape
            raise WrongShape(
                f"the network takes samples of shape {list(sample.shape)}, {sample.dtype}, and the data have "
                f"shape {list(x.shape[1:])}, {x.dtype.name}",
                f"set data.shape: {list(sample.shape)}",
                (x.shape[1], sample.shape[0]) if flat else None,
            )
        with _refusals("computing"):
            found: Array = self._session.run([output], {SAMPLES: np.ascontiguousarray(x)})[0]
        if not isinstance(found, np.ndarray) or found.dtype.kind != "f":
            raise LearnerFault(f"the graph's {output} are no floating-point numbers")
        return found


def open_encoder(data: bytes, threads: int) -> Callable[[Array], Array]:
    """What embeds samples by the frozen encoder in an ONNX file. Raises BadPayload for one that is not taken,
    and as `open_session`."""
    network = OnnxNetwork(read_encoder(data), threads)
    network.load({})
    return network.embeddings


@contextmanager
def _refusals(what: str) -> Iterator[None]:
    """Around a call of the runtime, whose errors have no class in common."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        said = str(error).replace("\n", " ")[:500]
        if "bad_alloc" in said or "allocate" in said.lower():
            raise MemoryError from None
        raise LearnerFault(
            f"ONNX Runtime refuses the run's graph while {what}: {said}", "tell the run's operator"
        ) from None
