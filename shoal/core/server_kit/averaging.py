"""The next models of a run from a round's reports: whatever averages trained models does it here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from shoal.core.algorithm import Report
from shoal.core.server_kit.noised import Noise, loudness, noised
from shoal.core.server_kit.robust import BOUND, FEW, Combined, Update, combine, norm, reference
from shoal.core.server_kit.standard import trained
from shoal.core.types import DeviceId, ModelKey, Tensors

ALL = ""
"""The key under which a guard remembers what is of all models together."""
NAMED = 5
"""Devices that a remark names."""
NOWHERE_ELSE: Mapping[DeviceId, Tensors] = MappingProxyType({})


@dataclass(frozen=True)
class Guard:
    """What averaging remembers from round to round: one field of an algorithm's state.

    references: by model, the norm by which its last round's updates were measured; see `robust`.
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

    def moved(self, sources: Mapping[ModelKey, ModelKey]) -> "Guard":
        """Each new model goes on where an old one was. sources: which one, by the new one's key."""
        found = {key: self.references[old] for key, old in sources.items() if old in self.references}
        return Guard(found, {}, self.of_run)


def next_models(
    models: Mapping[ModelKey, Tensors],
    reports: Sequence[Report],
    rule: str | Noise,
    guard: Guard,
    share: Callable[[DeviceId, ModelKey], float] = lambda device, key: 1.0,
    origins: Mapping[DeviceId, Tensors] = NOWHERE_ELSE,
) -> tuple[dict[ModelKey, Tensors], Guard]:
    """Each of `models` after this round's trained reports; one without any keeps what it is.

    rule: see `shoal.core.server_kit.robust`; "mean" is FedAvg, Algorithm 1, and FLUX Algorithm 1, "weighted
    aggregation". An update weighs its number of samples times its share in the model, 0 to 1. With noise of
    the server it weighs its share alone, and a device's shares are 1 together at most.
    origins: what a device trained from, where that is not the model that its update now counts in.
    """
    reported = trained(reports)

    def updates(key: ModelKey) -> dict[DeviceId, Update]:
        return {
            device: Update(
                update.model,
                (1 if isinstance(rule, Noise) else update.examples) * share(device, key),
                origins.get(device),
            )
            for device, update in reported.items()
        }

    return combined_models(models, updates, rule, guard)


def combined_models(
    models: Mapping[ModelKey, Tensors],
    updates: Callable[[ModelKey], Mapping[DeviceId, Update]],
    rule: str | Noise,
    guard: Guard,
) -> tuple[dict[ModelKey, Tensors], Guard]:
    """Each of `models` after its own `updates`: for reports that have several models, say.

    An update of weight 0 does not count, and a model without one that does keeps what it is.
    """
    found = dict(models)
    references, of_round, of_run = dict(guard.references), dict(guard.of_round), guard.of_run
    for key, base in models.items():
        own = {device: update for device, update in sorted(updates(key).items()) if update.weight > 0.0}
        if not own:
            continue
        if isinstance(rule, Noise):
            found[key] = noised(base, own, rule)
            of_round[key] = (loudness(key, base, own, rule),)
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


def held_back(
    bases: Mapping[DeviceId, Tensors], reports: Sequence[Report], rule: str, guard: Guard
) -> tuple[set[DeviceId], Guard]:
    """The devices whose trained models should not be mixed into others', for their updates are more than
    `BOUND` times as long as usual; nobody under the rule "mean".

    bases: what each device trained from. For algorithms that keep every device's model: there a mixture is
    made for each device, of other devices' models, and no single update can be cut that all share.
    """
    updates = trained(reports)
    if rule == "mean":
        return set(), guard
    norms = {device: norm(update.model, bases[device]) for device, update in updates.items()}
    weights = {device: float(update.examples) for device, update in updates.items()}
    before = max(guard.references.values(), default=0.0)
    usual = reference(norms, weights, before)
    long = {device: size / usual for device, size in norms.items() if 0.0 < BOUND * usual < size}
    lengths = [f"{device} ({times:.3g} times)" for device, times in sorted(long.items())]
    remark = f"held back from others, longer than {BOUND:g} times the usual update: {listed(lengths)}"
    of_round = {ALL: (remark,)} if long else {}
    return set(long), Guard({ALL: usual}, of_round, guard.of_run)


def _remarks(key: ModelKey, combined: Combined) -> tuple[str, ...]:
    found = []
    if combined.clipped:
        lengths = [f"{device} ({times:.3g} times)" for device, times in combined.clipped.items()]
        found.append(f"model {key}: cut to {BOUND:g} times the usual update: {listed(lengths)}")
    if combined.capped:
        found.append(f"model {key}: weight cut, too many samples for one device: {listed(combined.capped)}")
    return tuple(found)


def listed(names: Sequence[str]) -> str:
    """The first few of some names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
