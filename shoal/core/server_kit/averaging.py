"""The next models of a run from a round's reports. All averaging of trained models happens here.

The order of the reports never changes a model: updates are sorted by device id before they are combined, and
all sums are taken in float64, whatever the type of the model's tensors.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from shoal.core.algorithm import Report
from shoal.core.server_kit.noised import Noise, loudness, noised
from shoal.core.server_kit.robust import BOUND, FEW, Combined, Update, combine, longest, norm, reference
from shoal.core.server_kit.standard import trained
from shoal.core.types import DeviceId, ModelKey, Tensors

ALL = ""
"""The key under which a guard stores what concerns all models together."""
NAMED = 5
"""The largest number of devices that a remark names."""
STRIKES, RELEASED = 3, -1
"""A device whose updates were left out in this many rounds in a row is quarantined; see `Guard.strikes`."""
NOWHERE_ELSE: Mapping[DeviceId, Tensors] = MappingProxyType({})


@dataclass(frozen=True)
class Guard:
    """What averaging remembers from round to round: one field of an algorithm's state.

    references: for each model, the norm with which the updates of its last round were compared; see `robust`.
    of_round: for each model, remarks on the updates that were bounded in its last round. of_run: a remark
    that holds for the whole run.
    strikes: for each model, in how many rounds in a row the update of a device was left out. From `STRIKES`
    on, the device is quarantined: its updates do not count in this model until an operator releases it.
    RELEASED stands for a device that an operator has released.
    """

    references: Mapping[ModelKey, float] = field(default_factory=dict)
    of_round: Mapping[ModelKey, tuple[str, ...]] = field(default_factory=dict)
    of_run: str = ""
    strikes: Mapping[ModelKey, Mapping[DeviceId, int]] = field(default_factory=dict)

    @property
    def quarantined(self) -> dict[DeviceId, str]:
        """The devices whose updates do not count, and why."""
        why = f"its updates to {{}} pointed away from those of all others in {STRIKES} rounds in a row"
        return {
            device: why.format(key)
            for key, counts in sorted(self.strikes.items())
            for device, count in sorted(counts.items())
            if count >= STRIKES
        }

    @property
    def remarks(self) -> tuple[str, ...]:
        """What an operator should know. The run's log shows each remark when it is new."""
        of_rounds = [text for _, texts in sorted(self.of_round.items()) for text in texts]
        held = [f"{device} is quarantined: {why}" for device, why in self.quarantined.items()]
        return tuple(filter(None, (self.of_run, *held, *of_rounds)))

    def split(self, key: ModelKey, keys: Iterable[ModelKey]) -> "Guard":
        """The guard after the model `key` was replaced by the models `keys`, which inherit its reference.

        Quarantine ends, since a device that was alone among all devices may have found its cluster.
        """
        before = self.references.get(key, 0.0)
        return Guard(dict.fromkeys(keys, before), {}, self.of_run)

    def moved(self, sources: Mapping[ModelKey, ModelKey]) -> "Guard":
        """The guard after new models continue old ones. sources: for each new key, the old one."""
        found = {key: self.references[old] for key, old in sources.items() if old in self.references}
        return Guard(found, {}, self.of_run)

    def released(self, device: DeviceId) -> "Guard":
        """The guard after an operator has released a device: its updates count, wherever they point."""
        strikes = {
            key: {**counts, device: RELEASED} if device in counts else counts
            for key, counts in self.strikes.items()
        }
        return replace(self, strikes=strikes)

    def among(self, key: ModelKey, test: Callable[[int], bool]) -> set[DeviceId]:
        """The devices whose number of strikes for this model passes a test."""
        return {device for device, count in self.strikes.get(key, {}).items() if test(count)}


def _judged(
    strikes: Mapping[DeviceId, int], took_part: Iterable[DeviceId], left_out: Iterable[DeviceId]
) -> dict[DeviceId, int]:
    """A model's strikes after a round: one more for each update that was left out, none for one that
    counted."""
    kept = {device: count for device, count in strikes.items() if count == RELEASED}
    absent = {device: count for device, count in strikes.items() if device not in set(took_part)}
    return kept | absent | {device: strikes.get(device, 0) + 1 for device in left_out}


