"""Hostile payloads: each lie in a part is BadPayload and named, and nothing else is ever raised."""

import math
import tracemalloc
from typing import Any

import pytest
from google.protobuf.message import Message as Protobuf

from shoal.core.errors import BadPayload
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import messages_pb2, privacy_pb2
from shoal.core.exchange._pb.fed.v1 import parts_pb2 as parts
from shoal.core.exchange._pb.fed.v1 import payload_pb2 as pb2
from shoal.core.exchange._pb.fed.v1 import tensor_pb2 as tensors
from tests.core.exchange.wire_lies import LONG_NAME, LONG_TEXT, UNKNOWN, Lies, caught, with_unknown
from tests.core.exchange.wire_values import DECODERS

DIGEST = bytes(32)
OFF = privacy_pb2.PrivacyParameters(mode=privacy_pb2.PRIVACY_MODE_OFF)
NAN, INFINITY = math.nan, math.inf


def custom(**fields: Any) -> pb2.Payload:
    return pb2.Payload(custom=pb2.Custom(**fields))


def payload(**arm: Any) -> pb2.Payload:
    return custom(kind="k", parts={"p": pb2.Part(**arm)})


def message(kind: str, **fields: Any) -> pb2.Payload:
    """A message of the contract, with these fields."""
    return pb2.Payload(**{kind: type(getattr(pb2.Payload(), kind))(**fields)})


def letters(*named: tuple[str, bytes]) -> pb2.Payload:
    found = parts.Letters(letters=[parts.Letter(device=device, data=data) for device, data in named])
    return message("announced", keys=found)


def scalar(**value: Any) -> pb2.Payload:
    return payload(scalar=parts.Scalar(**value))


def weights(*specs: tensors.TensorSpec, size: int = 4, sha256: bytes = DIGEST) -> pb2.Payload:
    blob = tensors.BlobRef(sha256=sha256, size=size)
    return payload(weights=parts.Weights(manifest=specs, blob=blob))


def spec(name: str = "w", dtype: Any = tensors.DTYPE_FLOAT32, shape: Any = (1,)) -> tensors.TensorSpec:
    return tensors.TensorSpec(name=name, dtype=dtype, shape=shape)


def bounds(**changes: Any) -> pb2.Payload:
    fields: dict[str, Any] = {"low": [0.0], "high": [1.0], "provenance": parts.PROVENANCE_RAW}
    return payload(latent_bounds=parts.LatentBounds(**fields | changes))


def descriptor(**changes: Any) -> pb2.Payload:
    fields: dict[str, Any] = {"means": [0.0, 1.0], "deviations": [0.0, 1.0], "counts": [5.0], "rows": 1}
    return payload(descriptor=parts.Descriptor(**fields | {"projector": DIGEST, "privacy": OFF} | changes))


def privacy(**fields: Any) -> pb2.Payload:
    return descriptor(privacy=privacy_pb2.PrivacyParameters(**fields))


def calibrated(**changes: Any) -> privacy_pb2.PrivacyParameters:
    fields: dict[str, Any] = {
        "mode": privacy_pb2.PRIVACY_MODE_EXPLICIT,
        "epsilon": 2.0,
        "delta": 1e-6,
        "mechanism": privacy_pb2.PRIVACY_MECHANISM_DISCRETE_GAUSSIAN,
        "sensitivity": 1.0,
        "noise_scale": 2.0,
        "clip_radius": 1.0,
        "rho": 0.125,
        "group_size": 1,
    }
    return privacy_pb2.PrivacyParameters(**fields | changes)


def sums(**changes: Any) -> pb2.Payload:
    fields: dict[str, Any] = {"sums": [5, 6, 7], "rows": 1, "projector": DIGEST, "privacy": calibrated()}
    return payload(descriptor=parts.Descriptor(**fields | changes))


def assignment(**fields: Any) -> pb2.Payload:
    return payload(cluster_assignment=parts.ClusterAssignment(**fields))


def prototypes(**changes: Any) -> pb2.Payload:
    fields: dict[str, Any] = {"classes": [0, 2], "means": [0.0] * 4, "counts": [1.0, 2.0]}
    return payload(prototypes=parts.Prototypes(**fields | changes))


def mixture(**fields: Any) -> pb2.Payload:
    return payload(mixture_counts=parts.MixtureCounts(**fields))


