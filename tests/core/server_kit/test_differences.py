"""What separates clusters, by what their devices have released."""

from collections.abc import Callable

import numpy as np
import pytest

from shoal.core.exchange.parts import Descriptor, PrivacySettings
from shoal.core.inference.describing import moments_of
from shoal.core.privacy.release import release, release_sums
from shoal.core.privacy.sums import sums_of
from shoal.core.privacy.terms import terms
from shoal.core.server_kit.fleet.differences import (
    INPUTS,
    LABELS,
    MAX_CLUSTERS,
    NAMES,
    SOME_INPUTS,
    UNKNOWN,
    Difference,
    differences,
    in_words,
    what_separates,
)
from tests.core.server_kit.described import BALANCED, CLASSES, DIMS, device, private

HOMES = {f"d{number}": f"c{number % 2}" for number in range(6)}


def of_classes(seed: int, moved: float = 0.0, turn: int = 0, samples: int = 200) -> Descriptor:
    """A device of which only the samples of class 0 are moved, or whose classes have other names."""
    chance = np.random.default_rng(seed)
    labels = chance.integers(0, CLASSES, samples)
    latents = labels[:, None] * 2.0 + chance.normal(size=(samples, DIMS)) + moved * (labels == 0)[:, None]
    moments = moments_of(latents, (labels + turn) % CLASSES, CLASSES)
    return release(moments, PrivacySettings(), "0" * 64, chance)


def kinds(made: Callable[[int, bool], Descriptor]) -> list[Difference]:
    """made: from a seed and whether it is of the second cluster."""
    return differences({name: made(int(name[1:]), home == "c1") for name, home in HOMES.items()}, HOMES)


@pytest.mark.parametrize(
    ("kind", "strength", "made"),
    [
        (INPUTS, 1.0, lambda seed, second: device(seed, 1.0 * second)),
        (LABELS, 0.4, lambda seed, second: device(seed, mix=(9, 1, 9, 1) if second else (1, 9, 9, 1))),
        (LABELS, 0.5, lambda seed, second: device(seed, mix=(0, 0, 1, 1) if second else (1, 1, 0, 0))),
        (NAMES, 1.0, lambda seed, second: of_classes(seed, turn=int(second))),
        (SOME_INPUTS, 1.2, lambda seed, second: of_classes(seed, moved=1.2 * second)),
        (UNKNOWN, 0.0, lambda seed, second: device(seed)),
        (UNKNOWN, 0.0, lambda seed, second: device(seed, 0.2 * second)),
    ],
)
def test_each_kind_of_difference_is_named(
    kind: str, strength: float, made: Callable[[int, bool], Descriptor]
) -> None:
    (found,) = kinds(made)
    assert (found.first, found.second, found.kind) == ("c0", "c1", kind)
    if kind != LABELS:
        assert found.strength == pytest.approx(strength, abs=0.25)
    else:
        assert found.strength >= strength - 0.1


def test_names_are_told_apart_from_samples_under_noise_and_what_noise_hides_is_not_guessed() -> None:
    homes = {f"d{number}": f"c{number % 2}" for number in range(8)}

    def found(samples: int, shift: float = 0.0, turn: int = 0) -> str:
        described = {
            name: private(int(name[1:]), shift * (home == "c1"), samples, turn=turn * (home == "c1"))
            for name, home in homes.items()
        }
        return differences(described, homes)[0].kind

    assert found(4000, shift=0.2) == INPUTS
    assert found(4000, turn=1) == NAMES
    for few in (70, 150, 300, 600, 1200):
        assert found(few) == UNKNOWN
        assert found(few, shift=0.2) in (UNKNOWN, INPUTS)
        assert found(few, turn=1) in (UNKNOWN, NAMES)


def test_exchanged_names_are_seen_beside_classes_that_look_alike() -> None:
    """Two classes lie in one place, so that nothing tells which of them is which."""
    places, names = np.array([0.0, 0.8, 3.0, 3.0]), np.array([1, 0, 2, 3])

    def described(seed: int, second: bool) -> Descriptor:
        chance = np.random.default_rng(seed)
        labels = chance.integers(0, CLASSES, 400)
        latents = places[labels][:, None] + chance.normal(size=(400, DIMS))
        moments = moments_of(latents, names[labels] if second else labels, CLASSES)
        return release(moments, PrivacySettings(), "0" * 64, chance)

    for first in range(0, 200, 10):
        (found,) = kinds(lambda seed, second, first=first: described(first + seed, second))  # type: ignore[misc]
        assert (found.kind, found.strength) == (NAMES, 0.5)


def test_a_pair_in_doubt_is_named_only_as_the_sure_ones_are() -> None:
    """c1 is where c0 is but for two classes; its others are nearly there. c2 and c3 are elsewhere."""
    moved = np.array([1.5, 1.5, 0.3, 0.3])[:CLASSES]
    places = {"c0": 0.0 * moved, "c1": moved, "c2": 9.0 + 0.0 * moved, "c3": 18.0 + 0.0 * moved}

    def described(number: int, home: str) -> Descriptor:
        chance = np.random.default_rng(number)
        labels = chance.integers(0, CLASSES, 2000)
        latents = (2.0 * labels + places[home][labels])[:, None] + chance.normal(size=(2000, DIMS))
        return release(moments_of(latents, labels, CLASSES), PrivacySettings(), "0" * 64, chance)

    def named(*homes: str) -> str:
        assigned = {f"d{number}": home for number, home in enumerate(homes)}
        made = {name: described(number, home) for number, (name, home) in enumerate(assigned.items())}
        return differences(made, assigned)[0].kind

    assert named("c0", "c1") == SOME_INPUTS
    assert named("c0", "c1", "c2", "c3") == UNKNOWN


