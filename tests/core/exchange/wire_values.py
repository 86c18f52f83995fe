"""Values for tests of the wire: a strategy for each part and message, and equality down to the bits."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from google.protobuf.message import Message as Protobuf
from hypothesis import strategies as st

from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import (
    device_service_pb2,
    fault_pb2,
    observer_service_pb2,
    parts_pb2,
    payload_pb2,
    placement_service_pb2,
    task_pb2,
    tensor_pb2,
)
from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.choosing.watching import Moved
from shoal.core.exchange.link import (
    Failure,
    Hello,
    Idle,
    ObservedRun,
    Outcome,
    Placement,
    Question,
    Receipt,
    Report,
    Task,
    Welcome,
)
from shoal.core.exchange.messages import (
    MAX_RHO,
    MIN_RHO,
    OPTIMIZERS,
    Build,
    Built,
    CountLatents,
    Describe,
    Described,
    Ensemble,
    Evaluate,
    Evaluated,
    LatentsCounted,
    Message,
    PrivateTraining,
    Protected,
    Represent,
    Represented,
    Score,
    Scored,
    Summarize,
    Summarized,
    Train,
    Trained,
    TrainingSettings,
)
from shoal.core.exchange.parts import (
    MAX_MODELS,
    Ballot,
    ClusterAssignment,
    Descriptor,
    Extension,
    FloatArray,
    LatentBounds,
    Letters,
    MixtureCounts,
    Moments,
    NoisySums,
    PrivacySettings,
    Prototypes,
    Scores,
)
from shoal.core.exchange.payload import BlobRef, Part, Payload, Settings, Weights
from shoal.core.exchange.tensors import DTYPES, TensorSpec, digest, layout, manifest_of, pack, unpack
from shoal.core.exchange.wire.observing import STAGES
from shoal.core.exchange.wire.payload import KINDS
from shoal.core.types import Array, Tensors


def same(one: Any, other: Any) -> bool:
    """Equal in type and value, down to the last bit of an array; NaN is the same as NaN."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return (
            one.dtype == other.dtype and one.shape == other.shape and bool(one.tobytes() == other.tobytes())
        )
    if type(one) is not type(other):
        return False
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1.0, one) == math.copysign(1.0, other)
        )
    return bool(one == other)


