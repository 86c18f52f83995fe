"""What every algorithm must bear: one device, one sample, classes that none has, more clusters than devices.

It goes to the end with models that are numbers, or it refuses and says what would work; it never breaks.
"""

from collections.abc import Iterator

import pytest

from shoal.checks import Subject
from shoal.checks.odd_fleets import ODD_FLEETS, odd_fleet
from shoal.core.algorithm import discover
from shoal.simulation.simulated import on_threads

ALGORITHMS = discover()
HELD_OUT = "the held_out part of the data is empty"
REFUSED = {
    ("feroma", "one sample in all"): HELD_OUT,
    ("feroma", "one sample beside two classes"): HELD_OUT,
    ("flux", "one sample in all"): HELD_OUT,
    ("flux", "one sample beside two classes"): HELD_OUT,
}
"""Where devices cannot do what is asked of them, and why: a descriptor takes samples."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with on_threads(1):
        yield


@pytest.mark.parametrize("fleet", ODD_FLEETS)
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_run_of_an_odd_fleet_ends_with_sane_models_that_each_device_can_measure(
    name: str, fleet: str
) -> None:
    reason = odd_fleet(Subject(ALGORITHMS[name]), fleet)
    if (name, fleet) in REFUSED:
        assert REFUSED[name, fleet] in reason
    else:
        assert not reason
