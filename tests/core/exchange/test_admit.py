"""What a report must be before it may touch a model: each thing that can be wrong, by name."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithms.feroma.messages import Profile
from shoal.core.algorithms.flux.messages import TrainMixture
from shoal.core.errors import BadPayload
from shoal.core.exchange.admit import admit_message, admit_payload, largest_upload
from shoal.core.exchange.messages import (
    Build,
    Built,
    Describe,
    Described,
    Evaluate,
    Evaluated,
    HeldOut,
    Message,
    PrivateTraining,
    Protected,
    Train,
    Trained,
    TrainingSettings,
)
from shoal.core.exchange.parts import Descriptor, LatentBounds, Moments, NoisySums, PrivacySettings
from shoal.core.exchange.payload import BlobRef, Payload, Settings, Weights, decode, encode
from shoal.core.exchange.tensors import digest, manifest_of, nbytes
from shoal.core.privacy.cost import ORDERS
from shoal.core.types import Tensors
from shoal_lab.algorithms.fedem.messages import Measure
from tests.core.several import Move, Moved

MODEL: Tensors = {"w": np.ones((2, 3), np.float32), "b": np.zeros(2, np.float32)}
PROJECTOR: Tensors = {"mean": np.zeros(5), "components": np.ones((4, 5))}
TRAIN = Train(MODEL, TrainingSettings())
CLUSTER = Train(MODEL, TrainingSettings(), projector=PROJECTOR, classes=2)
TRAINED = Trained(MODEL, examples=10, loss=0.5)
SEVERAL = Move((MODEL, MODEL))


def keep(tensors: Tensors) -> Weights:
    return Weights(manifest_of(tensors), BlobRef(digest(tensors), nbytes(tensors)))


def descriptor(**changes: Any) -> Descriptor:
    moments = {
        "means": np.zeros((3, 4)),
        "deviations": np.ones((3, 4)),
        "counts": np.array([10.0, 4.0, 6.0]),
    }
    moments |= {name: changes.pop(name) for name in moments if name in changes}
    return Descriptor(Moments(**moments), **{"projector": digest(PROJECTOR), **changes})


def bounds_of(width: int) -> LatentBounds:
    return LatentBounds(np.zeros(width), np.ones(width))


def refused(task: Message, reply: Message) -> str:
    """Why, by the look at the references or by that at the values."""
    try:
        admit_payload(task, encode(reply, keep))
        admit_message(task, reply)
    except BadPayload as refusal:
        return str(refusal)
    pytest.fail("it was admitted")


RIGHT = [
    (TRAIN, TRAINED),
    (CLUSTER, replace(TRAINED, descriptor=descriptor())),
    (TrainMixture((MODEL, MODEL), (0.5, 0.5), TrainingSettings()), TRAINED),
    (SEVERAL, Moved((MODEL, MODEL), 10)),
    (Evaluate(MODEL), Evaluated(0.5, 1.0, 3)),
    (Evaluate(MODEL), Evaluated(0.5, 1.0, 3, baseline=1.0 / 3.0, classes=40)),
    (Evaluate(MODEL), Evaluated(0.5, 1.0, 3, baseline=0.0)),
    (Evaluate(MODEL, bounds="scalar"), Evaluated(0.5, 1.0, 3, LatentBounds(np.zeros(1), np.ones(1)), 5)),
    (Describe(MODEL, PROJECTOR, 2), Described(descriptor(), 10)),
    (Build(), Built(MODEL)),
]


@pytest.mark.parametrize(("task", "reply"), RIGHT)
def test_a_right_answer_is_admitted(task: Message, reply: Message) -> None:
    admit_payload(task, encode(reply, keep))
    admit_message(task, reply)


ASKED = PrivateTraining(clip=2.0, noise=1.0)
SECRET = replace(TRAIN, private=ASKED)
CURVE = tuple(0.1 * order for order in ORDERS)
PROTECTED = replace(TRAINED, private=Protected(2.0, 1.0, 0.1, 20), curve=CURVE)


def test_training_with_a_guarantee_says_how_and_at_what_cost() -> None:
    for task, reply in (
        (SECRET, PROTECTED),
        (SECRET, replace(PROTECTED, private=Protected(2.0, 3.0, 0.1, 20))),  # more noise than was asked
        (replace(TRAIN, private=PrivateTraining(clip=2.0, epsilon=3.0)), PROTECTED),
        (TrainMixture((MODEL,), (1.0,), TrainingSettings(), private=ASKED), PROTECTED),
    ):
        admit_payload(task, encode(reply, keep))
        admit_message(task, reply)


@pytest.mark.parametrize(
    ("task", "changes", "why"),
    [
        (TRAIN, {}, "DP-SGD was not asked for"),
        (SECRET, {"private": None, "curve": None}, "DP-SGD was asked for"),
        (SECRET, {"curve": None}, "its cost goes with it"),
        (SECRET, {"private": None}, "DP-SGD was asked for"),
        (SECRET, {"private": Protected(2.0, 0.9, 0.1, 20)}, "was asked for"),
        (SECRET, {"private": Protected(3.0, 1.0, 0.1, 20)}, "was asked for"),
        (SECRET, {"curve": CURVE[:-1]}, "the cost of DP-SGD"),
        (SECRET, {"curve": CURVE[::-1]}, "the cost of DP-SGD"),
        (SECRET, {"curve": (*CURVE[:-1], float("inf"))}, "trained.curve is inf"),
        (SECRET, {"curve": (*CURVE[:-1], float("nan"))}, "trained.curve is nan"),
        (SECRET, {"curve": (0.0,) * len(ORDERS)}, "zero privacy cost"),
    ],
)
def test_a_wrong_word_about_a_guarantee_is_refused(task: Message, changes: dict[str, Any], why: str) -> None:
    assert why in refused(task, replace(PROTECTED, **changes))


WRONG_MODELS = [
    ({"w": MODEL["w"]}, "lacks tensor 'b'"),
    ({**MODEL, "c": MODEL["b"]}, "unknown tensor 'c'"),
    ({"b": MODEL["b"], "w": MODEL["w"]}, "another order"),
    ({**MODEL, "b": np.zeros(3, np.float32)}, "float32 [3], expected float32 [2]"),
    ({**MODEL, "b": np.zeros(2, np.float64)}, "float64 [2], expected float32 [2]"),
    ({**MODEL, "b": np.array([1.0, np.nan], np.float32)}, "1 of 2 values are NaN or infinite"),
    ({**MODEL, "b": np.array([-np.inf, np.inf], np.float32)}, "2 of 2 values"),
]


@pytest.mark.parametrize(("model", "why"), WRONG_MODELS)
def test_a_wrong_model_is_named(model: Tensors, why: str) -> None:
    assert why in refused(TRAIN, replace(TRAINED, model=model))
    assert why in refused(TrainMixture((MODEL,), (1.0,), TrainingSettings()), replace(TRAINED, model=model))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"loss": float("nan")}, "trained.loss is nan"),
        ({"loss": float("inf")}, "trained.loss is inf"),
        ({"loss": -1.7e308}, "trained.loss is -1.7e+308"),  # a mean with another such would be infinite
        ({"examples": 0}, "trained.examples is 0"),
        ({"examples": -4}, "trained.examples is -4"),
        ({"examples": 1 << 50}, "trained.examples is"),
        ({"descriptor": descriptor()}, "a descriptor was not asked for"),
    ],
)
def test_wrong_numbers_are_named(changes: dict[str, Any], why: str) -> None:
    assert why in refused(TRAIN, replace(TRAINED, **changes))


WRONG_DESCRIPTORS = [
    (None, "a descriptor was asked for"),
    (descriptor(projector="0" * 64), "another projector"),
    (
        descriptor(means=np.zeros((2, 4)), deviations=np.ones((2, 4)), counts=np.ones(2)),
        "1 classes and 4 dimensions, expected 2 and 4",
    ),
    (descriptor(means=np.zeros((3, 2)), deviations=np.ones((3, 2))), "2 classes and 2 dimensions"),
    (descriptor(counts=np.array([1.0, -1.0, 2.0])), "negative counts"),
    (descriptor(counts=np.array([1e300, 1.0, 2.0])), "more samples than a device can have"),
    (descriptor(means=np.full((3, 4), -1e200)), "values above 1e+40"),
    (descriptor(deviations=np.full((3, 4), 1e200)), "values above 1e+40"),
    (descriptor(deviations=-np.ones((3, 4))), "negative counts or deviations"),
    (descriptor(privacy=PrivacySettings("paper", 1.0)), "was asked for"),
]


@pytest.mark.parametrize(("given", "why"), WRONG_DESCRIPTORS)
def test_a_wrong_descriptor_is_named(given: Descriptor | None, why: str) -> None:
    assert why in refused(CLUSTER, replace(TRAINED, descriptor=given))


def test_with_noise_of_the_papers_deviations_may_be_below_zero_and_counts_may_not() -> None:
    paper = PrivacySettings("paper", 1.0)
    task = replace(CLUSTER, privacy=paper)
    noisy = descriptor(deviations=-np.ones((3, 4)), privacy=paper)
    admit_message(task, replace(TRAINED, descriptor=noisy))
    never = descriptor(counts=np.array([10.0, -1e12, 6.0]), privacy=paper)
    assert "negative counts" in refused(task, replace(TRAINED, descriptor=never))


def calibrated(rows: int = 3, sigma: float = 1.04, radius: float = 0.5) -> Descriptor:
    return Descriptor(NoisySums(np.ones((rows, 9), np.int64), sigma, radius), digest(PUBLIC), BALANCED)


BALANCED = PrivacySettings("balanced", 5.0, 1e-6)
PUBLIC = {**PROJECTOR, "radius": np.array(0.5)}
PRIVATE = replace(CLUSTER, projector=PUBLIC, privacy=BALANCED)


@pytest.mark.parametrize("rows", [1, 3])
def test_noisy_sums_with_or_without_classes_are_admitted(rows: int) -> None:
    reply = replace(TRAINED, descriptor=calibrated(rows))
    admit_payload(PRIVATE, encode(reply, keep))
    admit_message(PRIVATE, reply)


def test_a_device_may_have_too_few_samples_for_a_guarantee_but_not_for_a_profile() -> None:
    admit_message(PRIVATE, TRAINED)
    admit_message(Describe(MODEL, PUBLIC, 2, BALANCED), Described(None, 9))
    with pytest.raises(BadPayload, match="a descriptor was asked for"):
        admit_message(Describe(MODEL, PROJECTOR, 2), Described(None, 9))
    with pytest.raises(BadPayload, match="a profile was asked for"):
        admit_message(Profile(MODEL, PUBLIC, 2, BALANCED), Described(None, 9))


def test_what_was_told_with_classes_is_admitted_where_all_samples_alone_are_asked_for() -> None:
    question = Describe(CLUSTER.model, PUBLIC, 0, BALANCED)
    admit_message(question, Described(calibrated(3), 9))
    plain = Describe(CLUSTER.model, PROJECTOR, 0)
    with pytest.raises(BadPayload, match="2 classes and 4 dimensions, expected 0 and 4"):
        admit_message(plain, Described(descriptor(), 9))


WRONG_SUMS = [
    (calibrated(2), "1 classes and 4 dimensions, expected 2 and 4"),
    (calibrated(radius=0.6), "not the projector's radius"),
    (calibrated(sigma=1.0), "noise of 1 gives epsilon 5.2"),
    (replace(calibrated(), projector=digest(PROJECTOR)), "another projector"),
]


@pytest.mark.parametrize(("given", "why"), WRONG_SUMS)
def test_wrong_noisy_sums_are_named(given: Descriptor, why: str) -> None:
    assert why in refused(PRIVATE, replace(TRAINED, descriptor=given))


def test_no_descriptor_comes_with_training_of_an_algorithms_own_kind() -> None:
    task = TrainMixture((MODEL, MODEL), (0.5, 0.5), TrainingSettings())
    admit_message(task, TRAINED)
    assert "a descriptor was not asked for" in refused(task, replace(TRAINED, descriptor=descriptor()))


def test_noise_may_take_a_small_value_below_zero() -> None:
    privacy = PrivacySettings("paper", 1.0)
    noisy = descriptor(deviations=-np.ones((3, 4)), privacy=privacy)
    admit_message(replace(CLUSTER, privacy=privacy), replace(TRAINED, descriptor=noisy))


WRONG_MEASUREMENTS = [
    (Evaluate(MODEL), Evaluated(1.5, 0.0, 3), "accuracy is 1.5"),
    (Evaluate(MODEL), Evaluated(0.5, 0.0, 9, baseline=1.1, classes=4), "a share of 1.1"),
    (Evaluate(MODEL), Evaluated(0.5, 0.0, 9, baseline=0.2, classes=4), "a share of 0.2"),
    (Evaluate(MODEL), Evaluated(0.5, 0.0, 3, baseline=0.2, classes=40), "a share of 0.2"),
    (Evaluate(MODEL), Evaluated(0.5, 0.0, 3, baseline=0.5), "0 classes with a share of 0.5"),
    (Evaluate(MODEL), Evaluated(0.5, 0.0, 3, baseline=float("nan"), classes=4), "baseline is nan"),
    (Evaluate(MODEL), Evaluated(0.5, 0.0, 3, baseline=0.5, classes=1 << 40), "classes apart"),
    (Evaluate(MODEL), Evaluated(0.5, 0.0, 3, baseline=0.5, classes=-1), "classes apart"),
    (
        Evaluate(MODEL, rho=0.1),
        Evaluated(0.5, 0.0, 3, rho=0.1, baseline=0.5, classes=4),
        "the exact share of a class",
    ),
    (Evaluate(MODEL, bounds="scalar"), Evaluated(0.5, 0.0, 3), "bounds were asked for"),
    (Evaluate(MODEL), Evaluated(0.5, 0.0, 3, LatentBounds(np.zeros(1), np.ones(1))), "not asked for"),
    (
        Evaluate(MODEL, bounds="scalar"),
        Evaluated(0.5, 0.0, 3, bounds_of(5), 5),
        "expected 1 pair of latent bounds, got 5",
    ),
    (Evaluate(MODEL, bounds="scalar"), Evaluated(0.5, 0.0, 3, bounds_of(1), 1 << 40), "latents"),
    (Evaluate(MODEL, bounds="scalar"), Evaluated(0.5, 0.0, 3, bounds_of(1)), "0 latents"),
    (
        Evaluate(MODEL, bounds="scalar"),
        Evaluated(0.5, 0.0, 3, LatentBounds(np.zeros(1), np.full(1, 1e300)), 5),
        "values above 1e+40",
    ),
    (
        Evaluate(MODEL, bounds="scalar"),
        Evaluated(0.5, 0.0, 3, LatentBounds(np.zeros(1), np.ones(1), "raw", 3), 5),
        "encoder 3, expected 0",
    ),
    (
        Measure((MODEL,), (1.0,)),
        Evaluated(0.5, 0.0, 3, bounds_of(5), 5),
        "latent bounds were not asked for",
    ),
    (TRAIN, Evaluated(0.5, 0.0, 3), "a 'evaluated' report answers a 'train' task"),
]


@pytest.mark.parametrize(("task", "reply", "why"), WRONG_MEASUREMENTS)
def test_a_wrong_measurement_is_named(task: Message, reply: Message, why: str) -> None:
    assert why in refused(task, reply)


def test_an_unknown_field_is_refused_before_anything_is_opened() -> None:
    payload = encode(TRAINED, keep)
    extended = Payload(payload.kind, {**payload.parts, "root": True})
    with pytest.raises(BadPayload, match="has no field 'root'"):
        admit_payload(TRAIN, extended)


def test_no_more_is_taken_than_the_answer_can_need() -> None:
    assert largest_upload(TRAIN, 77) == nbytes(MODEL)
    assert largest_upload(Evaluate(MODEL), 77) == 0, "a measurement has no tensors"
    assert largest_upload(Build(), 77) == 77


def test_several_models_answer_several_each_as_the_runs_own() -> None:
    hostile = {"w": np.full((2, 3), np.inf, np.float32), "b": MODEL["b"]}
    assert "3 models answer where 2 can" in refused(SEVERAL, Moved((MODEL,) * 3, 10))
    assert "1 models came for 2" in refused(SEVERAL, Moved((MODEL,), 10))
    assert "lacks tensor 'b'" in refused(SEVERAL, Moved((MODEL, {"w": MODEL["w"]}), 10))
    assert "moved.models, tensor 'w': 6 of 6" in refused(SEVERAL, Moved((MODEL, hostile), 10))
    assert largest_upload(SEVERAL, 77) == nbytes(MODEL)


def test_as_many_initial_models_as_were_asked_for_and_all_of_one_layout() -> None:
    admit_payload(Build(3), encode(built := Built(MODEL, (MODEL, MODEL)), keep))
    admit_message(Build(3), built)
    assert "expected 3 models, got 2" in refused(Build(3), Built(MODEL, (MODEL,)))
    assert "2 models answer where 1 can" in refused(Build(), Built(MODEL, (MODEL,)))
    assert "lacks tensor 'b'" in refused(Build(2), Built(MODEL, ({"w": MODEL["w"]},)))
    with pytest.raises(BadPayload, match="65 models"):
        Build(65)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accuracy", 1.01),
        ("accuracy", -0.5),
        ("accuracy", float("nan")),
        ("loss", float("inf")),
        ("loss", float("nan")),
        ("examples", 0),
        ("examples", 1 << 41),
    ],
)
def test_a_held_out_figure_that_cannot_be_is_refused_as_it_is_read(name: str, value: float) -> None:
    figures = {"accuracy": 0.5, "loss": 1.0, "examples": 9, name: value}
    payload = encode(TRAINED, keep)
    lied = Payload(payload.kind, {**payload.parts, "held_out": Settings(figures)})
    with pytest.raises(BadPayload, match=f"held-out figure is not possible: {name}"):
        decode(lied, {TRAINED.kind: Trained}, lambda weights: TRAINED.model)


def test_no_held_out_figure_comes_with_weights_that_have_a_guarantee() -> None:
    held_out = HeldOut(0.5, 1.0, 9)
    admit_message(TRAIN, replace(TRAINED, held_out=held_out))
    assert "without the guarantee that the weights have" in refused(
        SECRET, replace(PROTECTED, held_out=held_out)
    )