def next_models(
    models: Mapping[ModelKey, Tensors],
    reports: Sequence[Report],
    rule: str | Noise,
    guard: Guard,
    share: Callable[[DeviceId, ModelKey], float] = lambda device, key: 1.0,
    origins: Mapping[DeviceId, Tensors] = NOWHERE_ELSE,
) -> tuple[dict[ModelKey, Tensors], Guard]:
    """Each of `models` after this round's reports of training; a model without updates is unchanged.

    rule: see `shoal.core.server_kit.robust`; "mean" is FedAvg, Algorithm 1, and FLUX, Algorithm 1, "weighted
    aggregation". An update's weight is the number of its samples times the device's share in the model, 0 to
    1. If the server adds noise, the weight is the share only, and the shares of a device sum to at most 1.
    origins: the model that a device trained from, if it is not the model that its update now counts in.
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
    """Each of `models` after its own `updates`: for reports that contain several models, for example.

    An update of weight 0 does not count. A model none of whose updates counts is unchanged.
    """
    found = dict(models)
    references, of_round, of_run = dict(guard.references), dict(guard.of_round), guard.of_run
    strikes = dict(guard.strikes)
    for key, base in models.items():
        # Sorted by device id: sums of floating-point numbers depend on the order of their terms.
        own = {device: update for device, update in sorted(updates(key).items()) if update.weight > 0.0}
        if rule != "mean" and not isinstance(rule, Noise):
            quarantined = guard.among(key, lambda count: count >= STRIKES)
            own = {device: update for device, update in own.items() if device not in quarantined}
        if not own:
            continue
        if isinstance(rule, Noise):
            found[key] = noised(base, own, rule)
            of_round[key] = (loudness(key, base, own, rule),)
            continue
        released = guard.among(key, lambda count: count == RELEASED)
        combined = combine(rule, base, own, references.get(key, 0.0), released)
        found[key] = combined.model
        if rule != "mean":
            judged = _judged(strikes.pop(key, {}), own, combined.left_out)
            strikes |= {key: judged} if judged else {}
            references[key], of_round[key] = combined.reference, _remarks(key, len(own), combined)
        if rule == "auto" and len(own) < FEW and not of_run:
            of_run = (
                f"model {key} is trained by fewer than {FEW} devices: a hostile one among them is limited, "
                "but not outvoted"
            )
    return found, Guard(references, of_round, of_run, strikes)


def held_back(
    bases: Mapping[DeviceId, Tensors], reports: Sequence[Report], rule: str, guard: Guard
) -> tuple[set[DeviceId], Guard]:
    """The devices whose trained models should not be mixed into others' models, because their updates are
    more than `BOUND` times as long as usual. Under the rule "mean" there are none.

    bases: the model that each device trained from. This is for algorithms that keep a model for each device:
    there a mixture of other devices' models is made for each device, so no single shared update could be
    clipped.
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
    remark = (
        f"updates longer than {BOUND:g} times the usual one were kept out of others' models: "
        f"{listed(lengths)}"
    )
    of_round = {ALL: (remark,)} if long else {}
    return set(long), replace(guard, references={ALL: usual}, of_round=of_round)


def _remarks(key: ModelKey, updates: int, combined: Combined) -> tuple[str, ...]:
    found = []
    for device, cosine in combined.left_out.items():
        found.append(
            f"model {key}: the update of {device} was left out, because it points away from all others "
            f"(cosine {cosine:.2f})"
        )
    if combined.clipped:
        bound = longest(updates - len(combined.left_out))
        lengths = [f"{device} ({times:.3g} times)" for device, times in combined.clipped.items()]
        found.append(f"model {key}: updates clipped to {bound:g} times the usual length: {listed(lengths)}")
    if combined.capped:
        found.append(
            f"model {key}: weight capped, too many samples for one device: {listed(combined.capped)}"
        )
    return tuple(found)


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
