"""Which of several models is the right one for some samples, without labels, and how sure that is.

What a model says of a sample x is a distribution p(y | x) over C classes, and p(y) is its mean over the
samples. The mutual information of sample and prediction,

    I = H(p(y)) - mean H(p(y | x)) = mean KL(p(y | x) || p(y)),

is large for a model that is sure of each sample and does not say the same of all. A model that was trained on
other data is unsure, and one that has collapsed says the same of all. Since I is a mean over samples, the
difference of two models has a standard error, from the same samples, and no random numbers are drawn. See
docs/algorithms.md for how well that works, and where it cannot. All this is numpy, and needs no network.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.exchange.parts import FloatArray

TINIEST = 1e-12
"""A probability below this counts as this: its logarithm must be finite."""
MIN_OF_LABEL = 1e-3
"""The same of the probability of a sample's label: one wrong label must not decide."""
BLUR, MIN_BLUR = 0.1, 0.05
"""How much two equally good models differ that were trained by themselves: this share of the best one's
mutual information, and this many nats. So models that have hardly learned anything are no evidence, however
many samples there are. Chosen on runs with seeds up to 42; see benchmarks/placing.py."""
MEMBERS, MIN_SHARE = 4, 0.05
"""A mixture has at most this many models, or kins of models, each with at least this share of the largest
share. Chosen on the same runs: models beyond that hardly change a prediction, and each takes as much time as
the first."""
PRIOR_SAMPLES = 5.0
"""Shares in a mixture are the odds to the power n / (n + PRIOR_SAMPLES), for n samples: a mixture gains by
having several models as well as by having the right one, and few samples do not tell which one that is."""
TAIL = 4.0
"""Degrees of freedom of a t distribution: what is said about how much models differ is itself uncertain, and
a model that is far too sure of itself must not outweigh all else."""


@dataclass(frozen=True, eq=False)
class Odds:
    """What K models' predictions are evidence of. Arrays are (K,), and (K + 1,) with the common model last.

    information: (K + 1,), in nats. errors: (K + 1,), the standard error of the difference from the best of
    the K. odds: (K,), the probability that a model is the right one; they sum to 1. agreement: (K + 1,), on
    which share of samples a model is expected to say what the right one says. samples: how many there were.
    kin: (K,), the same number for models of clusters that only name the classes differently.
    """

    information: FloatArray
    errors: FloatArray
    odds: FloatArray
    agreement: FloatArray
    samples: int
    kin: FloatArray

    @property
    def order(self) -> list[int]:
        """The K models, the likeliest first."""
        return [int(index) for index in np.argsort(-self.odds, kind="stable")]

    @property
    def best(self) -> int:
        """The model to use; K is the common one. It is the one that is expected to say most often what the
        right one says: of two models that do not differ, it does not matter which of them is right."""
        likely = np.append(self.odds, 0.0)
        return int(np.lexsort((-likely, -self.agreement))[0])

    @property
    def mixture(self) -> FloatArray:
        """(K + 1,): the share of each model in predictions by the likeliest ones together. They sum to 1.

        Where the samples do not decide between models, the weighted mean of what they say of a new sample is
        right more often than any one of them; where they do, it is one model.
        """
        shares = self.odds ** (self.samples / (self.samples + PRIOR_SAMPLES))
        likeliest = list(dict.fromkeys(self.kin[self.order].tolist()))
        shares[~np.isin(self.kin, likeliest[:MEMBERS])] = 0.0
        shares[shares < MIN_SHARE * shares.max()] = 0.0
        return np.append(shares / shares.sum(), 0.0)


def odds(
    predictions: Sequence[FloatArray],
    labels: FloatArray | None = None,
    other: FloatArray | None = None,
    kin: FloatArray | None = None,
    devices: Sequence[float] = (),
) -> Odds:
    """The odds of K models by what they, and the common model, say of n samples.

    predictions: K + 1 arrays (n, C), rows that sum to 1, the common model's last. labels: (n,), the classes
    of the samples, where they are known: then the evidence is the logarithm of what a model gives to them.
    other: (K,), logarithms of the odds by other evidence. How many devices have a model is no evidence: the
    newcomer is none of them. But samples without labels are no evidence at all between models of which each
    names the same classes in its own way, all of which are sure. kin: (K,), the same number for those; they
    share their odds by their `devices`, (K,).

    Example:
        >>> sure = np.array([[1.0, 0.0], [0.0, 1.0]] * 10)
        >>> unsure, same = np.full((20, 2), 0.5), np.array([[1.0, 0.0]] * 20)
        >>> found = odds([unsure, sure, same, unsure])
        >>> found.best, found.odds.round(2).tolist()
        (1, [0.0, 1.0, 0.0])
    """
    said = [np.asarray(each, np.float64) for each in predictions]
    evidence = np.stack([gain(each) if labels is None else _of_labels(each, labels) for each in said])
    count = len(said) - 1
    information = evidence.mean(axis=1)
    first = int(np.argmax(information[:count]))
    gaps = evidence[first] - evidence
    n = evidence.shape[1]
    # One sample has no spread: it may be worth anything.
    errors = gaps.std(axis=1, ddof=1) / np.sqrt(n) if n > 1 else np.abs(gaps[:, 0])
    blur = BLUR * float(information[first])
    spread = np.sqrt(errors[:count] ** 2 + blur**2 + MIN_BLUR**2)
    steps = gaps[:count].mean(axis=1) / spread
    logarithms = -0.5 * (TAIL + 1.0) * np.log1p(steps**2 / TAIL)
    if other is not None:
        logarithms = logarithms + other
    likely = np.exp(logarithms - logarithms.max())
    likely /= likely.sum()
    if kin is not None:
        weights = np.asarray(devices)
        likely = np.array([likely[kin == each].sum() / weights[kin == each].sum() for each in kin]) * weights
    top = np.stack([each.argmax(axis=1) for each in said])
    agreement = (top[:, None] == top[None, :count]).mean(axis=2) @ likely
    apart: FloatArray = np.arange(count, dtype=np.float64)
    return Odds(information, errors, likely, agreement, n, apart if kin is None else kin)


def gain(said: FloatArray) -> FloatArray:
    """(n,): how far what a model says of each sample is from what it says on average, in nats. The mean is
    the mutual information. said: (n, C)."""
    usual = said.mean(axis=0)
    found: FloatArray = (said * (np.log(said + TINIEST) - np.log(usual + TINIEST))).sum(axis=1)
    return found


def _of_labels(said: FloatArray, labels: FloatArray) -> FloatArray:
    found: FloatArray = np.log(np.maximum(said[np.arange(len(said)), labels.astype(int)], MIN_OF_LABEL))
    return found
