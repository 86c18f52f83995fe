"""What a device knows of its mixture: numbers alone, no network. Sections and equations are the paper's.

Arrays are (K,) or (n, K): a column for each model of a task, a row for each sample of the training part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.core.algorithms.fedrc.messages import Mixing
from shoal.core.device_kit.mixture import Labels, responsibilities
from shoal.core.exchange.parts import FloatArray, MixtureCounts
from shoal.core.seeds import generator
from shoal.core.types import Tensors

TINY = 1e-8
"""epsilon of Adam (H.3)."""
SHARPNESS = 3.0
"""As one: a model that explains the data better by a nat a sample weighs so many e-folds more."""
FAR = 20.0
"""As one: nats by which a model counts as worse at most. More changes no weight, and a model that was ruined
for one round would be remembered for a hundred."""
KEPT = 0.5
"""As one: the part of earlier rounds in how well a model explains the data. Single rounds of averaging over
devices of few classes move models to and fro, and devices with them."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """omega: (K,), how much of the data each model explains; they sum to 1. gamma: (n, K), of each sample;
    None before the first E-step. velocity, square: Adam's moments of gamma, (n, K), where it is in use.
    costs: (K,), how badly each model explains the data as one, over the rounds; None where it does not count.
    """

    keys: tuple[str, ...]
    omega: FloatArray
    gamma: FloatArray | None = None
    velocity: FloatArray | None = None
    square: FloatArray | None = None
    costs: FloatArray | None = None

    def tensors(self) -> Tensors:
        """What is to be remembered, by model, as the server may take some away. omega alone
        without Adam once each sample is weighed by itself."""
        found = {f"omega.{key}": self.omega[number : number + 1] for number, key in enumerate(self.keys)}
        if self.costs is not None:
            found |= {f"cost.{key}": self.costs[number : number + 1] for number, key in enumerate(self.keys)}
        if self.gamma is not None and self.velocity is not None and self.square is not None:
            for name, values in (("gamma", self.gamma), ("velocity", self.velocity), ("square", self.square)):
                found |= {f"{name}.{key}": values[:, number] for number, key in enumerate(self.keys)}
        return found


def begun(keys: Sequence[str], first: str, seed: int) -> Mixture:
    """Before the first round. first: "equal", or "random", which sets apart models that begin alike."""
    count = len(keys)
    drawn = generator(seed, "mixture").dirichlet(np.ones(count)) if first == "random" else np.ones(count)
    return Mixture(tuple(keys), drawn / drawn.sum())


def recalled(memory: Tensors | None, keys: Sequence[str], samples: int) -> Mixture | None:
    """The mixture as it is remembered; what is left of it shared out anew where the server took models away
    (Algorithm 3). None where some model of the task was not in it: then it begins anew."""
    if memory is None or any(f"omega.{key}" not in memory for key in keys):
        return None
    omega = np.concatenate([memory[f"omega.{key}"] for key in keys])
    shared = _shared_out(omega[None], np.full(len(keys), 1.0 / len(keys)))[0]
    costs = [memory[f"cost.{key}"] for key in keys if f"cost.{key}" in memory]
    known = np.concatenate(costs) if len(costs) == len(keys) else None
    mixture = Mixture(tuple(keys), shared, costs=known)
    names = ("gamma", "velocity", "square")
    columns = [[memory.get(f"{name}.{key}") for key in keys] for name in names]
    if any(column is None or len(column) != samples for each in columns for column in each):
        return mixture
    gamma, velocity, square = (np.stack(each, axis=1) for each in columns)  # type: ignore[arg-type]
    return replace(mixture, gamma=_shared_out(gamma, mixture.omega), velocity=velocity, square=square)


def mean_costs(losses: FloatArray, log_shares: FloatArray | None) -> FloatArray:
    """(K,): how badly each model explains the data, the mean of -log P(y | x) / P(y) (eq. 2), in nats."""
    found: FloatArray = (losses if log_shares is None else losses + log_shares).mean(axis=0)
    return found


def as_one(before: Mixture, losses: FloatArray, log_shares: FloatArray | None, mixing: Mixing) -> Mixture:
    """All samples alike, by how well each model explains them together. Weights that were drawn stand in the
    first round, as models that begin alike explain everything alike."""
    omega, costs = before.omega, None
    if mixing.first != "random":
        costs = mean_costs(losses, log_shares)
        costs = np.minimum(costs, costs.min() + FAR)
        costs = costs if before.costs is None else KEPT * before.costs + (1.0 - KEPT) * costs
        omega = np.exp(SHARPNESS * (costs.min() - costs))
        omega = omega / omega.sum()
    return Mixture(before.keys, omega, np.tile(omega, (len(losses), 1)), costs=costs)


def weighed(before: Mixture, losses: FloatArray, log_shares: FloatArray | None, mixing: Mixing) -> Mixture:
    """The E-step (eq. 3 and 4): each sample's models by the weights of before, and from that the weights."""
    prior = np.maximum(before.omega, mixing.floor)
    gamma = responsibilities(losses, prior / prior.sum(), log_shares)
    if not mixing.adam:
        return replace(before, omega=gamma.mean(axis=0), gamma=gamma, costs=None)
    last = np.tile(before.omega, (len(gamma), 1)) if before.gamma is None else before.gamma
    velocity = np.zeros_like(gamma) if before.velocity is None else before.velocity
    square = np.zeros_like(gamma) if before.square is None else before.square
    step = last - gamma
    velocity = (1.0 - mixing.beta1) * step + mixing.beta1 * velocity
    square = (1.0 - mixing.beta2) * step**2 + mixing.beta2 * square
    moved = last - velocity / (1.0 - mixing.beta1) / (np.sqrt(square / (1.0 - mixing.beta2)) + TINY)
    moved = _shared_out(np.maximum(moved, 0.0), before.omega)
    return Mixture(before.keys, moved.mean(axis=0), moved, velocity, square)


def log_shares(table: MixtureCounts | None, labels: Labels) -> FloatArray | None:
    """(n, K): log of how usual each sample's class is with each model."""
    return None if table is None else np.log(table.counts[:, labels].T)


def class_counts(gamma: FloatArray, labels: Labels, classes: int) -> FloatArray:
    """(K, C): how many samples of each class each model explains."""
    counts = np.zeros((gamma.shape[1], classes))
    np.add.at(counts.T, labels, gamma)
    return counts


def _shared_out(gamma: FloatArray, omega: FloatArray) -> FloatArray:
    """Rows that sum to 1; one of which nothing is left is that of the device."""
    sums = gamma.sum(axis=1, keepdims=True)
    found: FloatArray = np.where(sums > 0.0, gamma / np.where(sums > 0.0, sums, 1.0), omega)
    return found
