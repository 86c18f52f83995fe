"""What left a device, in the words of every report: the true (epsilon, delta), or that there is none."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from shoal.core.data.histogram import is_histogram
from shoal.core.exchange.choosing import Chosen
from shoal.core.exchange.choosing.tuning import Tuned
from shoal.core.exchange.choosing.vote import Voted
from shoal.core.exchange.choosing.watching import Watched
from shoal.core.exchange.encoding.messages import TrainedEncoded
from shoal.core.exchange.messages import (
    Built,
    Described,
    Evaluate,
    Evaluated,
    LatentsCounted,
    Message,
    Represented,
    Scored,
    Summarize,
    Summarized,
    Train,
    Trained,
)
from shoal.core.exchange.payload import fields_of
from shoal.core.exchange.privacy_modes import MODES
from shoal.core.exchange.summing import SECURE, TrainMasked
from shoal.core.privacy.cost import Cost, epsilon_of, group
from shoal.core.privacy.sums import REPLACED
from shoal.core.types import Tensors

OPEN = {
    **{mode.name: mode.leaves for mode in MODES.values() if not mode.calibrated},
    "prototypes": "mean embeddings of classes (prototypes), or means of the inputs themselves where the "
    "learner has no encoder, with how many samples each has",
    "bounds": "bounds of latents, which are values of real records",
    "weights": "weights trained without DP-SGD",
    "summary": "mean and deviation of each feature of the inputs",
    "figures": "accuracy, loss and the share of the commonest class as measured",
    "histograms": "histograms of each feature of the inputs",
    "summed histograms": "histograms of each feature of the inputs, of which the server sees sums over at "
    "least 6 devices (secure aggregation)",
    "counts": "how often two releases agreed and were right in a rollout, and the cluster of one",
    "summed": "weights, of which the server sees sums over at least 6 devices (secure aggregation)",
    "changes": "whether the data have changed since an earlier run of the series",
}
"""What can leave without a guarantee."""
OF_TRAINING = (OPEN["weights"], OPEN["summary"], OPEN["figures"], OPEN["summed"], OPEN["changes"])
"""What leaves in the rounds of runs that ask for no guarantee."""
WEIGHTS = "weights: no privacy guarantee, as they leave without DP-SGD"
IN_SUMS = "weights: without DP-SGD, and only in sums over several devices (secure aggregation)"
NAMED = (WEIGHTS, IN_SUMS)
"""What also stands among what left without a guarantee."""
NO_WEIGHTS = "weights: none have left"

NOTHING = Cost()


@dataclass(frozen=True)
class Statement:
    """All releases of one device. cost: for one sample. delta, group_size: at which it is stated.

    unprotected: what left without a guarantee, as in `OPEN`. failures: of tasks, of which the server learned
    the code: that a task of a hostile server fails can depend on the data, and no epsilon covers it.
    trained: whether weights were trained by DP-SGD; None: if the cost has a curve, as nothing else but votes
    has one.
    """

    cost: Cost = NOTHING
    delta: float = 1e-6
    group_size: int = 1
    unprotected: tuple[str, ...] = ()
    failures: int = 0
    trained: bool | None = None

    @property
    def epsilon(self) -> float:
        """The true epsilon of everything; infinite where something left unprotected."""
        return math.inf if self.unprotected else self.protected

    @property
    def protected(self) -> float:
        """The epsilon of what has a guarantee, which says nothing of the rest."""
        return self.cost.epsilon(self.delta, self.group_size)

    @property
    def if_replaced(self) -> float:
        """The epsilon of what has a guarantee, between data sets in which one sample is another."""
        return self.cost.epsilon_if_replaced(REPLACED, self.delta, self.group_size)

    @property
    def weights(self) -> str:
        """What is said of the weights that left: `NO_WEIGHTS`, `WEIGHTS` or `IN_SUMS`; "" where DP-SGD has
        trained all of them."""
        if OPEN["weights"] in self.unprotected:
            return WEIGHTS
        if OPEN["summed"] in self.unprotected:
            return IN_SUMS
        trained = bool(self.cost.curve) if self.trained is None else self.trained
        return "" if trained else NO_WEIGHTS

    @property
    def promise(self) -> str:
        """The epsilon of what has a guarantee, in words."""
        samples = f" for {self.group_size} samples together" if self.group_size > 1 else ""
        return f"epsilon {self.protected:.4g} at delta {self.delta:g}{samples}"

    def facts(self) -> dict[str, Any]:
        """For programs. epsilon: None where there is none; of_releases: of what has one."""
        return {
            "epsilon": None if self.unprotected else self.epsilon,
            "delta": self.delta,
            "group_size": self.group_size,
            "of_releases": self.protected,
            "if_replaced": self.if_replaced,
            "unprotected": list(self.unprotected),
            "failures": self.failures,
            "summary": str(self),
        }

    def __str__(self) -> str:
        return self._worded(self.promise)

    @property
    def of_both_neighbors(self) -> str:
        """The same with the other epsilon: how many samples there are is public, so people mean that one."""
        other = f"{self.if_replaced:.4g} where one sample is replaced by another"
        return self._worded(f"{self.promise} ({other})")

    def _worded(self, promise: str) -> str:
        tasks = "1 task" if self.failures == 1 else f"{self.failures} tasks"
        failed = f"; besides, the server learned that {tasks} failed" if self.failures else ""
        if not self.cost and not self.unprotected:
            return f"nothing was released{failed}"
        if not self.unprotected:
            return f"{promise}{failed}"
        some = f"; the rest: {promise}" if self.cost else ""
        return f"no guarantee: {', '.join(self.unprotected)}{some}{failed}"


@dataclass(frozen=True)
class CentralNoise:
    """What noise in the sums of updates promises each device of a run, for all of its samples together. rho:
    of the device that took part most. by_devices: who adds the noise, all devices or the server."""

    rho: float
    delta: float
    by_devices: bool = False

    def __str__(self) -> str:
        if not self.rho:
            return "models: no update has gone into them yet"
        whose = (
            "by noise of all devices: against those who get models, and against the server as long as the "
            "devices of a cohort follow the protocol"
            if self.by_devices
            else "by noise of the server: against those who get models, not against the server"
        )
        others = if_updates_are_others(self.rho, self.delta)
        return (
            f"models: epsilon {epsilon_of(self.rho, self.delta):.4g} at delta {self.delta:g} for all of a "
            f"device's updates ({others:.4g} where they are others), {whose}"
        )


def if_updates_are_others(rho: float, delta: float) -> float:
    """The epsilon of noise in sums of updates that cost `rho`, between two runs in which the updates of one
    device are others instead of zero: that moves a sum by twice the norm to which they are clipped."""
    return epsilon_of(group(rho, 2), delta)


def of_weights(released: Collection[Statement]) -> str:
    """What the weights of these devices have, in one line: of the device for which it is least.

    A device's cost is for all that it released; its weights by themselves cost no more than that.
    """
    found = {each.weights for each in released}
    for least in (WEIGHTS, IN_SUMS):
        if least in found or not found:
            return least
    if found == {NO_WEIGHTS}:
        return NO_WEIGHTS
    gave = [each for each in released if not each.weights]
    worst = max(gave, key=lambda each: each.protected)
    devices = "1 device" if len(gave) == 1 else f"each of {len(gave)} devices"
    return f"weights: DP-SGD on {devices}, with its other releases at most {worst.promise}"


def left_open(message: Message) -> tuple[str, ...]:
    """Of the data of a device that answers this. Descriptors, bounds, prototypes and scales tell for
    themselves: what needs no scale, as images do, says nothing of its inputs.

    Initial weights follow from no data, a choice among models and a fine-tuned model stay on the device, and
    a vote and the answer to whether data have moved have a guarantee and are paid for. Reports of kinds that
    are not known here are taken for the worst.
    """
    if isinstance(message, Summarize) or (isinstance(message, Evaluate) and message.rho is not None):
        return ()
    if isinstance(message, Train | TrainMasked) and is_histogram(message.model):
        summed = "summed histograms" if isinstance(message, TrainMasked) else "histograms"
        return () if message.private is not None else (OPEN[summed],)
    return opened_by(type(message), getattr(message, "private", None) is None)


def opened_by(kind: type[Message], plain: bool) -> tuple[str, ...]:
    """The same for messages of one kind. plain: whether it asks for weights without DP-SGD, if it asks for
    weights."""
    reply = getattr(kind, "reply", Built)  # what has no reply is one
    if reply in (Built, Chosen, Tuned, Voted, Watched, LatentsCounted):
        return ()
    if kind in SECURE:
        return (OPEN["summed"],) if kind is TrainMasked else ()
    types = {each for kinds, _ in fields_of(reply).values() for each in kinds}
    found = [OPEN["weights"]] if plain and types & {Tensors, tuple[Tensors, ...]} else []
    if issubclass(reply, Evaluated | Scored) or (plain and issubclass(reply, Trained)):
        found.append(OPEN["figures"])
    if reply is Summarized:
        found.append(OPEN["summary"])
    if reply not in (Evaluated, Scored, Summarized, Trained, TrainedEncoded, Described, Represented):
        found.append(as_computed(reply.kind))
    return tuple(found)


def as_computed(kind: str) -> str:
    """What is said of a report of this kind, which may contain everything."""
    return f"a {kind!r} report, as computed"
