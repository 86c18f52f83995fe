"""Fleets of one data set."""

import pytest

from shoal.core.errors import ConfigError
from shoal_lab import datasets, fleets


def test_shifts_make_fleets_of_one_data_set_or_of_a_pair() -> None:
    train, test = datasets.digits()
    fleet = fleets.px((train, test), level=5, devices=4)
    assert (len(fleet), fleet.shape, fleet.classes) == (4, (3, 8, 8), 10)
    assert len(fleets.py(train, level=3, devices=4)) == 4
    assert fleets.quantity((train, test), "labels", level=0, devices=4).concepts == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="level 9 is unknown"):
        fleets.px(train, level=9)
    with pytest.raises(ConfigError, match="a shift is given a ndarray"):
        fleets.px(train.x)
