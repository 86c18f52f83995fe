"""Attacks by devices of a run that know everything: their task, and what their mates have answered.

An attack replaces an honest answer by a lie. Most lies are about models, others about what a device says of
its data: a descriptor, bounds, losses, histograms, numbers of samples. What the server's admission refuses is
no success: the device then counts as failed in this round.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import fields_of
from shoal.core.types import Tensors

CLAIM = 1 << 40
"""The largest number of samples that a report may claim."""
HUGE = 1e8
LITTLE = 1.5
"""z of Baruch et al., A Little Is Enough, NeurIPS 2019."""

Step = Callable[[Tensors, Tensors, Sequence[Tensors]], Tensors]
"""From the model that the liar was given, its honest model and those of its mates to the one it reports."""


@dataclass(frozen=True)
class Attack:
    """model: what it does to models; None for nothing. statement: what it does to the numbers in a part, such
    as a descriptor; None for nothing. claims: the number of samples that it claims; 0: the true one.
    mislabels: whether it trains on wrong labels. patience: for how many rounds it is honest first.
    """

    meaning: str
    model: Step | None = None
    statement: Callable[[Any], Any] | None = None
    claims: int = 0
    mislabels: bool = False
    patience: int = 0

    def lie(self, task: Message, honest: Message, mates: Sequence[Message]) -> Message:
        """The answer that it gives instead of the honest one."""
        changed: dict[str, Any] = {}
        for name in fields_of(type(honest)):
            value = getattr(honest, name)
            if self.model and _holds_models(value):
                changed[name] = self._models(task, name, value, mates)
            elif self.statement and (is_dataclass(value) or isinstance(value, tuple | float)):
                changed[name] = self.statement(value)
        if self.claims and hasattr(honest, "examples"):
            changed["examples"] = self.claims
        return replace(honest, **changed) if changed else honest  # type: ignore[type-var]

    def _models(self, task: Message, name: str, value: Any, mates: Sequence[Message]) -> Any:
        assert self.model is not None
        bases = [base for each in vars(task).values() if _holds_models(each) for base in _several(each)]
        others = [_several(getattr(each, name)) for each in mates if hasattr(each, name)]
        found = []
        for index, model in enumerate(_several(value)):
            base = bases[index] if index < len(bases) else model
            found.append(self.model(base, model, [each[index] for each in others if index < len(each)]))
        return tuple(found) if isinstance(value, tuple) else found[0]


def _holds_models(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, tuple) and isinstance((value or (0,))[0], Mapping)
    )


def _several(value: Any) -> tuple[Tensors, ...]:
    return value if isinstance(value, tuple) else (value,)


# -- lies about models --------------------------------------------------------------------------------------


def _floats(base: Tensors, model: Tensors, step: Callable[[str], Any]) -> Tensors:
    """The base plus a step in each tensor of floats; other tensors as reported."""
    return {
        name: (array + step(name)).astype(array.dtype) if array.dtype.kind == "f" else model[name]
        for name, array in base.items()
    }


def _times(factor: float) -> Step:
    return lambda base, model, mates: _floats(base, model, lambda name: factor * (model[name] - base[name]))


def _noise(times: float) -> Step:
    """A random direction, `times` as long as the honest update."""

    def lie(base: Tensors, model: Tensors, mates: Sequence[Tensors]) -> Tensors:
        chance = np.random.default_rng(9)

        def step(name: str) -> Any:
            size = np.sqrt(np.mean((model[name].astype(float) - base[name]) ** 2))
            return times * size * chance.normal(size=base[name].shape)

        return _floats(base, model, step)

    return lie


def _of_mates(model: Tensors, base: Tensors, mates: Sequence[Tensors], name: str) -> Any:
    return np.stack([each[name] - base[name] for each in (mates or [model])])


def _little(base: Tensors, model: Tensors, mates: Sequence[Tensors]) -> Tensors:
    """As far from the mates' mean as they are from each other, but in all coordinates at once."""

    def step(name: str) -> Any:
        steps = _of_mates(model, base, mates, name)
        return steps.mean(axis=0) - LITTLE * steps.std(axis=0)

    return _floats(base, model, step)


