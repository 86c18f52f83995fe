"""The list of mutants fits the product, and one of them is tried; `make mutants` tries all."""

import pytest

from tests.mutants.__main__ import ROOT, tried
from tests.mutants.listed import MUTANTS, Mutant


def test_every_mutant_changes_one_place_and_names_tests_that_exist() -> None:
    assert len(MUTANTS) >= 30
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert (ROOT / mutant.path).read_text().count(mutant.old) == 1, mutant.name
        assert mutant.old != mutant.new
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert (ROOT / file).exists(), mutant.name
            assert not name or f"def {name}(" in (ROOT / file).read_text(), mutant.name


@pytest.mark.timeout(120)
def test_a_mutant_is_killed_and_a_change_that_breaks_nothing_survives() -> None:
    (broken,) = [each for each in MUTANTS if each.name == "rounds are abandoned without a pause"]
    assert tried(broken).by.startswith("tests/scenarios/test_scenarios.py::")
    harmless = Mutant("a comment", broken.path, broken.old, f"{broken.old}  # harmless", broken.tests)
    assert not tried(harmless).killed
