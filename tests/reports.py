"""Reports by hand, for server halves: models of a few numbers."""

import numpy as np

from shoal.core.algorithm import Report
from shoal.core.exchange.messages import Scored, Trained
from shoal.core.exchange.parts import Scores
from shoal.core.types import Tensors


def model(*values: float) -> Tensors:
    return {"w": np.array(values, np.float32)}


def trained(device: str, *values: float, examples: int = 10) -> Report:
    """The device trained, and its model came to these values."""
    return Report(device, Trained(model(*values), examples, 0.1))


def scored(device: str, *losses: float) -> Report:
    return Report(device, Scored(Scores(np.array(losses, float), 9)))


def values(state: object) -> dict[str, list[float]]:
    """The models of a state by key."""
    return {key: one["w"].tolist() for key, one in state.models.items()}  # type: ignore[attr-defined]
