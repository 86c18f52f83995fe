"""Every algorithm and each of its variants bears liars, two of ten; and one of sixty, where one model, groups
by descriptions or groups by losses are averaged. `shoal.check` tries both shares of any algorithm."""

import pytest

from shoal.checks import Subject, liars
from shoal.core.algorithm import discover

SUBJECTS = {
    name: Subject(card, name if name in card.variants else "")
    for card in discover().values()
    for name in (card.name, *card.variants)
}


@pytest.mark.parametrize("name", sorted(SUBJECTS))
def test_two_liars_of_ten_take_no_accuracy_of_the_others(name: str) -> None:
    liars.bears(SUBJECTS[name], "two of ten")


@pytest.mark.parametrize("name", ["fedavg", "flux", "ifca"])
def test_one_liar_of_sixty_takes_no_accuracy_of_the_others(name: str) -> None:
    liars.bears(SUBJECTS[name], "one of sixty")
