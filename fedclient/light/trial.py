"""ONNX Runtime, tried in a process of its own before it is used, within limits.

A processor that lacks what it was built for ends this process, and the agent says so and lives.
"""

import resource
from contextlib import suppress

import numpy as np

from fedclient.light.session import open_session
from shoal.core.errors import LearnerFault
from shoal.core.inference.graph.model import LATENT, SAMPLES, SCORES
from shoal.core.inference.graph.wire import field, message


def limit_memory(most: int) -> None:
    """Let this process have at most this many bytes of its own: a graph can ask for any number."""
    with suppress(ValueError, OSError):  # a system that does not know the limit, or has a lower one
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _trial() -> bytes:
    """A graph whose scores are twice the samples: enough to run the runtime."""

    def value(name: str) -> bytes:
        sizes = [(1, message([(2, "batch")])), (1, message([(1, 4)]))]
        return message([(1, name), (2, message([(1, message([(1, 1), (2, message(sizes))]))]))])

    nodes = [
        message([(1, SAMPLES), (1, SAMPLES), (2, SCORES), (4, "Add")]),
        message([(1, SCORES), (2, LATENT), (4, "Relu")]),
    ]
    parts = [
        *((1, node) for node in nodes),
        (11, value(SAMPLES)),
        *((12, value(name)) for name in (SCORES, LATENT)),
    ]
    return message([(1, 8)]) + field(7, message(parts)) + field(8, message([(2, 17)]))


TRIAL = _trial()
"""The smallest graph, to try the runtime with."""


def try_runtime() -> None:
    """Open a model and use it. Raises DeviceFault where ONNX Runtime is missing, LearnerFault where it fails;
    where the processor lacks an instruction, the process ends."""
    session = open_session(TRIAL, threads=1)
    (found,) = session.run([SCORES], {SAMPLES: np.ones((2, 4), np.float32)})
    if found.tolist() != [[2.0] * 4] * 2:
        raise LearnerFault("ONNX Runtime gives wrong results on this device", "install another version of it")
