"""Short slices of the campaigns of this folder; the programs play them in full."""

import pytest

from shoal.core.engine.round.attendance import Memory
from tests.fleets import restarts, stalls
from tests.fleets.virtual import VirtualFleet


@pytest.mark.parametrize(("algorithm", "every"), [("fedavg", 40), ("flux", 80)])
@pytest.mark.parametrize("lost", [0, restarts.FLEET // 3])
def test_a_restart_changes_no_cluster_and_no_round_goes_on_with_a_few(
    algorithm: str, every: int, lost: int
) -> None:
    count, wrong, least, _ = restarts.campaign(algorithm, seed=3, every=every, lost=lost)
    assert count >= 4
    assert not wrong
    assert least >= 0.5


@pytest.mark.parametrize(("algorithm", "every"), [("fedavg", 20), ("flux", 60)])
def test_a_server_that_forgets_its_devices_is_found_out(
    algorithm: str, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = VirtualFleet._start

    def forgetful(fleet: VirtualFleet) -> None:
        fleet._memory = Memory()
        start(fleet)

    monkeypatch.setattr(VirtualFleet, "_start", forgetful)
    _, wrong, least, _ = restarts.campaign(algorithm, seed=0, every=every, lost=0)
    assert wrong
    assert least < 0.5


@pytest.mark.parametrize("devices", [10, 100])
def test_devices_that_stall_make_a_run_at_most_half_as_long_again(devices: int) -> None:
    policy = stalls.policies(devices)["default"]
    quiet, found = (stalls.ran(devices, share, 30, policy, seed=5) for share in (0.0, 0.3))
    assert not found.failed
    assert found.closed == 1.0
    assert found.reported == 0.7 * devices
    assert found.took <= 1.5 * quiet.took


def test_without_a_straggler_factor_each_of_these_rounds_lasts_until_its_deadline() -> None:
    """The fleet above can be slow: what the test before measures does not hold by itself."""
    policy = stalls.RoundPolicy(straggler_factor=0.0)
    found = stalls.ran(10, 0.3, 6, policy, seed=5)
    assert found.took >= 3 * policy.deadline


def test_a_fleet_in_virtual_time_does_the_same_every_time() -> None:
    policy = stalls.policies(20)["half"]
    first, second = (stalls.ran(20, 0.3, 8, policy, seed=1) for _ in range(2))
    assert (first.took, first.reported) == (second.took, second.reported)
