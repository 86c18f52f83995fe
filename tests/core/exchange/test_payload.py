"""Messages as payloads: what is kept, what is refused, and with which words."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import (
    Build,
    Built,
    Evaluate,
    Evaluated,
    HeldOut,
    Message,
    Protected,
    Score,
    Train,
    Trained,
    TrainingSettings,
)
from shoal.core.exchange.parts import (
    ClusterAssignment,
    Descriptor,
    LatentBounds,
    MixtureCounts,
    Moments,
    PrivacySettings,
    Prototypes,
    Scores,
)
from shoal.core.exchange.payload import (
    BlobRef,
    Part,
    Payload,
    Settings,
    Weights,
    decode,
    encode,
    fields_of,
    settings_from,
    tensors_of,
)
from shoal.core.privacy.release import ExactMoments
from shoal.core.types import Tensors
from tests.core.exchange.wire_values import Blobs, same

MODEL = {"w": np.array([[1.0, 2.0]], np.float32), "steps": np.array(7)}
OTHER = {"w": np.array([[0.0, 0.0]], np.float32), "steps": np.array(8)}


@dataclass(frozen=True, eq=False)
class Mixed(Message):
    """A message of an algorithm of its own: tuples of tensors and of numbers."""

    kind: ClassVar[str] = "mixed"
    models: tuple[Tensors, ...]
    weights: tuple[float, ...]


def back(message: Message) -> Any:
    blobs = Blobs()
    return decode(encode(message, blobs.keep), {message.kind: type(message)}, blobs.load)


def refused(cls: type[Message], **parts: Part) -> str:
    with pytest.raises(BadPayload) as caught:
        decode(Payload(cls.kind, parts), {cls.kind: cls}, lambda weights: MODEL)
    return str(caught.value)


def test_a_message_comes_back() -> None:
    task = Train(MODEL, TrainingSettings(epochs=5), "c1", OTHER, 3, PrivacySettings("paper", 5.0))
    assert same(back(task), task)


def test_none_is_an_absent_part_and_comes_back_as_none() -> None:
    message = Trained(MODEL, 10, 0.5)
    assert "descriptor" not in encode(message, Blobs().keep).parts
    assert back(message).descriptor is None


def test_tuples_come_back_also_when_they_are_empty() -> None:
    for message in (Mixed((MODEL, OTHER), (0.25, 0.75)), Mixed((), ())):
        assert same(back(message), message)


def test_a_message_without_fields() -> None:
    assert encode(Build(), Blobs().keep) == Payload("build", {})


def test_every_tensor_set_is_kept_once_and_found() -> None:
    blobs, message = Blobs(), Mixed((MODEL, OTHER), ())
    payload = encode(message, blobs.keep)
    assert blobs.kept == 2
    assert [weights.blob.sha256 for weights in payload.weights()] == list(blobs.held)
    assert [name for name, _ in tensors_of(message)] == ["models", "models"]


def test_numbers_of_numpy_leave_as_plain_ones() -> None:
    payload = encode(Evaluated(np.float64(0.5), np.float64(1.5), 3), Blobs().keep)
    assert {type(value) for value in payload.parts.values()} == {float, int}


def test_what_has_no_part_cannot_leave() -> None:
    with pytest.raises(TypeError, match="ndarray cannot leave"):
        encode(Built(np.zeros(3)), Blobs().keep)  # type: ignore[arg-type]


def test_only_a_kind_that_is_due_is_taken() -> None:
    with pytest.raises(BadPayload, match=r"unexpected message 'train'.*expected: built, trained"):
        decode(Payload("train", {}), {"built": Built, "trained": Trained}, Blobs().load)


def test_an_unknown_field_is_named_with_the_nearest_known() -> None:
    assert "no field 'los' (did you mean \"loss\"?)" in refused(Evaluated, los=1.0)


def test_a_missing_field_is_named() -> None:
    assert "message 'evaluated' lacks field 'loss'" in refused(Evaluated, accuracy=1.0, examples=3)


@pytest.mark.parametrize(
    ("cls", "parts", "words"),
    [
        (
            Evaluated,
            {"accuracy": "1", "loss": 1.0, "examples": 3},
            "field 'accuracy': unexpected str",
        ),
        (Evaluated, {"accuracy": True, "loss": 1.0, "examples": 3}, "field 'accuracy': unexpected bool"),
        (Evaluated, {"accuracy": 1.0, "loss": 1.0, "examples": 3.0}, "field 'examples': unexpected float"),
        (Evaluated, {"accuracy": 1.0, "loss": 1.0, "examples": True}, "field 'examples': unexpected bool"),
        (
            Evaluated,
            {"accuracy": 1.0, "loss": 1.0, "examples": 3, "bounds": 1},
            "field 'bounds': unexpected int",
        ),
        (Evaluate, {"model": "w"}, "field 'model': unexpected str"),
        (Score, {"models": (1.0, 2.0)}, "field 'models': unexpected tuple"),
        (
            Train,
            {"model": Weights((), BlobRef("0" * 64, 0)), "settings": 1},
            "field 'settings': unexpected int",
        ),
        (
            Mixed,
            {"models": (), "weights": (Weights((), BlobRef("0" * 64, 0)),)},
            "field 'weights': unexpected tuple",
        ),
    ],
)
def test_a_part_of_the_wrong_type_is_named(cls: type[Message], parts: dict[str, Part], words: str) -> None:
    assert words in refused(cls, **parts)


def test_a_whole_number_does_for_a_number() -> None:
    message = decode(
        Payload("evaluated", {"accuracy": 1, "loss": 2.0, "examples": 3}),
        {"evaluated": Evaluated},
        Blobs().load,
    )
    assert same(message, Evaluated(1.0, 2.0, 3))


def test_settings_are_checked_name_by_name() -> None:
    assert settings_from({"epochs": 3, "momentum": 0}, TrainingSettings, "train") == TrainingSettings(
        epochs=3, momentum=0
    )
    with pytest.raises(BadPayload, match=r"has no setting 'epoch' \(did you mean \"epochs\""):
        settings_from({"epoch": 3}, TrainingSettings, "train")
    with pytest.raises(BadPayload, match=r"train\.epochs: expected int, got float"):
        settings_from({"epochs": 3.0}, TrainingSettings, "train")
    with pytest.raises(BadPayload, match=r"held_out lacks setting 'loss'"):
        settings_from({"accuracy": 0.5}, HeldOut, "held_out")


def test_settings_that_the_constructor_refuses_are_refused() -> None:
    parts: dict[str, Part] = {
        "model": Weights((), BlobRef("0" * 64, 0)),
        "settings": Settings({}),
        "privacy": Settings({"mode": "none"}),
    }
    assert "privacy mode 'none' is not known" in refused(Train, **parts)


def test_fields_say_their_types_and_whether_they_must_be_there() -> None:
    assert fields_of(Trained) is fields_of(Trained)  # found once
    assert fields_of(Trained) == {
        "model": ((Tensors,), True),
        "examples": ((int,), True),
        "loss": ((float,), True),
        "descriptor": ((Descriptor,), False),
        "private": ((Protected,), False),
        "curve": ((tuple[float, ...],), False),
        "held_out": ((HeldOut,), False),
    }


@pytest.mark.parametrize(
    ("sha256", "size"), [("0" * 63, 1), ("0" * 65, 1), ("A" * 64, 1), ("g" * 64, 1), ("", 0), ("0" * 64, -1)]
)
def test_a_blob_is_named_by_64_lower_case_hex_digits(sha256: str, size: int) -> None:
    with pytest.raises(BadPayload, match="64 hex digits"):
        BlobRef(sha256, size)


ROW = np.zeros(2)
TABLE = np.zeros((2, 2))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PrivacySettings("strong"), "mode 'strong' is not known"),
        (lambda: PrivacySettings("paper"), "0.0 is no epsilon"),
        (lambda: PrivacySettings("paper", float("inf")), "inf is no epsilon"),
        (lambda: LatentBounds(ROW, ROW - 1.0), "above its high"),
        (lambda: LatentBounds(ROW, ROW, "guessed"), "provenance 'guessed'"),
        (lambda: LatentBounds(ROW, ROW, epoch=-1), "epoch -1"),
        (
            lambda: LatentBounds(ROW.astype(np.float32), ROW),
            "expected a 1-D float64 array, got a 1-D float32",
        ),
        (lambda: LatentBounds(TABLE, TABLE), "expected a 1-D float64 array, got a 2-D float64"),
        (lambda: LatentBounds(np.zeros((1 << 17) + 1), ROW), "131073 numbers, at most 131072"),
        (lambda: Descriptor(Moments(TABLE, TABLE, np.zeros(3)), "0" * 64), "do not fit together"),
        (lambda: Descriptor(Moments(np.zeros((1, 0)), np.zeros((1, 0)), np.zeros(1)), "0" * 64), "empty"),
        (lambda: ClusterAssignment("c0", confidence=float("nan")), "between 0 and 1"),
        (lambda: ClusterAssignment("c0", runner_up_distance=float("inf")), "infinite"),
        (lambda: Scores(ROW, -1), "-1 examples"),
        (lambda: Scores(np.array([np.nan]), 1), "NaN or infinity"),
        (lambda: Prototypes(np.array([0.0, 0.5]), TABLE, ROW), "whole numbers"),
        (lambda: Prototypes(np.array([-1.0, 0.0]), TABLE, ROW), "whole numbers"),
        (lambda: Prototypes(np.array([1.0, 1.0]), TABLE, ROW), "ascending"),
        (lambda: Prototypes(np.array([0.0, 2.0**32]), TABLE, ROW), "whole numbers"),
        (lambda: Prototypes(np.array([0.0]), TABLE, ROW), "differ in length"),
        (lambda: Prototypes(np.zeros(0), np.zeros((0, 2)), np.zeros(0)), "there are none"),
        (lambda: MixtureCounts(np.zeros((0, 3))), "there are none"),
    ],
)
def test_a_part_in_hand_is_a_sane_part(make: Any, words: str) -> None:
    with pytest.raises(BadPayload) as caught:
        make()
    assert words in str(caught.value)


def test_a_descriptor_counts_its_classes() -> None:
    assert Descriptor(Moments(TABLE, TABLE, ROW), "0" * 64).classes == 1
    assert Descriptor(Moments(TABLE[:1], TABLE[:1], ROW[:1]), "0" * 64).classes == 0


def test_a_descriptor_names_its_projector_by_a_hash() -> None:
    with pytest.raises(BadPayload, match="64 hex digits"):
        Descriptor(Moments(np.ones((1, 1)), np.ones((1, 1)), np.ones(1)), "not a hash")


def test_what_has_not_been_released_cannot_leave() -> None:
    """A dataclass of arrays has no part: raw moments do not slip out as if they were settings."""

    @dataclass(frozen=True, eq=False)
    class Leak(Message):
        kind: ClassVar[str] = "leak"
        moments: ExactMoments

    moments = ExactMoments(np.ones((1, 2)), np.ones((1, 2)), np.ones(1), 0.0, 1.0)
    with pytest.raises(TypeError, match="ExactMoments cannot leave"):
        encode(Leak(moments), lambda tensors: pytest.fail("nothing is to be kept"))
