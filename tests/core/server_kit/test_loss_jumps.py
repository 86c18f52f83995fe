"""Data that move make both losses jump; a model that overfits, or a liar, does not."""

import pytest

from shoal.core.exchange.messages import HeldOut, Trained
from shoal.core.server_kit.clustering.loss_jumps import Moving


def heard(*rounds: dict[str, tuple[float, float]]) -> Moving:
    """After these rounds. Each device's loss of its training, and its held-out one."""
    moving = Moving()
    for devices in rounds:
        moving = moving.heard(
            {
                device: Trained({}, 9, training, held_out=HeldOut(0.5, held_out, 9))
                for device, (training, held_out) in devices.items()
            }
        )
    return moving


@pytest.mark.parametrize(
    ("training", "held_out", "moved"),
    [
        ((0.4, 0.2, 0.1), (1.0, 0.8, 0.7), ()),
        ((0.4, 0.01, 0.02), (0.5, 0.6, 0.75), ()),  # it overfits
        ((0.4, 0.2, 0.1), (1.0, 0.8, 1.6), ()),  # the held-out samples are few, or others
        ((0.4, 0.01, 0.02), (0.5, 0.01, 0.05), ()),  # a small loss, and a small rise
        ((0.4, 0.002, 0.03), (0.8, 0.5, 1.2), ()),  # many times what was left of a loss, and yet little
        ((0.4, 0.2, 0.22), (1.0, 0.8, 1.6), ()),
        ((0.4, 0.2, 0.5), (1.0, 0.8, 1.6), ("a",)),
        ((-1.0, -2.0, -1.0), (-1.0, -2.0, -1.0), ("a",)),  # a learner's own loss
    ],
)
def test_a_device_has_moved_if_both_losses_jump(
    training: tuple[float, ...], held_out: tuple[float, ...], moved: tuple[str, ...]
) -> None:
    assert heard(*({"a": each} for each in zip(training, held_out, strict=True))).moved == moved


def test_devices_move_in_different_rounds_and_count_once() -> None:
    calm = dict.fromkeys("abcd", (0.2, 0.4))
    moving = heard(calm, calm | {"a": (0.5, 2.0)}, calm | {"a": (0.5, 2.0)}, calm | {"a": (0.6, 4.0)})
    assert (moving.moved, moving.most) == (("a",), False)
    moving = heard(calm, calm | {"a": (0.5, 2.0)}, calm | {"b": (0.5, 2.0)}, {"c": (0.5, 2.0)})
    assert (moving.moved, moving.most) == (("a", "b", "c"), True)
    assert moving.without("a").moved == ("b", "c")
    assert {*moving.without("a").losses} == {*"bcd"}


def test_half_of_the_devices_are_not_enough_whatever_they_say() -> None:
    calm = dict.fromkeys("abcd", (0.2, 0.4))
    liars = dict.fromkeys("ab", (1e9, 1e9))
    assert not heard(calm, calm | liars, calm, calm | liars).most


def test_nothing_is_known_of_a_device_that_measures_nothing() -> None:
    moving = Moving().heard({"a": Trained({}, 9, 0.1)}).heard({"a": Trained({}, 9, 9.0)})
    assert moving == Moving()
    assert not moving.most
