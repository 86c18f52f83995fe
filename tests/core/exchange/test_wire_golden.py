"""Recorded bytes of every kind of message: what one version wrote, every later one reads as the same value.

A message may have gained fields since: what is not in the bytes has its default. To add a message, put it
into GOLDEN and run `python -m tests.core.exchange.test_wire_golden`: that records what is missing in
tests/golden and never touches a file that is there. A file is removed, or a value here changed, only
together with the protocol version that wrote it.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message as Protobuf

from shoal.core.algorithms.fedrc.messages import Measure, Measured, Mix, Mixed, Mixing, Weigh
from shoal.core.algorithms.feroma.messages import Profile
from shoal.core.algorithms.flux.messages import TrainMixture
from shoal.core.errors import StaleReport
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2, payload_pb2
from shoal.core.exchange.choosing import Choose, Chosen, Counted, Wish
from shoal.core.exchange.choosing.compact import ChooseCompact, compact
from shoal.core.exchange.choosing.tuning import Tune, Tuned
from shoal.core.exchange.choosing.vote import Vote, Voted
from shoal.core.exchange.choosing.watching import Moved
from shoal.core.exchange.encoding.messages import TrainedEncoded, TrainEncoded
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
    Trial,
    Welcome,
)
from shoal.core.exchange.messages import (
    Build,
    Built,
    CountLatents,
    Describe,
    Described,
    Ensemble,
    Evaluate,
    Evaluated,
    HeldOut,
    LatentsCounted,
    Message,
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
    Ballot,
    ClusterAssignment,
    Descriptor,
    Extension,
    LatentBounds,
    Letters,
    MixtureCounts,
    Moments,
    NoisySums,
    PrivacySettings,
    Prototypes,
    Scores,
)
from shoal.core.exchange.payload import BlobRef, Payload, Settings, Weights, decode, encode
from shoal.core.exchange.summing import (
    Announce,
    Announced,
    Masked,
    Share,
    Shared,
    TrainMasked,
    Unmask,
    Unmasked,
)
from shoal.core.exchange.tensors import DTYPES, TensorSpec, layout
from shoal.core.exchange.wire.payload import KINDS
from shoal.core.privacy.asks import Asks, RunTerms
from shoal.core.rollout import Counts
from shoal.core.types import Tensors
from tests.core.exchange.wire_values import DECODERS, Blobs, same

TERMS = str(RunTerms("fedavg", "shoal-fed", (), Asks(20, opened=("weights",))))
FOLDER = Path(__file__).parents[3] / "proto/vectors/messages"

MODEL: Tensors = {"w": np.array([[1.5, -0.0]], np.float32), "steps": np.array(3)}
PROJECTOR: Tensors = {"mean": np.zeros(2), "components": np.eye(2)}
DENSITIES: Tensors = {
    "shares": np.array([[0.25], [0.5]]),
    "means": np.array([[[1.0, -1.0]], [[0.0, 0.5]]]),
    "variances": np.array([[[0.25, 2.0]], [[1.0, 1.0]]]),
}
PAPER = PrivacySettings("paper", 5.0)
DESCRIPTOR = Descriptor(
    Moments(
        np.array([[0.5, -1.0], [0.25, 1e-300]]), np.array([[1.0, 2.0], [0.0, 3.5]]), np.array([40.0, 12.5])
    ),
    "ab" * 32,
    PAPER,
)
BOUNDS = LatentBounds(np.array([-1.0, 0.0]), np.array([0.0, 2.5]), "private", 2)
SCORES = Scores(np.array([0.5, 2.25]), 40)
PROTOTYPES = Prototypes(np.array([0.0, 7.0]), np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([5.0, 6.0]))
MESSAGES: Mapping[type[Message], Message] = {
    Build: Build(),
    Built: Built(MODEL),
    Train: Train(MODEL, TrainingSettings(3, 32, 0.01, 0.8, 1e-4, True), "c1", PROJECTOR, 10, PAPER),
    Trained: Trained(MODEL, 120, 0.75, DESCRIPTOR),
    Evaluate: Evaluate(MODEL, "test", "c0", "scalar"),
    Evaluated: Evaluated(0.875, 0.5, 40, BOUNDS, 84),
    CountLatents: CountLatents(MODEL),
    LatentsCounted: LatentsCounted(84),
    Ensemble: Ensemble((MODEL, MODEL), (3.0, 0.5), "held_out"),
    Describe: Describe(MODEL, PROJECTOR, 10, PAPER),
    Described: Described(DESCRIPTOR, 120),
    Score: Score((MODEL, PROJECTOR)),
    Scored: Scored(SCORES),
    Summarize: Summarize(),
    Summarized: Summarized((0.5, -2.0), (1.0, 0.25), (10.0, 3.0)),
    Represent: Represent(False),
    Represented: Represented(PROTOTYPES, 11),
    Chosen: Chosen(
        ClusterAssignment("c1", runner_up="c0", confidence=0.75, reason="chosen on this device"),
        (0.25, 1.5, 0.5),
        (0.125, 0.0, 0.25),
        (0.25, 0.75, 0.0),
        (0.5, 0.875, 0.625),
        40,
    ),
    Tune: Tune(MODEL, TrainingSettings(5, 32, 0.01, 0.8, 1e-4, True), "c1"),
    Tuned: Tuned(0.5, 0.25, 40, MODEL),
}
CHOICE = Choose((MODEL, MODEL, MODEL), "c0 c1 global", (3.0, 1.5))
NEAR: Mapping[str, Message] = {
    "choose_undescribed": compact(CHOICE),
    "chosen_likelihood": replace(MESSAGES[Chosen], likelihood=(-0.5, 0.0), spread=1.25),
    "tuned_nothing": Tuned(0.5, 0.625, 40),
    "chosen_model": replace(MESSAGES[Chosen], model=MODEL),
    "chosen_mixture": replace(
        MESSAGES[Chosen], model=MODEL, mixture=(0.25, 0.75, 0.0), others=(MODEL, PROJECTOR)
    ),
}
"""Of runs that know where their clusters' data lie."""
BALLOT = Ballot("c1", 1.5)
COUNTED = Counted("4f", "c1", Counts(900, 850, 40, 30, 32, 28))
COMPACT = compact(replace(CHOICE, encoder=MODEL, projector=PROJECTOR, densities=DENSITIES))
assert COMPACT.encoder is not None
assert COMPACT.projector is not None
assert COMPACT.densities is not None
MESSAGES = {
    **MESSAGES,
    ChooseCompact: COMPACT,
    Vote: Vote("c0 c1", 1.5, COMPACT.encoder, COMPACT.projector, COMPACT.densities),
    Voted: Voted(BALLOT),
}
LETTERS = Letters({"": b"\x07" * 32, "bean": bytes(range(82)), "ox": b"\xff" * 82})
MESSAGES = {
    **MESSAGES,
    Announce: Announce("round 3, attempt 1"),
    Announced: Announced(Letters({"": bytes(range(100))})),
    Share: Share("round 3, attempt 1", Letters({"ant": b"k" * 70, "bean": b"l" * 70})),
    Shared: Shared(LETTERS),
    TrainMasked: TrainMasked(
        MODEL,
        TrainingSettings(3, 32, 0.01, 0.8, 1e-4, True),
        "round 3, attempt 1",
        LETTERS,
        1.5,
        0.25,
        "c1",
        PROJECTOR,
        10,
        PAPER,
    ),
    Masked: Masked({"sum": np.array([1, -(1 << 31)], np.int32)}, DESCRIPTOR),
    Unmask: Unmask("round 3, attempt 1", Letters({"ant": b"", "bean": b""})),
    Unmasked: Unmasked(Letters({"ant": b"s" * 33})),
}
MIX = MixtureCounts(np.array([[1.0, 0.5], [0.0, 2.5]]))
OF_ALGORITHMS = (
    TrainMixture((MODEL, MODEL), (0.25, 0.75), TrainingSettings(optimizer="adamw"), "c1"),
    Profile(MODEL, PROJECTOR, 10, PAPER, "held_out", 4),
    Mix((MODEL, MODEL), "m0 m1", Mixing(2, "equal", adam=True), TrainingSettings(), MIX),
    Mixed((MODEL,), "m1", MIX, 4, 0.5, SCORES),
    Measure((MODEL, MODEL), "m0 m1", Mixing(2), table=MIX, predict="tuned"),
    Measured(0.5, 0.25, 40, ensemble=0.5, hard=0.25, tuned=0.75),
    Weigh((MODEL, MODEL), "m0 m1", Mixing(2), MIX),
)
MESSAGES = {
    **MESSAGES,
    TrainEncoded: TrainEncoded(MODEL, TrainingSettings(), "c1", encoding="int8", frozen=PROJECTOR),
    TrainedEncoded: TrainedEncoded(
        {"codes": np.array([127, -1], np.int8)}, 120, 0.75, held_out=HeldOut(0.875, 0.25, 30)
    ),
    **{type(message): message for message in OF_ALGORITHMS},
}
SPECS = tuple(TensorSpec(f"layer.{dtype}", dtype, (2, 3)) for dtype in DTYPES)
WEIGHTS = Weights(SPECS, BlobRef("0123456789abcdef" * 4, layout(SPECS)[1]))
PARTS = Payload(
    "every part",
    {
        "boolean": True,
        "integer": -(1 << 63),
        "number": math.inf,
        "text": "Gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n \N{FISH}",
        "weights": WEIGHTS,
        "weights_list": (WEIGHTS, Weights((), BlobRef("f" * 64, 0))),
        "numbers": (0.25, math.nan, -math.inf),
        "settings": Settings({"a": False, "b": 7, "c": 0.5, "d": ""}),
        "bounds": BOUNDS,
        "raw_bounds": LatentBounds(np.array([-3.0]), np.array([3.0])),
        "descriptor": DESCRIPTOR,
        "label_free": Descriptor(Moments(np.ones((1, 3)), np.zeros((1, 3)), np.array([9.0])), "00" * 32),
        "assignment": ClusterAssignment("c1", 0.5, "c0", 2.0, 0.75, True, "far from all"),
        "sole_cluster": ClusterAssignment("c0"),
        "scores": SCORES,
        "prototypes": PROTOTYPES,
        "mixture": MixtureCounts(np.array([[1.0, 0.5], [0.0, 2.5]])),
        "extension": Extension("acme.nova.v1.Sketch", b"\x00\xff"),
    },
)
CALIBRATED = Payload(
    "calibrated",
    {
        "full": Descriptor(
            NoisySums(np.array([[7, -1, 1 << 40], [1 << 30, 0, -(1 << 61)]]), 1.25, 0.5),
            "cd" * 32,
            PrivacySettings("explicit", 4.0, 1e-7, 2),
        ),
        "label_free": Descriptor(
            NoisySums(np.array([[1 << 30, -5, 1 << 29, 3, 1 << 30]]), 4.5, 1.0),
            "cd" * 32,
            PrivacySettings("strict", 1.0, 1e-6),
        ),
    },
)
PAYLOAD = Payload("evaluate", {"part": "test"})
TERMS = '{"algorithm": "fedavg", "parameters": {"rounds": 20}}'

