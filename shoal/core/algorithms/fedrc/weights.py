"""The device's knowledge of its mixture: only numbers, no network. Sections and equations are those of the
paper.

Arrays are (K,) or (n, K): a column for each model of a task, a row for each sample of the training part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.core.algorithms.fedrc.messages import Mixing
from shoal.core.data.seeds import generator
from shoal.core.device_kit.mixture import Labels, responsibilities
from shoal.core.exchange.parts import FloatArray, MixtureCounts
from shoal.core.types import Tensors

TINY = 1e-8
"""epsilon of Adam (H.3)."""
SHARPNESS = 3.0
"""For a device weighed as one: a model that explains the data better by a nat per sample weighs this many
e-folds more."""
FAR = 20.0
"""For a device weighed as one: the most nats by which a model counts as worse. A larger difference changes no
weight, but a model that was ruined in one round would be remembered for a hundred."""
KEPT = 0.5
"""For a device weighed as one: the share of earlier rounds in how well a model explains the data. Averages
over devices with few classes swing from round to round, and the devices would swing with them."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """omega: (K,), how much of the data each model explains; they sum to 1. gamma: (n, K), the same for each
    sample; None before the first E-step. velocity, square: Adam's moments of gamma, (n, K), if it is in use.
    costs: (K,), how badly each model explains the data of a device weighed as one, over the rounds; None
    otherwise."""

    keys: tuple[str, ...]
    omega: FloatArray
    gamma: FloatArray | None = None
    velocity: FloatArray | None = None
    square: FloatArray | None = None
    costs: FloatArray | None = None

    def tensors(self) -> Tensors:
        """What the device remembers, by model, because the server may remove some. Without Adam, that is only
        omega once each sample is weighed separately."""
        found = {f"omega.{key}": self.omega[number : number + 1] for number, key in enumerate(self.keys)}
        if self.costs is not None:
            found |= {f"cost.{key}": self.costs[number : number + 1] for number, key in enumerate(self.keys)}
        if self.gamma is not None and self.velocity is not None and self.square is not None:
            for name, values in (("gamma", self.gamma), ("velocity", self.velocity), ("square", self.square)):
                found |= {f"{name}.{key}": values[:, number] for number, key in enumerate(self.keys)}
        return found


def begun(keys: Sequence[str], first: str, seed: int) -> Mixture:
    """The mixture before the first round. first: "equal", or "random", which separates models that begin
    equal."""
    count = len(keys)
    drawn = generator(seed, "mixture").dirichlet(np.ones(count)) if first == "random" else np.ones(count)
    return Mixture(tuple(keys), drawn / drawn.sum())


def recalled(memory: Tensors | None, keys: Sequence[str], samples: int) -> Mixture | None:
    """The remembered mixture, with the weight of models that the server removed distributed over the others
    (Algorithm 3). None if some model of the task was not in it: the device then starts from the beginning."""
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
    """(K,): how badly each model explains the data: the mean of -log P(y | x) / P(y) (eq. 2), in nats."""
    found: FloatArray = (losses if log_shares is None else losses + log_shares).mean(axis=0)
    return found


def as_one(before: Mixture, losses: FloatArray, log_shares: FloatArray | None, mixing: Mixing) -> Mixture:
    """All samples get the same weights, by how well each model explains them together. In the first round
    weights that were drawn are used, because models that begin equal explain everything equally."""
    omega, costs = before.omega, None
    if mixing.first != "random":
        costs = mean_costs(losses, log_shares)
        costs = np.minimum(costs, costs.min() + FAR)
        costs = costs if before.costs is None else KEPT * before.costs + (1.0 - KEPT) * costs
        omega = np.exp(SHARPNESS * (costs.min() - costs))
        omega = omega / omega.sum()
    return Mixture(before.keys, omega, np.tile(omega, (len(losses), 1)), costs=costs)


def weighed(before: Mixture, losses: FloatArray, log_shares: FloatArray | None, mixing: Mixing) -> Mixture:
    """The E-step (eq. 3 and 4): each sample's weights from the former omega, and from those the new omega."""
    # The floor lets every model recover: a weight near 0 would need many nats in a single round.
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
    # Adam's step may leave the simplex: values below 0 are cut off, and the rows normalized again.
    moved = _shared_out(np.maximum(moved, 0.0), before.omega)
    return Mixture(before.keys, moved.mean(axis=0), moved, velocity, square)


def log_shares(table: MixtureCounts | None, labels: Labels) -> FloatArray | None:
    """(n, K): the logarithm of how common each sample's class is with each model."""
    return None if table is None else np.log(table.counts[:, labels].T)


def class_counts(gamma: FloatArray, labels: Labels, classes: int) -> FloatArray:
    """(K, C): how many samples of each class each model explains."""
    counts = np.zeros((gamma.shape[1], classes))
    np.add.at(counts.T, labels, gamma)
    return counts


def _shared_out(gamma: FloatArray, omega: FloatArray) -> FloatArray:
    """Rows that sum to 1; a row of zeros becomes omega."""
    sums = gamma.sum(axis=1, keepdims=True)
    found: FloatArray = np.where(sums > 0.0, gamma / np.where(sums > 0.0, sums, 1.0), omega)
    return found