HOSTILE: Lies = {
    "payload: no message": (pb2.Payload(), "message is not set"),
    "payload: no kind": (custom(), "kind is not set"),
    "payload: long kind": (custom(kind=LONG_NAME), "257 characters"),
    "payload: 65 parts": (
        custom(kind="k", parts={str(i): pb2.Part() for i in range(65)}),
        "65 of them, at most 64",
    ),
    "payload: part without a name": (custom(kind="k", parts={"": pb2.Part()}), "name is not set"),
    "payload: part with a long name": (
        custom(kind="k", parts={LONG_NAME: pb2.Part()}),
        "257 characters",
    ),
    "payload: unknown field": (with_unknown(custom(kind="k")), "'custom' has a field that is not known"),
    "payload: a message of a newer peer": (with_unknown(pb2.Payload()), "a payload has a field that is not"),
    "payload: a message of the contract as a custom one": (
        custom(kind="train"),
        "'train' came as a custom one",
    ),
    "message: unknown field": (with_unknown(message("score")), "'score' has a field that is not known"),
    "message: unknown field in a field": (
        message("trained", held_out=with_unknown(messages_pb2.HeldOut(loss=1.0))),
        "'trained' has a field that is not known",
    ),
    "message: another type of field": (
        pb2.Payload(trained=messages_pb2.Trained.FromString(b"\x12\x03ten")),  # examples, as a text
        "'trained' has a field that is not known",
    ),
    "message: a wrong part": (
        message("trained", model=parts.Weights()),
        "message 'trained', field 'model': a set of tensors: blob is not set",
    ),
    "message: long text": (
        message("evaluate", cluster=LONG_TEXT),
        "field 'cluster': a text: 65537 characters",
    ),
    "message: too many tensor sets": (
        message("score", models=parts.WeightsList(weights=[parts.Weights()] * 1025)),
        "field 'models': tensor sets: 1025 of them",
    ),
    "message: too many numbers": (
        message("trained", curve=parts.Numbers(numbers=[0.0] * 131073)),
        "field 'curve': numbers: 131073 of them",
    ),
    "message: unknown value": (message("evaluate", part=77), "field 'part': DataPart: value 77 is not known"),
    "message: unknown value in a record": (
        message("train", settings=messages_pb2.TrainingSettings(optimizer=77)),  # type: ignore[arg-type]
        "field 'settings': settings, field 'optimizer': Optimizer: value 77 is not known",
    ),
    "message: unknown privacy mode": (
        message("describe", privacy=messages_pb2.PrivacySettings(mode=77)),  # type: ignore[arg-type]
        "privacy mode: value 77 is not known",
    ),
    "letters: the same device twice": (letters(("a", b""), ("a", b"")), "ascending order, each once"),
    "letters: not in order": (letters(("b", b""), ("a", b"")), "ascending order, each once"),
    "letters: a long name": (letters((LONG_NAME, b"")), "a name of 257 characters"),
    "letters: a long letter": (letters(("a", bytes(8193))), "8193 bytes"),
    "part: unset": (payload(), "field 'p': part is not set"),
    "part: an arm of a newer peer": (
        custom(kind="k", parts={"p": with_unknown(pb2.Part())}),
        "not known",
    ),
    "part: unknown field deep inside": (
        payload(weights=parts.Weights(manifest=[with_unknown(spec())], blob=tensors.BlobRef())),
        "not known",
    ),
    "scalar: unset": (scalar(), "plain value is not set"),
    "scalar: long text": (scalar(text=LONG_TEXT), "65537 characters"),
    "settings: 65 of them": (
        payload(settings=pb2.Settings(values={str(i): parts.Scalar(integer=i) for i in range(65)})),
        "65 of them",
    ),
    "settings: no name": (
        payload(settings=pb2.Settings(values={"": parts.Scalar(integer=1)})),
        "name is not set",
    ),
    "settings: no value": (payload(settings=pb2.Settings(values={"a": parts.Scalar()})), "value is not set"),
    "numbers: too many": (payload(numbers=parts.Numbers(numbers=[0.0] * 131073)), "131073 of them"),
    "weights: no blob": (payload(weights=parts.Weights(manifest=[spec()])), "blob is not set"),
    "weights: 4097 tensors": (weights(*[spec(str(i)) for i in range(4097)]), "4097 of them"),
    "weights: the same name twice": (weights(spec(), spec()), "the same name"),
    "weights: no name": (weights(spec(name="")), "1 to 256 characters"),
    "weights: long name": (weights(spec(name=LONG_NAME)), "1 to 256 characters"),
    "weights: no dtype": (weights(spec(dtype=0)), "dtype is not set"),
    "weights: unknown dtype": (weights(spec(dtype=77)), "value 77 is not known"),
    "weights: nine dimensions": (weights(spec(shape=[1] * 9)), "9 of them, at most 8"),
    "weights: impossible size": (weights(spec(shape=[1 << 40])), "not possible"),
    "weights: memory bomb": (weights(spec(shape=[1 << 39] * 8)), "names a blob of 4"),
    "weights: blob too short": (weights(spec(), size=3), "of 4 bytes names a blob of 3"),
    "weights: blob too long": (weights(spec(), size=1 << 63), "names a blob of 9223372036854775808"),
    "weights: short hash": (weights(spec(), sha256=bytes(31)), "32 bytes"),
    "weights: no hash": (weights(spec(), sha256=b""), "32 bytes"),
    "weights list: 1025 sets": (
        payload(weights_list=parts.WeightsList(weights=[parts.Weights()] * 1025)),
        "1025 of them",
    ),
    "weights list: an empty one": (
        payload(weights_list=parts.WeightsList(weights=[parts.Weights()])),
        "blob is not set",
    ),
    "bounds: none": (bounds(low=[], high=[]), "0 low values"),
    "bounds: different lengths": (bounds(low=[0.0, 0.0]), "2 low values and 1 high"),
    "bounds: crossed": (bounds(low=[2.0]), "above its high value"),
    "bounds: NaN": (bounds(low=[NAN]), "NaN or infinity"),
    "bounds: infinite": (bounds(high=[INFINITY]), "NaN or infinity"),
    "bounds: no provenance": (bounds(provenance=0), "provenance is not set"),
    "bounds: unknown provenance": (bounds(provenance=9), "value 9 is not known"),
    "bounds: too many": (bounds(low=[0.0] * 131073, high=[1.0] * 131073), "131073 of them"),
    "descriptor: no rows": (descriptor(rows=0), "rows is 0"),
    "descriptor: too many rows": (descriptor(rows=(1 << 32) - 1), "4294967295 of them, at most 4097"),
    "descriptor: rows that do not divide": (descriptor(rows=3), "2 numbers do not make 3 rows"),
    "descriptor: empty": (descriptor(means=[], deviations=[]), "0 numbers do not make 1 rows"),
    "descriptor: other deviations": (descriptor(deviations=[1.0]), "do not fit together"),
    "descriptor: other counts": (descriptor(counts=[1.0, 2.0]), "do not fit together"),
    "descriptor: NaN mean": (descriptor(means=[0.0, NAN]), "NaN or infinity"),
    "descriptor: infinite deviation": (descriptor(deviations=[0.0, INFINITY]), "NaN or infinity"),
    "descriptor: NaN count": (descriptor(counts=[NAN]), "NaN or infinity"),
    "descriptor: no projector": (descriptor(projector=b""), "32 bytes"),
    "descriptor: no privacy": (descriptor(privacy=None), "privacy is not set"),
    "privacy: no mode": (privacy(epsilon=1.0), "privacy mode is not set"),
    "privacy: a mode of a newer peer": (
        privacy(mode=privacy_pb2.PRIVACY_MODE_EXPLICIT + 1),
        "value 6 is not known",
    ),
    "privacy: paper without epsilon": (privacy(mode=privacy_pb2.PRIVACY_MODE_PAPER), "no epsilon"),
    "privacy: NaN epsilon": (privacy(mode=privacy_pb2.PRIVACY_MODE_OFF, epsilon=NAN), "no epsilon"),
    "privacy: negative epsilon": (privacy(mode=privacy_pb2.PRIVACY_MODE_OFF, epsilon=-1.0), "no epsilon"),
    "sums: of a mode without them": (descriptor(sums=[1, 2, 3]), "has moments, and no sums"),
    "sums: none": (sums(sums=[]), "0 numbers do not make 1 rows"),
    "sums: rows that do not divide": (sums(rows=2), "3 numbers do not make 2 rows"),
    "sums: an even number of columns": (sums(sums=[1, 2]), "of shape (1, 2)"),
    "sums: only a count": (sums(sums=[1]), "they are empty"),
    "sums: beyond all devices": (sums(sums=[1, 2, -(1 << 63)]), "more than a device's samples"),
    "sums: with moments beside them": (sums(means=[1.0]), "has sums, and no moments"),
    "sums: no noise": (sums(privacy=calibrated(noise_scale=0.0)), "sigma is 0.0"),
    "sums: infinite noise": (sums(privacy=calibrated(noise_scale=INFINITY)), "sigma is inf"),
    "sums: NaN radius": (sums(privacy=calibrated(clip_radius=NAN)), "radius is nan"),
    "sums: another cost": (sums(privacy=calibrated(rho=0.1)), "costs a rho of 0.125, not 0.1"),
    "sums: another sensitivity": (sums(privacy=calibrated(sensitivity=2.0)), "of sensitivity 1"),
    "sums: another mechanism": (
        sums(privacy=calibrated(mechanism=2)),
        "is discrete Gaussian noise",
    ),
    "sums: no delta": (sums(privacy=calibrated(delta=0.0)), "no delta"),
    "sums: a group of no one": (sums(privacy=calibrated(group_size=0)), "a group of 0"),
    "sums: a named mode with numbers of its own": (
        sums(privacy=calibrated(mode=privacy_pb2.PRIVACY_MODE_STRICT)),
        "strict has epsilon 1.0",
    ),
    "assignment: NaN distance": (assignment(distance=NAN), "distance is NaN"),
    "assignment: NaN runner-up": (assignment(runner_up_distance=NAN), "distance is NaN"),
    "assignment: infinite distance": (assignment(distance=INFINITY), "distance is infinite"),
    "assignment: confidence above 1": (assignment(confidence=1.1), "between 0 and 1"),
    "assignment: NaN confidence": (assignment(confidence=NAN), "between 0 and 1"),
    "assignment: long name": (assignment(cluster=LONG_NAME), "257 characters"),
    "assignment: long runner-up": (assignment(runner_up=LONG_NAME), "257 characters"),
    "assignment: long reason": (assignment(reason=LONG_TEXT), "65537 characters"),
    "scores: too many": (payload(scores=parts.Scores(losses=[0.0] * 1025)), "1025 of them"),
    "scores: NaN": (payload(scores=parts.Scores(losses=[NAN])), "NaN or infinity"),
    "prototypes: none": (prototypes(classes=[], means=[], counts=[]), "rows is 0"),
    "prototypes: not ascending": (prototypes(classes=[2, 0]), "ascending"),
    "prototypes: twice": (prototypes(classes=[2, 2]), "ascending"),
    "prototypes: too many": (prototypes(classes=list(range(4098))), "4098 of them"),
    "prototypes: other counts": (prototypes(counts=[1.0]), "differ in length"),
    "prototypes: ragged": (prototypes(means=[0.0] * 3), "3 numbers do not make 2 rows"),
    "prototypes: short encoder": (prototypes(encoder=b"a"), "32 bytes"),
    "prototypes: infinite": (prototypes(means=[INFINITY] * 4), "NaN or infinity"),
    "mixture: none": (mixture(), "rows is 0"),
    "mixture: too many rows": (mixture(counts=[0.0], rows=1025), "1025 of them"),
    "mixture: ragged": (mixture(counts=[0.0] * 3, rows=2), "3 numbers do not make 2 rows"),
    "mixture: NaN": (mixture(counts=[NAN], rows=1), "NaN or infinity"),
    "extension: no type": (payload(extension=parts.Extension(data=b"x")), "type is not set"),
    "extension: long type": (payload(extension=parts.Extension(type=LONG_NAME)), "257 characters"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_lie_is_named(case: str) -> None:
    caught(HOSTILE[case])


@pytest.mark.parametrize(
    "message",
    [bounds(), descriptor(), sums(), assignment(), prototypes(), weights(spec())],
)
def test_the_messages_that_the_lies_are_made_of_are_fine(message: Protobuf) -> None:
    DECODERS[type(message)](message)


@pytest.mark.parametrize(
    "field", [field.name for field in privacy_pb2.PrivacyParameters.DESCRIPTOR.fields if field.number > 2]
)
def test_no_claim_of_privacy_is_dropped_without_a_word(field: str) -> None:
    message = privacy(mode=privacy_pb2.PRIVACY_MODE_PAPER, epsilon=1.0, **{field: 1})
    with pytest.raises(BadPayload, match=f"has no {field}"):
        wire.payload_from_pb(message)


@pytest.mark.parametrize(
    "field", [field.name for field in privacy_pb2.PrivacyParameters.DESCRIPTOR.fields if field.number > 2]
)
def test_a_guarantee_says_all_that_belongs_to_it(field: str) -> None:
    parameters = calibrated()
    parameters.ClearField(field)  # type: ignore[arg-type]
    with pytest.raises(BadPayload, match=f"{field} is not set"):
        wire.payload_from_pb(sums(privacy=parameters))


def test_a_million_unknown_fields_are_refused_without_listing_them() -> None:
    message = pb2.Payload.FromString(custom(kind="k").SerializeToString() + UNKNOWN * 1_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(BadPayload, match="not known"):
            wire.payload_from_pb(message)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
