"""docs/algorithms.md names every algorithm, and is right on what it says of all."""

from dataclasses import fields
from pathlib import Path

import pytest

from shoal.core.algorithm import Algorithm, discover

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
ALGORITHMS = discover()
named = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS.keys())


@named
def test_every_algorithm_and_variant_is_there(algorithm: Algorithm) -> None:
    for name in (algorithm.name, *algorithm.variants):
        if name != "fedrc-adam":  # a way to average, of which its own page speaks
            assert f"`{name}`" in PAGE


@named
def test_who_cannot_do_dp_sgd_is_said(algorithm: Algorithm) -> None:
    sentence = PAGE[PAGE.index("DP-SGD (") :].split("\n\n")[0]
    can = "dp_epsilon" in {item.name for item in fields(algorithm.parameters)}
    assert can != (f"`{algorithm.name}`" in sentence)
