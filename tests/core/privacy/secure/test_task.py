"""What all devices of a sum have to be asked alike, so that no server learns the update of one of them."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.core.exchange.messages import PrivateTraining, Train, TrainingSettings
from shoal.core.exchange.parts import PrivacySettings
from shoal.core.exchange.payload import BlobRef, Weights, decode, encode
from shoal.core.exchange.summing import task_of
from shoal.core.exchange.tensors import manifest_of, nbytes
from shoal.core.exchange.wire import payload_from_bytes, payload_to_bytes

MODEL = {"weight": np.ones((2, 3), np.float32), "bias": np.zeros(3, np.float32)}
USUAL = Train(MODEL, TrainingSettings(), private=PrivateTraining(noise=1.0))
DEAD = {**MODEL, "bias": np.full(3, -1e9, np.float32)}


@pytest.mark.parametrize(
    "changed",
    [
        replace(USUAL, model=DEAD),
        replace(USUAL, model={"other": MODEL["weight"], "bias": MODEL["bias"]}),
        replace(USUAL, settings=TrainingSettings(learning_rate=1e-30)),
        replace(USUAL, settings=TrainingSettings(proximal=1e9)),
        replace(USUAL, private=PrivateTraining(clip=1e-9, noise=1.0)),
        replace(USUAL, private=None),
    ],
)
def test_whatever_makes_an_update_known_is_part_of_it(changed: Train) -> None:
    assert task_of(changed, 1.0, 0.5) != task_of(USUAL, 1.0, 0.5)


def test_the_norm_and_the_noise_are_part_of_it() -> None:
    assert len({task_of(USUAL, clip, noise) for clip in (1.0, 1e-9) for noise in (0.5, 0.0)}) == 4


def test_what_may_differ_between_devices_or_change_in_a_round_is_not() -> None:
    """A device that came late also describes its data; and an operator may change the number of rounds."""
    again = {name: MODEL[name].copy() for name in reversed(MODEL)}
    others = [
        replace(USUAL, model=again),
        replace(USUAL, cluster="c1"),
        replace(USUAL, projector=MODEL, classes=3, privacy=PrivacySettings("balanced", 5.0, 1e-6)),
        replace(USUAL, private=PrivateTraining(epsilon=3.0, rounds=7)),
    ]
    assert {task_of(each, 1.0, 0.5) for each in others} == {task_of(USUAL, 1.0, 0.5)}


def test_it_is_the_same_on_both_sides_of_a_wire() -> None:
    whole = TrainingSettings(learning_rate=1, momentum=0, batch_size=32, optimizer="adam", weight_decay=0.1)
    asked = Train(MODEL, whole, private=PrivateTraining(clip=1, noise=1))
    weights = Weights(manifest_of(MODEL), BlobRef("0" * 64, nbytes(MODEL)))
    sent = payload_from_bytes(payload_to_bytes(encode(asked, lambda tensors: weights)))
    came = decode(sent, {Train.kind: Train}, lambda weights: MODEL)
    assert isinstance(came, Train)
    assert task_of(came, 1.0, 2.0) == task_of(asked, 1, 2)
