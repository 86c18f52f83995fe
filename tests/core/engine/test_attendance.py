"""Which devices a run counts on."""

from shoal.core.engine.checkpoint import decode, encode
from shoal.core.engine.round.attendance import LONGEST_PAUSE, Attendance, Memory, period


def test_pauses_begin_after_two_misses_grow_and_are_bounded() -> None:
    assert [period(misses) for misses in range(8)] == [1, 1, 4, 8, 16, 32, 32, 32]
    assert period(10_000) == LONGEST_PAUSE


def test_a_device_that_always_stalls_is_asked_in_ever_fewer_rounds() -> None:
    attendance, asked = Attendance(Memory()), []
    for number in range(1, 130):
        if "d" in attendance.ready(["a", "d"], number, 1):
            asked.append(number)
            attendance.missed("d", number)
    assert asked == [1, 2, 4, 8, 16, 32, 64, 96, 128]


def test_the_pause_that_is_announced_is_the_one_that_is_made() -> None:
    attendance = Attendance(Memory(misses={"d": 1}))
    assert attendance.missed("d", 5) == "; it has missed 2 tasks in a row and pauses for up to 2 rounds"
    assert [n for n in range(6, 13) if attendance.ready(["d"], n, 0)] == [8, 12]


def test_one_answer_ends_a_pause() -> None:
    attendance = Attendance(Memory(misses={"d": 9}))
    assert attendance.ready(["d"], 5, 0) == []
    attendance.answered("d")
    assert attendance.ready(["d"], 5, 0) == ["d"]
    assert attendance.memory({}).misses == {}


def test_a_round_with_too_few_others_asks_those_that_missed_the_fewest() -> None:
    attendance = Attendance(Memory(misses={"a": 5, "b": 2, "c": 3}))
    present = ["a", "b", "c", "d"]
    assert attendance.ready(present, 5, 1) == ["d"]
    assert attendance.ready(present, 5, 2) == ["b", "d"]
    assert attendance.ready(present, 5, 3) == ["b", "c", "d"]
    assert attendance.ready(present, 5, 9) == present


def test_after_a_restart_a_run_waits_for_its_devices_but_not_for_those_that_pause_or_said_goodbye() -> None:
    attendance = Attendance(Memory(("a", "b", "c"), {"c": 2}), asked=("d",))
    assert attendance.returning == {"a", "b", "d"}
    attendance.joined("a")
    attendance.said_goodbye("b")
    assert (attendance.fleet, attendance.returning) == ({"a", "d"}, {"d"})
    attendance.ended(["a", "e"])
    assert attendance.memory({}).fleet == ("a", "d", "e")  # d may still return


def test_what_a_run_remembers_can_be_stored() -> None:
    def no_tensors(tensors: object) -> object:
        raise AssertionError(tensors)

    memory = Memory(("a",), {"b": 3}, {"train": 1 / 3})
    assert decode(Memory, encode(Memory, memory, no_tensors), no_tensors) == memory  # type: ignore[arg-type]
