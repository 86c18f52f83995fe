"""What a device has trained, in fewer bytes: how near it comes, what a peer may send, and that no bit is lost
for good with error feedback."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import BadPayload
from shoal.core.exchange.admit import admit_message, admit_payload
from shoal.core.exchange.encoding.messages import TrainedEncoded, TrainEncoded
from shoal.core.exchange.encoding.updates import BLOCK, ENCODINGS, Decoded, Merged, encoded, shape_of
from shoal.core.exchange.messages import TrainingSettings
from shoal.core.exchange.payload import BlobRef, Weights, encode
from shoal.core.exchange.tensors import digest, manifest_of, nbytes
from shoal.core.types import Array, Tensors

CODED = tuple(each for each in ENCODINGS if each != "full")
RELATIVE = {"bf16": 2.0**-8, "fp16": 2.0**-11}


def model(seed: int, scale: float = 1.0) -> dict[str, Array]:
    chance = np.random.default_rng(seed)
    return {
        "conv.weight": (scale * chance.normal(size=(7, 3, 5))).astype(np.float32),
        "norm.count": np.array(seed, np.int64),
        "fc.weight": (scale * chance.normal(size=(300, 3))).astype(np.float64),
        "fc.bias": (scale * chance.normal(size=3)).astype(np.float32),
    }


def moved(seed: int, scale: float) -> dict[str, Array]:
    """`model(1)` after some training."""
    step = model(seed, scale)
    found = {name: array + step[name] for name, array in model(1).items()}
    return {name: array.astype(model(1)[name].dtype) for name, array in found.items()}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_model_comes_back_nearly(encoding: str) -> None:
    reference, trained = model(1), moved(2, 0.01)
    parts, _ = encoded(trained, reference, encoding)
    found = Decoded(manifest_of(trained), parts, reference, encoding)
    assert manifest_of(parts) == shape_of(manifest_of(trained), encoding)
    assert manifest_of(dict(found)) == manifest_of(trained)
    assert found["norm.count"] == trained["norm.count"]
    for name in ("conv.weight", "fc.weight", "fc.bias"):
        error = np.abs(found[name] - trained[name])
        step = np.abs(trained[name].astype(np.float64) - reference[name])
        if encoding == "full":
            assert not error.any()
        elif encoding == "int8":
            assert error.max() <= step.max() / 127 / 2 + 1e-7  # half a step of the block's largest number
        else:
            assert (error <= RELATIVE[encoding] * step + 1e-7).all()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_part_of_a_tensor_has_the_bits_of_the_whole(encoding: str) -> None:
    reference, trained = model(1), moved(2, 0.01)
    parts, _ = encoded(trained, reference, encoding)
    found = Decoded(manifest_of(trained), parts, reference, encoding)
    merged = Merged(manifest_of(trained), found, reference)
    for name, array in trained.items():
        whole = found[name].reshape(-1)
        for start, stop in ((0, array.size), (0, 1), (array.size // 3, array.size), (255, 258), (256, 600)):
            block = slice(min(start, array.size), min(stop, array.size))
            for each in (found, merged):
                assert each.part(name, block).tobytes() == whole[block].tobytes()


def test_the_bytes_are_a_half_and_a_quarter() -> None:
    reference = {"weight": np.zeros((512, 256), np.float32)}
    sizes = {each: nbytes(encoded(reference, reference, each)[0]) for each in ENCODINGS}
    full = 512 * 256 * 4
    assert sizes == {"full": full, "bf16": full // 2, "fp16": full // 2, "int8": full // 4 + 512 * 4}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_same_model_gives_the_same_bytes(encoding: str) -> None:
    digests = {digest(encoded(moved(3, 0.1), model(1), encoding)[0]) for _ in range(2)}
    assert len(digests) == 1


def test_bf16_rounds_to_the_nearest_and_ties_to_even() -> None:
    # 1 + 2^-7 is the next number after 1. Half of the way between two numbers goes to the even one.
    values = np.array([1.0, 1.0 + 2**-7, 1.0 + 2**-8, 1.0 + 3 * 2**-8, -2.0, 0.0, 1e-40], np.float32)
    zeros = {"w": np.zeros_like(values)}
    parts, _ = encoded({"w": values}, zeros, "bf16")
    found = Decoded(manifest_of(zeros), parts, zeros, "bf16")["w"]
    assert found[:6].tolist() == [1.0, 1.0 + 2**-7, 1.0, 1.0 + 2**-6, -2.0, 0.0]
    assert abs(found[6] - 1e-40) <= 1e-40 * 2**-2


def test_each_block_has_a_scale_of_its_own() -> None:
    values = np.concatenate([np.full(BLOCK, 1e-6), np.full(BLOCK, 1e3), [5.0]]).astype(np.float32)
    zeros = {"w": np.zeros_like(values)}
    parts, _ = encoded({"w": values}, zeros, "int8")
    assert parts["scales"].shape == (3,)
    assert np.allclose(Decoded(manifest_of(zeros), parts, zeros, "int8")["w"], values, rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.floats(1e-6, 10.0))
def test_error_feedback_sends_later_what_a_round_lost(seed: int, scale: float) -> None:
    """What has arrived after many rounds differs from what was trained by what is carried, and no more."""
    zeros: Tensors = {"w": np.zeros(600, np.float64)}
    chance, carried = np.random.default_rng(seed), None
    arrived, trained = np.zeros(600), np.zeros(600)
    for _ in range(8):
        step = scale * chance.standard_cauchy(600)
        parts, carried = encoded({"w": step}, zeros, "int8", carried)
        arrived += Decoded(manifest_of(zeros), parts, zeros, "int8")["w"]
        trained += step
    assert carried is not None
    assert np.allclose(arrived + carried, trained, rtol=1e-5, atol=1e-5 * np.abs(trained).max())


# -- what a peer may send -----------------------------------------------------------------------------------


def task(encoding: str) -> TrainEncoded:
    return TrainEncoded(model(1), TrainingSettings(), encoding=encoding)


def answer(encoding: str, **changes: Array) -> TrainedEncoded:
    parts, _ = encoded(moved(2, 0.01), model(1), encoding)
    return TrainedEncoded({**parts, **changes}, 10, 0.5)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_honest_answer_is_admitted(encoding: str) -> None:
    reply = answer(encoding)
    admit_payload(task(encoding), encode(reply, kept))
    admit_message(task(encoding), reply)


def kept(tensors: Tensors) -> Weights:
    return Weights(manifest_of(tensors), BlobRef("0" * 64, nbytes(tensors)))


@pytest.mark.parametrize("encoding", CODED)
def test_an_answer_in_another_encoding_is_refused(encoding: str) -> None:
    others = [each for each in ENCODINGS if each != encoding]
    for other in others:
        with pytest.raises(BadPayload):
            admit_payload(task(encoding), encode(answer(other), kept))


HUGE = np.float32(3e38)
NOT_FINITE: dict[str, dict[str, Any]] = {
    "bf16": {"codes": np.full(1008, 0x7F80, np.int16)},
    "fp16": {"codes": np.full(1008, np.inf, np.float16)},
    "int8": {"scales": np.full(6, HUGE)},
}


@pytest.mark.parametrize("encoding", CODED)
def test_numbers_that_are_not_finite_are_refused(encoding: str) -> None:
    with pytest.raises(BadPayload, match="NaN or infinite"):
        admit_message(task(encoding), answer(encoding, **NOT_FINITE[encoding]))


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(BadPayload, match="int3"):
        task("int3")


def test_parts_of_another_network_are_refused() -> None:
    whole = model(1)
    own = {"fc.bias": whole["fc.bias"]}
    rest = {name: whole[name] for name in ("conv.weight", "norm.count", "fc.weight")}
    assert digest(Merged(manifest_of(whole), own, rest)) == digest(whole)
    for wrong in ({**rest, "more": whole["fc.bias"]}, {"fc.weight": whole["fc.weight"]}):
        with pytest.raises(BadPayload, match="not those of this network"):
            Merged(manifest_of(whole), own, wrong)