GOLDEN: Mapping[str, tuple[Any, Any]] = {
    "payload_every_part": (PARTS, wire.payload_to_pb),
    "payload_calibrated": (CALIBRATED, wire.payload_to_pb),
    **{
        f"payload_{name}": (message, lambda message: wire.payload_to_pb(encode(message, Blobs().keep)))
        for name, message in ({cls.kind: message for cls, message in MESSAGES.items()} | NEAR).items()
    },
    "hello": (Hello("fedclient 0.1", 1, 3), wire.hello_to_pb),
    "welcome": (Welcome("fedserver 0.1", 1, "c2Vzc2lvbg", 20.0, 7.5), wire.welcome_to_pb),
    "hello_mark": (Hello("fedclient 0.1", mark="7.a1b2.90.c3"), wire.hello_to_pb),
    "welcome_mark": (
        Welcome("fedserver 0.1", 1, "c2Vzc2lvbg", 20.0, 7.5, mark="7.a1b2.91.d4"),
        wire.welcome_to_pb,
    ),
    "receipt_mark": (Receipt(Outcome.ACCEPTED, mark="7.a1b2.92.e5"), wire.receipt_to_pb),
    "task": (Task("run-1", 4, 2, (1 << 63) - 1, "warm-up 4 of 10", PAYLOAD, TERMS), wire.next_to_pb),
    "idle": (Idle("2 of 3 devices are here", 0.25, 30.0, True), wire.next_to_pb),
    "idle_going_on": (Idle("2 of 3", 0.25, 30.0, False, ("flux", "fedrc-2")), wire.next_to_pb),
    "lease": (wire.Lease("run-1", 4, 2), wire.lease_to_pb),
    "task_inline": (
        Task("run-1", 4, 2, 7, "", PAYLOAD, TERMS, (b"\x01\x02", b"\x03"), 1 << 18),
        wire.next_to_pb,
    ),
    "report": (Report("run-1", 4, 2, PAYLOAD), wire.report_to_pb),
    "report_inline": (Report("run-1", 4, 2, PAYLOAD, (b"\x01\x02\x03",)), wire.report_to_pb),
    "report_failure": (
        Report("run-1", 4, 2, Failure("learner-failed", "no", "Traceback: ...")),
        wire.report_to_pb,
    ),
    **{f"receipt_{outcome.value}": (Receipt(outcome, "why"), wire.receipt_to_pb) for outcome in Outcome},
    "place": (("run-1", DESCRIPTOR), lambda asked: wire.place_to_pb(*asked)),
    "place_scores": (("run-1", SCORES), lambda asked: wire.place_to_pb(*asked)),
    "place_prototypes": (("run-1", PROTOTYPES), lambda asked: wire.place_to_pb(*asked)),
    "place_wish": (("run-1", Wish(64)), lambda asked: wire.place_to_pb(*asked)),
    "place_ballot": (("run-1", BALLOT), lambda asked: wire.place_to_pb(*asked)),
    "place_wish_moved": (
        ("run-1", Wish(64, moved=Moved("run-1@10", "c0", True))),
        lambda asked: wire.place_to_pb(*asked),
    ),
    "place_wish_own": (("run-1", Wish(64, own=True)), lambda asked: wire.place_to_pb(*asked)),
    "place_wish_counted": (("stable", Wish(64, counted=COUNTED)), lambda asked: wire.place_to_pb(*asked)),
    "place_first": (("", None), lambda asked: wire.place_to_pb(*asked)),
    "question": (Question("run-1", PAYLOAD), wire.answer_to_pb),
    "question_terms": (Question("run-1", PAYLOAD, terms=TERMS), wire.answer_to_pb),
    "question_trial": (Question("run-1", PAYLOAD, trial=Trial("4f", "run-1@3")), wire.answer_to_pb),
    "placement_trial": (
        Placement("run-1", ClusterAssignment("c1", 0.5), WEIGHTS, trial=Trial("4f", "run-1@3", ("c0",))),
        wire.answer_to_pb,
    ),
    "placement": (Placement("run-1", ClusterAssignment("c1", 0.5), WEIGHTS), wire.answer_to_pb),
    "placement_abstained": (
        Placement("run-1", ClusterAssignment("c1", 9.0, abstained=True, reason="far"), None),
        wire.answer_to_pb,
    ),
    "observation": (
        (ObservedRun("run-1", "flux", "open", 4, "warm-up 4 of 10"),),
        wire.observation_to_pb,
    ),
    "blob": (BlobRef("5a" * 32, 1 << 40), wire.blob_to_pb),
    "chunk": (bytes(range(16)), lambda data: wire.chunk_to_pb(0, data)),
    "scalar": (-7, wire.scalar_to_pb),
    "weights": (WEIGHTS, wire.weights_to_pb),
    "fault": (StaleReport("round 3 is not open", "ask for the next task"), wire.fault_to_pb),
}
"""File name -> what its bytes mean, and the encoder that wrote them."""


