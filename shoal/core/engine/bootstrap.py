"""Round 1 asks devices for the initial weights where the server has none; then the algorithm starts.

`Bootstrap` wraps an algorithm's server half and is one itself, so the engine needs no special case for it.

All models of a run grow from these weights, and one that lies could send some from which nothing is learned,
or of a shape that no other one has. So up to three devices are asked. They have the same seed, so that those
with the same learner make the same weights, and what two of them agree on counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from statistics import median
from typing import Any

import numpy as np

from shoal.core.algorithm import Basis, Plan, Report, ServerHalf, begun_with, densities, independent, without
from shoal.core.data.scale import with_scale
from shoal.core.data.seeds import derive
from shoal.core.errors import Refused
from shoal.core.exchange.choosing import ClusterDensities
from shoal.core.exchange.messages import Build, Built, Evaluated, Message
from shoal.core.exchange.parts import ClusterAssignment, Evidence
from shoal.core.exchange.tensors import digest, manifest_of
from shoal.core.types import Array, DeviceId, ModelKey, Scalar, Tensors

ASKED = 3
"""How many devices are asked: of three, one that lies or is unlike the others is outvoted."""
TITLE = "initial weights"
"""Of the round that makes them. With this title, before a run has a model, reports have no data in them."""
SAME = 1e-3
"""Up to which distance, relative to their length, two initial models are the same ones: other processors and
versions of PyTorch round otherwise."""


@dataclass(frozen=True)
class Unstarted:
    """The state of a run that has no model yet. bases: of earlier runs, each of another network. scale: of
    the inputs, where an earlier run has counted it; else empty."""

    models: Mapping[ModelKey, Tensors] = field(default_factory=dict)
    assignments: Mapping[DeviceId, ModelKey] = field(default_factory=dict)
    metrics: Mapping[DeviceId, Evaluated] = field(default_factory=dict)
    progress: int = 0
    bases: tuple[Basis, ...] = ()
    scale: Tensors = field(default_factory=dict)

    @property
    def basis(self) -> Basis | None:
        """The likeliest of them."""
        return self.bases[0] if self.bases else None

    @property
    def facts(self) -> Mapping[str, Scalar]:
        return {}

    @property
    def remarks(self) -> Sequence[str]:
        return ()


@dataclass(frozen=True)
class Bootstrap:
    """The server half `inner` with its parameters, for runs that begin as `Unstarted`.

    models: the number of initial models that it starts from, which `Algorithm.initial` gives.
    """

    inner: ServerHalf
    parameters: Any
    models: int = 1

    def start(self, model: Tensors, parameters: Any, *others: Tensors) -> Any:
        return self.inner.start(model, parameters, *others)

    def plan(self, state: Any, present: Sequence[DeviceId]) -> Plan | None:
        if isinstance(state, Unstarted):
            task = Build(self.models) if self.models > 1 else Build()
            # Not the first by name, which often are all of one site.
            asked = sorted(present, key=lambda device: derive(0, "initial weights", device))[:ASKED]
            return Plan(dict.fromkeys(asked, task), TITLE)
        return self.inner.plan(state, present)

    def reduce(self, state: Any, reports: Sequence[Report]) -> Any:
        if not isinstance(state, Unstarted):
            return self.inner.reduce(state, reports)
        built = [each.message for each in reports if isinstance(each.message, Built)]
        # Copies, since the arrays of a report are views of a spooled file that is deleted after the round.
        first, *others = (
            with_scale({name: array.copy() for name, array in model.items()}, state.scale)
            for model in models_of(agreed(built))
        )
        begun = begun_with(self.inner.start(first, self.parameters, *others), *state.bases)
        encoder = agreed_encoder(built)
        return replace(begun, encoder=encoder) if encoder and hasattr(begun, "encoder") else begun

    def densities(self, state: Any) -> ClusterDensities | None:
        return None if isinstance(state, Unstarted) else densities(self.inner, state)

    def without(self, state: Any, device: DeviceId) -> Any:
        return without(self.inner, state, device)

    @property
    def independent(self) -> bool:
        return independent(self.inner, self.parameters)

    def place(self, state: Any, evidence: Evidence | None) -> ClusterAssignment | Message:
        if isinstance(state, Unstarted):
            raise Refused("the run has no model yet", "try again after its first round")
        return self.inner.place(state, evidence)


def models_of(built: Built) -> tuple[Tensors, ...]:
    return (built.model, *(built.others or ()))


def agreed(built: Sequence[Built]) -> Built:
    """The initial models that a run starts from: of the shape that most have; of these, such as most have.

    Where no two agree, as with a learner that draws its weights without the seed, the lengths of the tensors
    decide: those in the middle count, so that nothing can be made too small or too large to train.

    built: at least one; of several that are as good, the first one counts.

    Example:
        >>> one, other = Built({"w": np.ones(2)}), Built({"w": np.zeros(2)})
        >>> agreed([other, one, one]) is one
        True
    """
    shapes = [manifest_of(each.model) for each in built]
    commonest = max(shapes, key=shapes.count)  # of several, the first: of two devices, either may be wrong
    alike = [each for each, shape in zip(built, shapes, strict=True) if shape == commonest]
    peers = [sum(_same(each, other) for other in alike) for each in alike]
    if max(peers) > 1:
        return alike[peers.index(max(peers))]
    lengths = [[_length(array) for model in models_of(each) for array in model.values()] for each in alike]
    middle = [median(each) for each in zip(*lengths, strict=True)]
    off = [sum(abs(log(a) - log(b)) for a, b in zip(own, middle, strict=True)) for own in lengths]
    return alike[off.index(min(off))]


def agreed_encoder(built: Sequence[Built]) -> Tensors:
    """The frozen encoder that at least two devices have given as the same graph; empty where no two have. All
    devices embed their data by it, so that one device's word is not enough."""
    found = {digest(each.encoder): each.encoder for each in built if each.encoder is not None}
    names = [digest(each.encoder) for each in built if each.encoder is not None]
    often = [name for name in found if names.count(name) > 1]
    return {name: array.copy() for name, array in found[often[0]].items()} if often else {}


def _same(one: Built, other: Built) -> bool:
    pairs = [
        (array, theirs[name])
        for own, theirs in zip(models_of(one), models_of(other), strict=True)
        for name, array in own.items()
    ]
    return all(
        np.array_equal(a, b) or _length(np.subtract(a, b, dtype=np.float64)) <= SAME * _length(a)
        for a, b in pairs
    )


def _length(array: Array) -> float:
    """L2 norm, and more than 0."""
    return float(np.linalg.norm(np.asarray(array, np.float64))) + np.finfo(float).tiny
