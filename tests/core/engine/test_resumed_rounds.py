"""A round that was open when the server was restarted, event by event."""

from collections.abc import Sequence

from shoal.core.engine.events import Joined, Offer, Reduce, Reported, Tick
from shoal.core.engine.round.attendance import Memory
from shoal.core.engine.rounds import RoundEngine, RoundPolicy, Waiting
from tests.core import counting
from tests.core.engine.test_rounds import feed, kinds


def resumed(*devices: str, stored: Sequence[str]) -> RoundEngine:
    """A round that the server restarted in, of which an earlier round has shown that a task takes 1 s."""
    state, memory = counting.start(counting.model(), 2), Memory(devices, {}, {"train": 1.0})
    return RoundEngine(
        counting, RoundPolicy(), 7, state, round=4, asked=devices, reported=stored, memory=memory
    )


def test_a_restored_round_asks_the_same_devices_and_counts_what_was_stored() -> None:
    state = counting.start(counting.model(), 2)
    machine = RoundEngine(
        counting, RoundPolicy(minimum=3), 7, state, round=4, asked=("d0", "d1", "d2"), reported=("d1",)
    )
    effects = feed(machine, Joined("d9"), Tick(0.0), Joined("d0"), Joined("d1"), Joined("d2"))
    assert [(e.device, e.round) for e in effects if isinstance(e, Offer)] == [("d0", 4), ("d2", 4)]
    assert "Opened" not in kinds(effects)
    assert feed(machine, Reported("d0", 4, 1), Reported("d2", 4, 1)) == [Reduce(4, ("d0", "d1", "d2"))]


def test_a_restored_round_that_was_full_is_reduced_on_the_first_tick() -> None:
    state = counting.start(counting.model(), 2)
    machine = RoundEngine(
        counting, RoundPolicy(), 7, state, round=2, asked=("d0", "d1"), reported=("d0", "d1")
    )
    assert feed(machine, Tick(0.0)) == [Reduce(2, ("d0", "d1"))]


def test_after_a_restart_devices_have_the_time_to_return_however_quick_the_others_were() -> None:
    machine = resumed("d0", "d1", "d2", stored=["d0"])
    feed(machine, Joined("d1"), Tick(0.0))
    assert feed(machine, Reported("d1", 4, 1), Tick(10.0), Tick(44.0)) == []
    assert machine.waiting() == Waiting("2 of 3 reports are in", ("d2",), 16.0)
    assert kinds(feed(machine, Joined("d2"))) == ["Offer"]
    assert feed(machine, Tick(53.9)) == []
    assert feed(machine, Reported("d2", 4, 1)) == [Reduce(4, ("d0", "d1", "d2"))]


def test_a_device_that_is_back_after_a_restart_has_the_time_that_the_others_needed() -> None:
    machine = resumed("d0", "d1", "d2", stored=["d0", "d1"])
    feed(machine, Tick(0.0), Tick(44.0), Joined("d2"))
    assert feed(machine, Tick(53.9)) == []
    assert kinds(feed(machine, Tick(54.0))) == ["Withdraw", "Reduce"]


def test_a_device_that_does_not_return_after_a_restart_is_not_waited_for_any_longer() -> None:
    machine = resumed("d0", "d1", "d2", stored=["d0", "d1"])
    assert feed(machine, Tick(0.0), Tick(59.9)) == []
    assert feed(machine, Tick(60.0)) == [Reduce(4, ("d0", "d1"))]