def decoded(name: str) -> Any:
    value, encoder = GOLDEN[name]
    cls: type[Protobuf] = type(encoder(value))
    return DECODERS[cls](cls.FromString((FOLDER / f"{name}.bin").read_bytes()))


@pytest.mark.parametrize("name", GOLDEN)
def test_recorded_bytes_mean_what_they_meant(name: str) -> None:
    value, found = GOLDEN[name][0], decoded(name)
    if isinstance(value, Exception):
        assert (type(found), str(found)) == (type(value), str(value))
    elif isinstance(value, Message):
        blobs = Blobs()
        encode(value, blobs.keep)  # only to hold the tensors that the recorded bytes refer to
        assert same(decode(found, {value.kind: type(value)}, blobs.load), value)
    else:
        assert same(found, value)


def test_every_file_is_known_and_every_kind_is_recorded() -> None:
    assert {path.stem for path in FOLDER.glob("*.bin")} == set(GOLDEN)
    to_itself = {Chosen, Tuned, Voted}  # answers that a device gives only to itself
    assert {cls.kind for cls in MESSAGES} == {*KINDS, *(cls.kind for cls in to_itself)}
    assert {type(encoder(value)) for value, encoder in GOLDEN.values()} == set(DECODERS)
    voted = encode(MESSAGES[Voted], Blobs().keep)
    every = wire.payload_to_pb(Payload("all", {**PARTS.parts, **voted.parts, "letters": LETTERS}))
    arms = {part.WhichOneof("part") for part in every.custom.parts.values()}
    assert arms == {field.name for field in payload_pb2.Part.DESCRIPTOR.oneofs_by_name["part"].fields}


def test_a_chunk_can_be_written_by_hand_in_front_of_its_data() -> None:
    """What tensor.proto promises to senders that want to spare a copy: the data stand last."""
    recorded = (FOLDER / "chunk.bin").read_bytes()
    assert recorded.endswith(bytes(range(16)))
    upload = blob_service_pb2.UploadRequest(chunk=wire.chunk_to_pb(0, bytes(range(16))))
    assert upload.SerializeToString().endswith(recorded)


def record() -> None:
    """Write the files that are missing."""
    FOLDER.mkdir(exist_ok=True)
    for name, (value, encoder) in GOLDEN.items():
        path = FOLDER / f"{name}.bin"
        if not path.exists():
            path.write_bytes(encoder(value).SerializeToString(deterministic=True))
            print(f"recorded {path.name}")


if __name__ == "__main__":
    record()