def _opposite(base: Tensors, model: Tensors, mates: Sequence[Tensors]) -> Tensors:
    return _floats(base, model, lambda name: -_of_mates(model, base, mates, name).mean(axis=0))


def _tuned(base: Tensors, model: Tensors, mates: Sequence[Tensors]) -> Tensors:
    """What hurts most under the rule: as far aside of the mates as they may be without moving back, with all
    medians moved, and a little back."""

    def step(name: str) -> Any:
        steps = _of_mates(model, base, mates, name)
        mean, spread = steps.mean(axis=0), steps.std(axis=0)
        aside = -np.sign(mean) * spread
        square = max(float((mean * mean).sum()), 1e-30)
        level = aside - float((aside * mean).sum()) / square * mean
        back = 0.15 * float(np.linalg.norm(level)) / square**0.5
        return 3.0 * (level - back * mean)

    return _floats(base, model, step)


# -- lies about groups --------------------------------------------------------------------------------------


def _middle(base: Tensors, model: Tensors, mates: Sequence[Tensors]) -> Tensors:
    """The mean has little of each mate's chance in it, so it is more like each of them than they are."""

    def step(name: str) -> Any:
        steps = _of_mates(model, base, mates, name)
        mean = steps.mean(axis=0)
        return mean * np.linalg.norm(steps[0]) / max(float(np.linalg.norm(mean)), 1e-30)

    return _floats(base, model, step)


def _copied(base: Tensors, model: Tensors, mates: Sequence[Tensors]) -> Tensors:
    return mates[0] if mates else model


# -- lies about data ----------------------------------------------------------------------------------------


def _numbers(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same part with its arrays and tuples of numbers changed; as it was where no such part exists."""

    def of(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return change(value.astype(float)).astype(value.dtype)
        if isinstance(value, tuple) and value and all(isinstance(each, float) for each in value):
            return tuple(change(np.array(value)).tolist())
        if not is_dataclass(value) or isinstance(value, type):
            return value
        changed = {each.name: of(getattr(value, each.name)) for each in fields(value) if each.init}
        try:
            return replace(value, **changed)
        except Exception:  # there is no such part: the lie cannot even be written down
            return value

    return of


def _huge(values: Any) -> Any:
    return -HUGE * values


def _shuffled(values: Any) -> Any:
    """The same numbers elsewhere: each is plausible, and together they are of no data."""
    return np.random.default_rng(3).permutation(values.reshape(-1)).reshape(values.shape)


ATTACKS: Mapping[str, Attack] = {
    "reversed": Attack("its update, reversed", _times(-1.0)),
    "reversed x10": Attack("ten times its update, reversed, for 2^40 samples", _times(-10.0), claims=CLAIM),
    "opposite": Attack("what its mates have learned, reversed", _opposite),
    "tuned": Attack("aside of its mates, and back no farther than the rule bears", _tuned),
    "stretched": Attack("a hundred times its update", _times(100.0)),
    "noise": Attack("a random direction, three times as long as its update", _noise(3.0)),
    "a little": Attack("as far from its mates' mean as they are, in all coordinates", _little),
    "wrong labels": Attack("a model of wrong labels, for 2^40 samples", claims=CLAIM, mislabels=True),
    "turncoat": Attack("like reversed x10, after three honest rounds", _times(-10.0), patience=3),
    "extreme": Attack("all that it says of its data, times 10^8", statement=_numbers(_huge)),
    "shuffled": Attack(
        "what it says of its data, shuffled; its update, reversed", _times(-1.0), _numbers(_shuffled)
    ),
}
HIDING: Mapping[str, Attack] = {
    "middle": Attack("what its mates have learned, as far as one of them", _middle),
    "copied": Attack("the update of its first mate", _copied),
    "of its own": Attack("a random direction, the same for all liars, as long as its update", _noise(1.0)),
}
"""Lies that hide groups which updates tell, or split them, and hurt no mean."""
