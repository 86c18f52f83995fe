"""Results in words, as `print` shows them."""

import pytest

from shoal.result import Placement


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Placement("c0", 1.0), "c0, confidence 1.00"),
        (Placement("c1", 0.96, "chosen by its samples", "c1"), "c1, confidence 0.96: chosen by its samples"),
        (
            Placement("c1", 0.6, "several fit", "c1", mixture={"c1": 0.75, "c2": 0.25}),
            "c1, confidence 0.60, predicts with 75% c1, 25% c2: several fit",
        ),
        (
            Placement(None, 0.0, "the data are far from all", "c0"),
            "no cluster fits: the data are far from all",
        ),
    ],
)
def test_a_placement_is_a_sentence(found: Placement, said: str) -> None:
    assert str(found) == said
    assert found.abstained is (found.cluster is None)
