"""An algorithm that is put through the rules, and what the rules share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shoal.checks.small_fleet import DEVICES, Device, first_model, fleet
from shoal.core.algorithm import Algorithm
from shoal.core.engine.events import Effect, Save
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import Outcome, simulate
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.exchange.tensors import digest, manifest_of, nbytes
from shoal.core.types import DeviceId, Tensors

SMALL: Mapping[str, Any] = {
    "rounds": 5,
    "epochs": 1,
    "learning_rate": 0.05,
    "batch_size": 16,
    "privacy": "off",
}
"""Of these, every run here sets what the algorithm has: so it takes a second."""


class Broken(AssertionError):
    """An algorithm does not keep a rule. The text says what it did instead."""


class Blobs:
    """Keeps tensors by their hash, as a server does."""

    def __init__(self) -> None:
        self.by_hash: dict[str, Tensors] = {}

    def keep(self, tensors: Tensors) -> Weights:
        name = digest(tensors)
        self.by_hash[name] = {key: array.copy() for key, array in tensors.items()}
        return Weights(manifest_of(tensors), BlobRef(name, nbytes(tensors)))

    def load(self, weights: Weights) -> Tensors:
        return self.by_hash[weights.blob.sha256]


Saved = tuple[int, Any, dict[DeviceId, Tensors]]
"""A checkpoint: the round, the state, and what each device remembered."""


@dataclass(frozen=True)
class Straight:
    """A run that was not interrupted. saved: all its checkpoints."""

    outcome: Outcome
    saved: list[Saved]


@dataclass(frozen=True)
class Subject:
    """An algorithm, or one of its variants, that is put through the rules."""

    card: Algorithm
    variant: str = ""

    def parameters(self, small: Mapping[str, Any] = SMALL, **more: Any) -> Any:
        changes = {**self.card.variants.get(self.variant, {}), **small, **more}
        if changes.get("clusters") == -1:  # a variant that must be given their number
            changes["clusters"] = 2
        known = self.card.settings
        return self.card.configure("default", {key: each for key, each in changes.items() if key in known})

    def run(
        self,
        *,
        state: Any = None,
        round: int = 1,
        watch: Callable[[Effect], None] = lambda effect: None,
        devices: Mapping[DeviceId, Device] | None = None,
        minimum: int = DEVICES,
    ) -> Outcome:
        server_half = self.card.server()
        state = server_half.start(first_model(), self.parameters()) if state is None else state
        policy = RoundPolicy(minimum=minimum)
        return simulate(
            server_half, state, dict(devices or fleet(self.card)), policy, 11, round=round, watch=watch
        )

    @cached_property
    def straight(self) -> Straight:
        """Made once, for every rule that compares another run with it."""
        saved: list[Saved] = []
        memories: dict[DeviceId, Tensors] = {}

        def watch(effect: Effect) -> None:
            if isinstance(effect, Save):
                saved.append((effect.round, effect.state, dict(memories)))

        return Straight(self.run(watch=watch, devices=fleet(self.card, memories=memories)), saved)


def bits(outcome: Outcome) -> dict[str, str]:
    """The hash of every model."""
    return {key: digest(model) for key, model in outcome.state.models.items()}


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)
