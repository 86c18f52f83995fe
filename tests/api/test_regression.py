"""Regression from Python: devices whose numbers depend on x in two ways, and newcomers."""

import numpy as np
import pytest
import torch

import shoal
from shoal.core.errors import DataFault


def site(kind: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two kinds of sites: their x lie apart, and their slopes are opposite."""
    chance = np.random.default_rng(seed)
    x = chance.normal(size=(120, 3))
    y = (x[:, 1] + x[:, 2]) * (1.0 if kind else -1.0) + chance.normal(scale=0.1, size=120)
    x[:, 0] += 2.0 if kind else -2.0
    return x, y


class Net(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


def test_groups_are_found_without_classes_and_beat_local_means() -> None:
    fleet = shoal.Fleet({f"site-{n}": site(n % 2, n) for n in range(6)}, regression=True)
    assert fleet.classes == 1
    settings = {"model": Net, "latent": "0", "rounds": 12, "learning_rate": 0.02, "batch_size": 16}
    result = shoal.simulate("flux", fleet, **settings)
    groups = [{result.clusters[f"site-{n}"] for n in range(6) if n % 2 == kind} for kind in (0, 1)]
    assert all(len(each) == 1 for each in groups)
    assert groups[0] != groups[1]
    assert result.accuracy.mean > 0.9
    assert ", variance explained 9" in result.summary()
    compared = shoal.Comparison({"flux": result})
    for shown in (result._repr_html_(), compared._repr_html_(), repr(compared)):
        assert "variance explained" in shown
        assert "accuracy" not in shown
    x, _ = site(1, 99)
    assert result.place(x).cluster in groups[1]


def test_groups_whose_numbers_alone_differ_are_found_with_nothing_set() -> None:
    def site(number: int) -> tuple[np.ndarray, np.ndarray]:
        chance = np.random.default_rng(number)
        x = chance.normal(size=(120, 3))
        y = (x[:, 1] + x[:, 2]) * (1.0 if number % 2 else -1.0) + chance.normal(scale=0.1, size=120)
        return x, 500.0 * y

    fleet = shoal.Fleet({f"site-{number}": site(number) for number in range(6)}, regression=True)
    result = shoal.simulate("flux", fleet)
    groups = [{result.clusters[f"site-{n}"] for n in range(6) if n % 2 == kind} for kind in (0, 1)]
    assert [len(each) for each in groups] == [1, 1]
    assert groups[0] != groups[1]
    assert result.accuracy.worst > 0.8


def test_the_default_network_has_one_output_and_words_are_refused() -> None:
    fleet = shoal.Fleet({f"site-{n}": site(0, n) for n in range(2)}, regression=True)
    assert shoal.simulate("fedavg", fleet, rounds=1).models["global"]
    with pytest.raises(DataFault, match="the labels are text, not numbers"):
        shoal.Fleet({"a": (np.zeros((3, 2)), np.array(["x", "y", "z"]))}, regression=True)
    with pytest.raises(DataFault, match="the label of row 1"):
        shoal.Fleet({"a": (np.zeros((3, 2)), np.array([0.0, np.nan, 1.0]))}, regression=True)
    with pytest.raises(DataFault, match=r"y has shape \(3, 2\) .give one number to predict for each sample"):
        shoal.Fleet({"a": (np.zeros((3, 2)), np.zeros((3, 2)))}, regression=True)
