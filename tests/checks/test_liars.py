"""Every algorithm bears liars, two of ten and one of sixty, and its variants bear the larger share."""

import pytest

from shoal.checks import Subject, liars
from shoal.core.algorithm import discover

ALGORITHMS = discover()
VARIANTS = {name: card for card in ALGORITHMS.values() for name in card.variants}


@pytest.mark.parametrize("fleet", liars.FLEETS)
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_liars_take_no_accuracy_of_the_others(name: str, fleet: str) -> None:
    liars.bears(Subject(ALGORITHMS[name]), fleet)


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_two_liars_of_ten_take_no_accuracy_of_the_others_in_a_variant(name: str) -> None:
    """The smaller share of `test_liars_take_no_accuracy_of_the_others` takes longer."""
    liars.bears(Subject(VARIANTS[name], name), "two of ten")