class Blobs:
    """Tensors by their hash, in memory: what `encode` keeps and `decode` loads."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.kept = 0

    def keep(self, tensors: Tensors) -> Weights:
        self.kept += 1
        data, name = b"".join(pack(tensors)), digest(tensors)
        self.held[name] = data
        return Weights(manifest_of(tensors), BlobRef(name, len(data)))

    def load(self, weights: Weights) -> Tensors:
        return unpack(weights.manifest, memoryview(self.held[weights.blob.sha256]))


finite = st.floats(allow_nan=False, allow_infinity=False)
floats = st.floats()
names = st.text(min_size=1, max_size=20)
texts = st.text(max_size=40)
counts = st.integers(0, 1 << 40)
scalars = st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | floats | texts
sha256s = st.binary(min_size=32, max_size=32).map(bytes.hex)
milliseconds = st.integers(0, 10**8).map(lambda value: value / 1000)
within_an_hour = st.integers(1000, 3_600_000).map(lambda value: value / 1000)
"""Seconds as a device takes them as they are, where others would make it spin or sleep for days."""


def vectors(length: int) -> st.SearchStrategy[FloatArray]:
    return st.lists(finite, min_size=length, max_size=length).map(lambda values: np.array(values, float))


def matrices(rows: int, columns: int) -> st.SearchStrategy[FloatArray]:
    return vectors(rows * columns).map(lambda values: values.reshape(rows, columns))


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    dtype = DTYPES[draw(st.sampled_from(list(DTYPES)))]
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    size = math.prod(shape)
    if dtype.kind == "b":
        data = bytes(draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)))
    else:
        data = draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize))
    return np.frombuffer(data, dtype).reshape(shape)


tensors: st.SearchStrategy[Tensors] = st.dictionaries(names, arrays(), max_size=4)


@st.composite
def weights(draw: st.DrawFn) -> Weights:
    shapes = st.lists(st.integers(0, 1 << 20), max_size=3).map(tuple)
    specs = st.builds(TensorSpec, names, st.sampled_from(list(DTYPES)), shapes)
    manifest = tuple(draw(st.lists(specs, max_size=4, unique_by=lambda spec: spec.name)))
    size = layout(manifest)[1]
    while size >= 1 << 64:  # no blob is as long as that
        manifest, size = manifest[1:], layout(manifest[1:])[1]
    return Weights(manifest, BlobRef(draw(sha256s), size))


@st.composite
def bounds(draw: st.DrawFn) -> LatentBounds:
    one, other = draw(st.integers(1, 5).flatmap(lambda n: st.tuples(vectors(n), vectors(n))))
    provenance = draw(st.sampled_from(["raw", "public", "private"]))
    return LatentBounds(np.minimum(one, other), np.maximum(one, other), provenance, draw(st.integers(0, 9)))


privacies = st.just(PrivacySettings()) | st.builds(
    PrivacySettings, st.just("paper"), st.floats(min_value=1e-300, max_value=1e300)
)


guarantees = st.sampled_from(
    [PrivacySettings("balanced", 5.0, 1e-6), PrivacySettings("strict", 1.0, 1e-6)]
) | st.builds(
    PrivacySettings, st.just("explicit"), st.floats(1e-9, 1e9), st.floats(1e-300, 0.5), st.integers(1, 9)
)
whole_sums = st.integers(-(1 << 61), 1 << 61)
scales = st.floats(1e-9, 1e9)


@st.composite
def descriptors(draw: st.DrawFn) -> Descriptor:
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    moments = matrices(rows, columns)
    if draw(st.booleans()):
        sums = draw(
            st.lists(whole_sums, min_size=rows * (2 * columns + 1), max_size=rows * (2 * columns + 1))
        )
        noisy = NoisySums(np.array(sums).reshape(rows, -1), draw(scales), draw(scales))
        return Descriptor(noisy, draw(sha256s), draw(guarantees))
    return Descriptor(
        Moments(draw(moments), draw(moments), draw(vectors(rows))), draw(sha256s), draw(privacies)
    )


distances = finite | st.just(math.nan)
assignments = st.builds(
    ClusterAssignment, names, distances, texts, distances, st.floats(0.0, 1.0), st.booleans(), texts
)
ballots = st.builds(Ballot, names, st.floats(1e-300, 1e300))
scores = st.builds(Scores, st.integers(0, 5).flatmap(vectors), counts)


@st.composite
def prototypes(draw: st.DrawFn) -> Prototypes:
    classes = sorted(draw(st.sets(st.integers(0, (1 << 32) - 1), min_size=1, max_size=4)))
    means = draw(matrices(len(classes), draw(st.integers(1, 4))))
    encoder = draw(st.sampled_from(["", "0" * 64, "af" * 32]))
    return Prototypes(np.array(classes, np.float64), means, draw(vectors(len(classes))), encoder)


mixtures = st.tuples(st.integers(1, 4), st.integers(1, 4)).flatmap(
    lambda shape: matrices(*shape).map(MixtureCounts)
)
letters = st.builds(Letters, st.dictionaries(texts, st.binary(max_size=40), max_size=3))
extensions = st.builds(Extension, names, st.binary(max_size=40))
PARTS: Mapping[str, st.SearchStrategy[Part]] = {
    "scalar": scalars,
    "weights": weights(),
    "weights_list": st.lists(weights(), min_size=1, max_size=3).map(tuple),
    "numbers": st.lists(floats, max_size=5).map(tuple),
    "settings": st.dictionaries(names, scalars, max_size=4).map(Settings),
    "latent_bounds": bounds(),
    "descriptor": descriptors(),
    "cluster_assignment": assignments,
    "scores": scores,
    "prototypes": prototypes(),
    "mixture_counts": mixtures,
    "extension": extensions,
    "ballot": ballots,
    "letters": letters,
}
"""By the arm of `Part` in which it travels."""
kinds = names.filter(lambda name: name not in KINDS)
"""Of messages that have none of their own on the wire; of those that have one, the parts are not free."""
payloads = st.builds(Payload, kinds, st.dictionaries(names, st.one_of(*PARTS.values()), max_size=4))

settings = st.builds(
    TrainingSettings,
    st.integers(1, 1 << 40),
    st.integers(1, 1 << 40),
    st.floats(1e-9, 1e9),
    st.floats(0.0, 0.999),
    st.floats(0.0, 1e9),
    restart_momentum=st.booleans(),
    optimizer=st.sampled_from(OPTIMIZERS),
)
above = st.floats(0.1, 1e4)
private = st.builds(PrivateTraining, above, above, st.just(0.0), st.floats(1e-12, 0.5)) | st.builds(
    PrivateTraining, above, st.just(0.0), above, rounds=st.integers(1, 1 << 40)
)
protected = st.builds(Protected, above, above, st.floats(1e-9, 1.0), st.integers(1, 1 << 40))
data_parts = st.sampled_from(["train", "held_out", "test"])
asked_bounds = st.sampled_from(["", "scalar"])
curves = st.none() | st.lists(floats, max_size=40).map(tuple)
messages: Mapping[type[Message], st.SearchStrategy[Message]] = {
    Build: st.builds(Build, st.none() | st.integers(2, 64)),
    Built: st.builds(
        Built, tensors, graph=st.none() | tensors, untraced=st.none() | texts, encoder=st.none() | tensors
    ),
    Train: st.builds(
        Train, tensors, settings, texts, st.none() | tensors, counts, privacies, st.none() | private
    ),
    Trained: st.builds(
        Trained, tensors, counts, floats, st.none() | descriptors(), st.none() | protected, curves
    ),
    Evaluate: st.builds(Evaluate, tensors, data_parts, texts, asked_bounds, st.none() | st.booleans())
    | st.builds(Evaluate, tensors, data_parts, texts, rho=st.floats(MIN_RHO, MAX_RHO)),
    Evaluated: st.builds(
        Evaluated,
        floats,
        floats,
        counts,
        st.none() | bounds(),
        counts,
        st.none() | floats,
        st.none() | floats,
        st.none() | floats,
    ),
    CountLatents: st.builds(CountLatents, tensors),
    LatentsCounted: st.builds(LatentsCounted, counts),
    Ensemble: st.lists(st.tuples(tensors, st.floats(0.1, 1e9)), min_size=1, max_size=3).map(
        lambda pairs: Ensemble(tuple(model for model, _ in pairs), tuple(weight for _, weight in pairs))
    ),
    Describe: st.builds(Describe, tensors, tensors, counts, privacies),
    Described: st.builds(Described, descriptors(), counts),
    Score: st.builds(Score, st.lists(tensors, max_size=3).map(tuple)),
    Scored: st.builds(Scored, scores),
    Summarize: st.builds(Summarize),
    Summarized: st.just(Summarized((0.5, -2.0), (1.0, 0.0), (3.0, 0.5))),
    Represent: st.builds(Represent, st.booleans(), st.none() | tensors, st.none() | texts),
    Represented: st.builds(Represented, prototypes(), counts),
}

hellos = st.builds(Hello, texts, st.just(1), st.integers(1, 9), texts)
welcomes = st.builds(
    Welcome,
    texts,
    st.integers(1, 9),
    names,
    *[within_an_hour] * 2,
    milliseconds,
    mark=texts,
    addresses=st.lists(names, max_size=16).map(tuple),
)
lease = (names, st.integers(1, 1 << 31), st.integers(0, 1 << 31))
tasks = st.builds(Task, *lease, st.integers(0, (1 << 63) - 1), texts, payloads)
idles = st.tuples(within_an_hour, within_an_hour).flatmap(
    lambda window: st.builds(
        Idle,
        texts,
        st.just(min(window)),
        st.just(max(window)),
        st.booleans(),
        st.none() | st.lists(names, max_size=3).map(tuple),
    )
)
reports = st.builds(Report, *lease, payloads | st.builds(Failure, names, texts, texts))
receipts = st.builds(Receipt, st.sampled_from(Outcome), texts)
stages = st.sampled_from(list(STAGES.values()))
observed = st.builds(ObservedRun, names, names, stages, st.integers(1, 1 << 31), texts)
observations = st.lists(observed, max_size=3).map(tuple)
wishes = st.builds(
    Wish,
    st.integers(1, MAX_MODELS),
    moved=st.none() | st.builds(Moved, st.text("ab@1", min_size=1), st.text("c0"), st.booleans()),
)
answers = st.builds(Question, names, payloads) | st.builds(Placement, names, assignments, weights())

DECODERS: Mapping[type[Protobuf], Callable[[Any], Any]] = {
    payload_pb2.Payload: wire.payload_from_pb,
    parts_pb2.Scalar: wire.scalar_from_pb,
    parts_pb2.Weights: wire.weights_from_pb,
    tensor_pb2.BlobRef: wire.blob_from_pb,
    tensor_pb2.Chunk: lambda pb: wire.chunk_from_pb(pb, 0),
    task_pb2.Lease: wire.lease_from_pb,
    task_pb2.Report: wire.report_from_pb,
    task_pb2.Receipt: wire.receipt_from_pb,
    fault_pb2.Fault: wire.fault_from_pb,
    device_service_pb2.HelloRequest: wire.hello_from_pb,
    device_service_pb2.HelloResponse: wire.welcome_from_pb,
    device_service_pb2.NextTaskResponse: wire.next_from_pb,
    placement_service_pb2.PlaceRequest: wire.place_from_pb,
    placement_service_pb2.PlaceResponse: wire.answer_from_pb,
    observer_service_pb2.ObserveRunsResponse: wire.observation_from_pb,
}
"""Every message that has a decoder, and the decoder."""