def test_noise_leaves_a_single_pair_in_doubt_without_a_name() -> None:
    """The first two classes are elsewhere, and the others nearly where they were, or exactly there."""
    homes = {f"d{number}": f"c{number % 2}" for number in range(8)}

    def named(nearly: float) -> str:
        def described(number: int, second: bool) -> Descriptor:
            chance = np.random.default_rng(number)
            labels = chance.integers(0, CLASSES, 8000)
            places = 0.15 * labels + 0.1 * second * np.array([1.5, 1.5, nearly, nearly])[labels] - 0.3
            latents = places[:, None] + 0.1 * chance.normal(size=(8000, DIMS))
            agreed = terms(BALANCED, 8000, CLASSES)
            exact = sums_of([(latents, labels)], 1.5, DIMS, agreed.classes)
            return release_sums(exact, BALANCED, agreed, "0" * 64, chance.bytes)

        made = {name: described(int(name[1:]), home == "c1") for name, home in homes.items()}
        return differences(made, homes)[0].kind

    assert named(0.0) == SOME_INPUTS
    assert named(0.4) == UNKNOWN


def test_names_that_half_of_a_noisy_cluster_has_exchanged_are_not_taken_for_moved_samples() -> None:
    """Noise has joined devices of two groups, so that classes have moved to where no class lies. All samples
    together lie where they did."""
    homes = {f"d{number}": f"c{number % 2}" for number in range(8)}
    exchanged = np.array([1, 0, 3, 2, 4, 5, 6, 7, 8, 9])

    def described(number: int, moved: bool) -> Descriptor:
        chance = np.random.default_rng(number)
        labels = chance.integers(0, len(exchanged), 4000)
        places = np.random.default_rng(0).normal(size=(len(exchanged), DIMS)) * 0.2
        places[:3] += 0.3 * (moved and number % 2)
        latents = places[labels] + 0.1 * chance.normal(size=(4000, DIMS))
        agreed = terms(BALANCED, 4000, len(exchanged))
        named = labels if moved or number not in (1, 3) else exchanged[labels]
        exact = sums_of([(latents, named)], 1.5, DIMS, agreed.classes)
        return release_sums(exact, BALANCED, agreed, "0" * 64, chance.bytes)

    for moved, kind in ((False, UNKNOWN), (True, SOME_INPUTS)):
        (found,) = differences({name: described(int(name[1:]), moved) for name in homes}, homes)
        assert found.kind == kind


def test_a_class_whose_mean_noise_hides_is_not_taken_for_a_class_without_samples() -> None:
    """A count of about 25, with noise of 4.5, is at the limit from which a class is described."""
    homes = {"d0": "c0", "d1": "c1"}
    for first in range(0, 60, 2):
        described = {name: private(first + int(name[1:]), samples=100) for name in homes}
        assert differences(described, homes)[0].kind == UNKNOWN


def test_chance_names_no_difference() -> None:
    for seed in range(60):
        (found,) = kinds(lambda number, _, seed=seed: device(100 * seed + number, samples=25))  # type: ignore[misc]
        assert found.kind == UNKNOWN


def test_only_the_largest_clusters_are_compared_and_the_order_of_devices_changes_nothing() -> None:
    count = MAX_CLUSTERS + 4
    homes = {f"d{number:02}": f"c{number}" for number in range(count)} | {"extra": f"c{count - 1}"}
    described = {name: device(number, float(number)) for number, name in enumerate(homes)}
    found = differences(described, homes)
    assert len(found) == MAX_CLUSTERS * (MAX_CLUSTERS - 1) // 2
    assert any(f"c{count - 1}" in (each.first, each.second) for each in found)
    assert differences(dict(reversed(described.items())), homes) == found


def test_it_is_said_in_words() -> None:
    assert what_separates({}, HOMES) == ""
    assert what_separates({"d0": device(0)}, {"d0": "c0"}) == ""
    assert "P(X)" in what_separates(
        {name: device(int(name[1:]), 1.5 * (home == "c1")) for name, home in HOMES.items()}, HOMES
    )
    mixed = [Difference("c0", "c1", NAMES), Difference("c0", "c2", INPUTS), Difference("c1", "c2", UNKNOWN)]
    some, most = [*mixed, Difference("c2", "c3", INPUTS)], [Difference("c2", "c3", INPUTS)] * 4
    assert in_words(some).startswith("2 of 4 pairs of clusters differ in what their samples look like, P(X);")
    assert in_words(some).endswith("1 in P(Y|X), in 1 it does not show")
    assert in_words([*mixed, *most]) == "the clusters differ mostly in what their samples look like, P(X)"
    assert "does not tell in what way" in in_words(mixed[2:])
