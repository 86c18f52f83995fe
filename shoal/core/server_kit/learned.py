"""Whether a run has learned anything, as far as its server knows."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median_low
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.algorithm import State
from shoal.core.data.scale import TARGET
from shoal.core.exchange.parts import Descriptor, Moments
from shoal.core.privacy.sums import SHARES, counts, totals
from shoal.core.server_kit.scaling import stayed_raw
from shoal.core.verdict import Reported, Verdict, judged

BY_HAND = ("learning_rate", "batch_size", "epochs", "optimizer")
"""The settings of training that are best left out."""


def verdict_of(state: State, losses: Sequence[float], given: Any = ()) -> Verdict | None:
    """The verdict on a run; None until its devices have measured what they use.

    losses: the mean loss in training, round by round. given: the names of the parameters that were set.
    """
    released = getattr(state, "descriptors", {})
    devices = []
    for device, each in sorted(state.metrics.items()):
        shares, doubt = _shares(released.get(device), each.classes)
        cluster = state.assignments.get(device, "")
        devices.append(
            Reported(each.accuracy, cluster, each.examples, each.baseline, each.classes, shares, doubt)
        )
    return completed(judged(devices, losses, any(name in given for name in BY_HAND)), state)


def has_numbers(state: State) -> bool:
    """Whether labels are numbers to predict, as far as a server knows: by a scale of theirs, which models
    carry from the first round on, or else by what most devices say once they measure."""
    known = [each.classes for each in state.metrics.values() if each.baseline is not None]
    return any(TARGET in model for model in state.models.values()) or (bool(known) and not median_low(known))


def completed(found: Verdict | None, state: State) -> Verdict | None:
    """A verdict with what the run's state adds to it: what separates its clusters, and that inputs in
    different units can be why it has not learned."""
    if found is None:
        return None
    advice = "; ".join(filter(None, (found.advice, stayed_raw(state)))) if not found.learned else found.advice
    return replace(found, advice=advice, groups=groups_of(state))


def groups_of(state: State) -> str:
    """What separates the clusters of a run, in one sentence; "" where its devices have released no
    descriptors."""
    described = getattr(state, "descriptors", {})
    if not described:
        return ""
    # With scipy, which a server without such runs does not load: it would be a third of its memory.
    from shoal.core.server_kit.fleet.differences import what_separates

    return what_separates(described, state.assignments)


def _shares(found: Descriptor | None, classes: int) -> tuple[npt.NDArray[np.float64] | None, float]:
    """(C,) the shares of the classes among a device's samples, by what it has released of them, and the
    standard error of each by the noise; None where it has not, or with noise of unknown size."""
    if found is None or not found.classes or found.classes > classes or found.privacy.rules.unknown_noise:
        return None, 0.0
    doubt = 0.0
    if isinstance(found.statistics, Moments):
        each = found.statistics.counts[1:]
    else:
        each = counts(found.statistics)[1:].clip(0.0)
        doubt = float(totals(found.statistics)[1][1:].max() / SHARES[2])
    samples = float(each.sum())
    if samples < 1.0:
        return None, 0.0
    shares = np.zeros(classes)
    shares[: len(each)] = each / samples
    return shares, doubt / samples
