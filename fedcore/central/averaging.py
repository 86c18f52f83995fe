"""The next models of a run from a round's reports: whatever averages trained models does it here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedcore.algorithm import Report
from fedcore.central.noised import NOISED, Noise, noised
from fedcore.central.robust import BOUND, FEW, Combined, Update, combine
from fedcore.central.standard import trained
from fedcore.errors import ConfigError
from fedcore.messages import MIN_NOISE
from fedcore.parts import MAX_SCALE, MIN_SCALE
from fedcore.privacy.statement import CentralNoise
from fedcore.types import DeviceId, ModelKey, Tensors

NAMED = 5
"""Devices that a remark names."""


@dataclass(frozen=True)
class Guard:
    """What averaging remembers from round to round: one field of an algorithm's state.

    references: by model, the norm by which its last round's updates were measured; see `central.robust`.
    of_round: by model, what its last round had to hold back. of_run: what holds for the whole run.
    """

    references: Mapping[ModelKey, float] = field(default_factory=dict)
    of_round: Mapping[ModelKey, tuple[str, ...]] = field(default_factory=dict)
    of_run: str = ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What an operator should know, in the run's log once it is new."""
        of_rounds = [text for _, texts in sorted(self.of_round.items()) for text in texts]
        return tuple(filter(None, (self.of_run, *of_rounds)))

    def split(self, key: ModelKey, keys: Iterable[ModelKey]) -> "Guard":
        """Models `keys` go on where the model `key` was, and are measured as it was."""
        before = self.references.get(key, 0.0)
        return Guard(dict.fromkeys(keys, before), {}, self.of_run)


def next_models(
    models: Mapping[ModelKey, Tensors],
    reports: Sequence[Report],
    rule: str | Noise,
    guard: Guard,
    share: Callable[[DeviceId, ModelKey], float] = lambda device, key: 1.0,
) -> tuple[dict[ModelKey, Tensors], Guard]:
    """Each of `models` after this round's trained reports; one without any keeps what it is.

    rule: see `fedcore.central.robust`; "mean" is FedAvg, Algorithm 1, and FLUX Algorithm 1, "weighted
    aggregation". An update weighs its number of samples times its share in the model, 0 to 1. With noise of
    the server it weighs its share alone, and a device's shares are 1 together at most.
    """
    found, updates = dict(models), trained(reports)
    private = isinstance(rule, Noise)
    references, of_round, of_run = dict(guard.references), dict(guard.of_round), guard.of_run
    for key, base in models.items():
        shares = {device: share(device, key) for device in sorted(updates)}
        own = {
            device: Update(updates[device].model, part * (1 if private else updates[device].examples))
            for device, part in shares.items()
            if part > 0.0
        }
        if not own:
            continue
        if isinstance(rule, Noise):
            found[key] = noised(base, own, rule).model
            of_round[key] = (_loudness(key, base, own, rule),)
            continue
        combined = combine(rule, base, own, references.get(key, 0.0))
        found[key] = combined.model
        if rule != "mean":
            references[key], of_round[key] = combined.reference, _remarks(key, combined)
        if rule == "auto" and len(own) < FEW and not of_run:
            of_run = (
                f"model {key} is made by fewer than {FEW} devices: a hostile one among them is held back, "
                "but not outvoted"
            )
    return found, Guard(references, of_round, of_run)


def rule_of(parameters: Any) -> str | Noise:
    """How an algorithm's parameters say that updates become a model."""
    if parameters.aggregation != NOISED:
        return str(parameters.aggregation)
    return Noise(parameters.central_clip, parameters.central_noise, parameters.central_delta)


def check_noise(algorithm: str, parameters: Any) -> None:
    """Refuse noise of the server that promises nothing. Raises ConfigError naming the parameter."""
    asked = parameters.aggregation == NOISED
    if not asked and parameters.central_noise:
        raise ConfigError(f"{algorithm} adds central_noise by one rule alone", f"set aggregation={NOISED}")
    sane = {
        "central_noise": MIN_NOISE <= parameters.central_noise <= MAX_SCALE,
        "central_clip": MIN_SCALE <= parameters.central_clip <= MAX_SCALE,
        "central_delta": 0.0 < parameters.central_delta < 1.0,
    }
    for name, holds in sane.items():
        if asked and not holds:
            raise ConfigError(
                f"{algorithm} with aggregation={NOISED}: {name} cannot be {getattr(parameters, name)}",
                f"central_noise is {MIN_NOISE} or more, such as 1.0; central_clip a norm above 0",
            )


def charged(
    spent: Mapping[DeviceId, float], reports: Sequence[Report], rule: str | Noise
) -> Mapping[DeviceId, float]:
    """rho that each device has lost by models of this run, after a round with these reports."""
    if not isinstance(rule, Noise):
        return spent
    return {**spent, **{device: spent.get(device, 0.0) + rule.rho for device in trained(reports)}}


def promise(state: Any) -> CentralNoise | None:
    """What noise of the server promises the devices of a run in this state; None where it adds none."""
    rule = rule_of(state.parameters) if hasattr(state, "spent") else ""
    if not isinstance(rule, Noise):
        return None
    return CentralNoise(max(state.spent.values(), default=0.0), rule.delta)


def _loudness(key: ModelKey, base: Tensors, own: Mapping[DeviceId, Update], noise: Noise) -> str:
    size = sum(array.size for array in base.values() if array.dtype.kind == "f")
    times = noise.multiplier * size**0.5 / sum(update.weight for update in own.values())
    return (
        f"model {key}: {len(own)} devices; the noise in it is {times:.2g} times as long as an update of norm "
        "central_clip"
    )


def _remarks(key: ModelKey, combined: Combined) -> tuple[str, ...]:
    found = []
    if combined.clipped:
        lengths = [f"{device} ({times:.3g} times)" for device, times in combined.clipped.items()]
        found.append(f"model {key}: cut to {BOUND:g} times the usual update: {_some(lengths)}")
    if combined.capped:
        found.append(f"model {key}: weight cut, too many samples for one device: {_some(combined.capped)}")
    return tuple(found)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
