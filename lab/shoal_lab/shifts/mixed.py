"""Two shifts at once: P(Y) together with P(X), P(X|Y) or P(Y|X), both at the same level.

Each device first sees its samples as under `px`, turns some of them as under `pxy`, or renames some of them
as under `pyx`; and then keeps some classes as under `py`, by the names that it gives them. Devices are of
one `concept` where both agree. The streams are those of the two shifts, each as if it were alone. FLUX does
not say how ANDA combined them; but in its Table 58 all newcomers get the right one of the true clusters
without labels, as they only can where devices that name classes differently have images of different
classes.

Source: FLUX, Tables 56 to 58.
"""

from collections.abc import Callable, Hashable

from shoal.core.data.dataset import Dataset
from shoal_lab.shifts import concept_feature, concept_label, feature, label
from shoal_lab.shifts.base import DeviceData, class_count, first_seen

Look = tuple[Hashable, Callable[[Dataset], Dataset]]
"""What a device does to its samples, and what tells it apart from others."""


def make(other: str, level: int, clients: int, seed: int, train: Dataset, test: Dataset) -> list[DeviceData]:
    """other: px, pxy or pyx. See `shoal_lab.shifts.make`."""
    looks = _LOOKS[other](level, clients, seed, class_count(train, test, needed=level))
    dealt = label.make(level, clients, seed, train, test, [look for _, look in looks])
    concepts = first_seen([(one.concept, key) for one, (key, _) in zip(dealt, looks, strict=True)])
    return [DeviceData(one.train, one.test, concept) for one, concept in zip(dealt, concepts, strict=True)]


def _patterns(level: int, clients: int, seed: int, classes: int) -> list[Look]:
    bank = feature.patterns(level)
    return [
        (number, lambda data, number=number: feature.seen(data, *bank[number]))  # type: ignore[misc]
        for number in feature.drawn(level, clients, seed)
    ]


def _angles(level: int, clients: int, seed: int, classes: int) -> list[Look]:
    return [
        (tuple(own.tolist()), lambda data, own=own: concept_feature.turned(data, own))  # type: ignore[misc]
        for own in concept_feature.angles(level, clients, seed, classes)
    ]


def _names(level: int, clients: int, seed: int, classes: int) -> list[Look]:
    return [
        (tuple(own.tolist()), lambda data, own=own: concept_label.renamed(data, own))  # type: ignore[misc]
        for own in concept_label.renamings(level, clients, seed, classes)
    ]


_LOOKS: dict[str, Callable[[int, int, int, int], list[Look]]] = {
    "px": _patterns,
    "pxy": _angles,
    "pyx": _names,
}
