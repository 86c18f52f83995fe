"""Named arrays: one layout of bytes, one hash, and sums whose bits do not depend on how they were come by."""

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.core.errors import BadPayload
from shoal.core.exchange.tensors import (
    ALIGNMENT,
    BLOCK,
    DTYPES,
    MAX_TENSORS,
    Mixture,
    TensorSpec,
    check_finite,
    check_manifest,
    digest,
    layout,
    manifest_of,
    nbytes,
    pack,
    unpack,
    weighted_mean,
)
from shoal.core.types import Tensors
from tests.core.exchange import wire_values as values
from tests.core.exchange.wire_values import same

FROZEN: Tensors = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3) / 4,
    "bias": np.array([-0.0, 1e-45, 65504.0], np.float16),
    "steps": np.array(42, np.int64),
    "mask": np.array([True, False, True]),
    "empty": np.zeros((0, 5), np.float64),
}


def packed(tensors: Tensors) -> bytes:
    return b"".join(pack(tensors))


# -- layout ---------------------------------------------------------------------------------------------


def test_every_tensor_starts_at_a_multiple_of_the_alignment() -> None:
    assert layout(manifest_of(FROZEN)) == ([0, 64, 128, 192, 256], 256)
    assert layout(()) == ([], 0)


def test_packed_bytes_are_little_endian_and_padded_with_zeros() -> None:
    data = packed({"a": np.array([1], np.int16), "b": np.array([258], ">i4")})
    assert data == b"\x01\x00" + bytes(62) + b"\x02\x01\x00\x00"


@given(values.tensors)
def test_unpack_gives_back_what_was_packed(tensors: Tensors) -> None:
    data, manifest = packed(tensors), manifest_of(tensors)
    starts, size = layout(manifest)
    assert len(data) == size == nbytes(tensors)
    assert all(start % ALIGNMENT == 0 for start in starts)
    assert same(unpack(manifest, memoryview(data)), dict(tensors))


def test_arrays_in_any_memory_order_have_the_same_bytes() -> None:
    table = np.arange(12.0).reshape(3, 4)
    assert packed({"t": np.asfortranarray(table)}) == packed({"t": table}) == table.tobytes()
    assert packed({"t": table[:, ::2]}) == table[:, ::2].tobytes()


def test_unpacked_arrays_are_views_that_cannot_be_written() -> None:
    data = bytearray(packed(FROZEN))
    views = unpack(manifest_of(FROZEN), memoryview(data))
    data[0:4] = np.float32(9.0).tobytes()
    assert views["weight"][0, 0] == 9.0
    with pytest.raises(ValueError, match="read-only"):
        views["weight"][0, 0] = 1.0


@pytest.mark.parametrize("change", [-1, 1])
def test_bytes_of_another_length_are_refused(change: int) -> None:
    with pytest.raises(BadPayload, match=f"need 256 bytes, the data have {256 + change}"):
        unpack(manifest_of(FROZEN), memoryview(bytes(256 + change)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (("", "float32", ()), "1 to 256 characters, not 0"),
        (("x" * 257, "float32", ()), "1 to 256 characters, not 257"),
        (("w", "object", ()), "dtype 'object' is not known"),
        (("w", "complex64", ()), "use one of float16"),
        (("w", "float32", (-1,)), "is not possible"),
        (("w", "float32", (1 << 40,)), "is not possible"),
        (("w", "float32", (1,) * 9), "is not possible"),
    ],
)
def test_a_hostile_spec_cannot_be_made(fields: tuple[Any, ...], words: str) -> None:
    with pytest.raises(BadPayload) as caught:
        TensorSpec(*fields)
    assert words in str(caught.value)


def test_a_manifest_has_limits() -> None:
    specs = [TensorSpec(str(i), "uint8", ()) for i in range(MAX_TENSORS + 1)]
    assert len(layout(tuple(specs[:-1]))[0]) == MAX_TENSORS
    with pytest.raises(BadPayload, match="4097 tensors"):
        layout(tuple(specs))
    with pytest.raises(BadPayload, match="the same name"):
        layout((specs[0], specs[0]))


def test_an_array_of_objects_has_no_manifest() -> None:
    with pytest.raises(BadPayload, match="dtype 'object'"):
        manifest_of({"w": np.array([object()])})


# -- hash -----------------------------------------------------------------------------------------------


def test_the_hash_is_the_same_for_ever() -> None:
    assert digest(FROZEN) == "73df6841fcfa2f3d0a0621fd421caa82e601fee6b92a3dbe50ff4e01cb4b8527"


def test_the_hash_depends_on_order_and_value_and_not_on_byte_order() -> None:
    one = {"a": np.array([1.0, 2.0]), "b": np.array([3.0])}
    assert digest({"b": one["b"], "a": one["a"]}) != digest(one)
    assert digest({**one, "b": np.array([-3.0])}) != digest(one)
    assert digest({name: array.astype(">f8") for name, array in one.items()}) == digest(one)


# -- checks ---------------------------------------------------------------------------------------------

MANIFEST = (TensorSpec("w", "float32", (2, 3)), TensorSpec("b", "float32", (3,)))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (MANIFEST[:1], "the model lacks tensor 'b'"),
        ((*MANIFEST, TensorSpec("c", "int8", ())), "the model has an unknown tensor 'c'"),
        (MANIFEST[::-1], "another order (keep the order of the model: w, ...)"),
        (
            (TensorSpec("w", "float64", (2, 3)), MANIFEST[1]),
            "'w': float64 [2, 3], expected float32 [2, 3]",
        ),
        ((MANIFEST[0], TensorSpec("b", "float32", (4,))), "'b': float32 [4], expected float32 [3]"),
    ],
)
def test_the_first_tensor_that_differs_is_named(found: tuple[TensorSpec, ...], words: str) -> None:
    with pytest.raises(BadPayload) as caught:
        check_manifest(found, MANIFEST)
    assert words in str(caught.value)


def test_the_expected_manifest_passes() -> None:
    check_manifest(tuple(MANIFEST), MANIFEST)


def test_nan_and_infinity_are_counted_by_tensor() -> None:
    good = {"steps": np.array([1, 2]), "w": np.array([0.0, np.finfo(np.float32).max], np.float32)}
    check_finite(good)
    bad = {**good, "b": np.array([np.nan, 1.0, np.inf, -np.inf], np.float16)}
    with pytest.raises(BadPayload, match="the report, tensor 'b': 3 of 4 values are NaN or infinite"):
        check_finite(bad, "the report")


# -- means ----------------------------------------------------------------------------------------------


def test_a_mean_that_can_be_checked_by_hand() -> None:
    one, other = {"w": np.array([1.0, 10.0], np.float32)}, {"w": np.array([4.0, -2.0], np.float32)}
    mean = weighted_mean([(one, 1.0), (other, 2.0)])
    assert same(mean, {"w": np.array([3.0, 2.0], np.float32)})


def test_the_mean_of_one_is_that_one_in_every_dtype() -> None:
    tensors = {dtype: np.array([0, 1], DTYPES[dtype]) for dtype in DTYPES}
    assert same(weighted_mean([(tensors, 0.3)]), tensors)


def test_integers_are_averaged_and_rounded_to_the_nearest() -> None:
    parts: list[tuple[Tensors, float]] = [
        ({"n": np.array([0, 10, -7])}, 1.0),
        ({"n": np.array([2, 11, -6])}, 2.0),
    ]
    assert same(weighted_mean(parts), {"n": np.array([1, 11, -6])})


def test_sums_are_made_in_float64() -> None:
    """In float32 the small part would be lost: 2^24 + 1 has no float32."""
    parts = [({"w": np.array([value], np.float32)}, 1.0) for value in (2.0**24, 1.0, 1.0, -(2.0**24))]
    assert weighted_mean(parts)["w"][0] == 0.5
    halves = [({"w": np.array([60000.0], np.float16)}, 1.0)] * 3
    assert weighted_mean(halves)["w"][0] == np.float16(60000.0)


def test_the_result_has_the_dtypes_of_the_first_part() -> None:
    one, other = {"w": np.array([1.0], np.float16)}, {"w": np.array([2.0], np.float64)}
    assert weighted_mean([(one, 1.0), (other, 1.0)])["w"].dtype == np.float16


def test_a_tensor_longer_than_a_block_is_summed_to_its_end() -> None:
    ramp = np.arange(2 * BLOCK + 3, dtype=np.float64)
    mean = weighted_mean([({"w": ramp.reshape(1, -1)}, 1.0), ({"w": -3.0 * ramp.reshape(1, -1)}, 1.0)])
    assert np.array_equal(mean["w"], -ramp.reshape(1, -1))


def test_the_parts_are_not_written_to() -> None:
    part = {"w": np.array([1.0, 2.0])}
    part["w"].flags.writeable = False
    weighted_mean([(part, 2.0), (part, 1.0)])
    assert part["w"].tolist() == [1.0, 2.0]


def test_parts_are_taken_one_at_a_time() -> None:
    """A generator is read once, and no part is asked for before the one in front of it was added."""
    alive: list[int] = []

    def parts() -> Any:
        for number in range(3):
            array = np.array([float(number)])
            yield {"w": array}, 1.0
            array[0] = 1e9  # had the mean kept the part, it would now be wrong
            alive.append(number)

    assert weighted_mean(parts())["w"].tolist() == [1.0]
    assert alive == [0, 1, 2]


@given(
    st.lists(
        st.tuples(
            st.lists(st.floats(-1e30, 1e30), min_size=3, max_size=3),
            st.floats(0.0, 1e6).filter(lambda weight: weight == 0.0 or weight > 1e-6),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_the_mean_in_device_order_is_exact_and_has_the_same_bits_whatever_arrived_first(
    parts: list[tuple[list[float], float]],
) -> None:
    """Updates arrive in any order and lie in spooled files; the mean is taken in device order from there."""
    total = math.fsum(weight for _, weight in parts)
    assume(total > 0.0)
    heap = {f"d{i}": ({"w": np.array(row)}, weight) for i, (row, weight) in enumerate(parts)}
    spooled = {
        device: (unpack(manifest_of(tensors), memoryview(packed(tensors))), weight)
        for device, (tensors, weight) in reversed(heap.items())
    }
    mean = weighted_mean(heap[device] for device in sorted(heap))
    assert same(mean, weighted_mean(spooled[device] for device in sorted(spooled)))
    exact = [math.fsum(row[i] * weight for row, weight in parts) / total for i in range(3)]
    largest = max(abs(value) for row, _ in parts for value in row)
    assert np.allclose(mean["w"], exact, rtol=0.0, atol=1e-13 * largest)


@pytest.mark.parametrize("weights", [[], [0.0], [0.0, 0.0], [1.0, -1.0], [math.nan]])
def test_a_mean_needs_a_positive_weight(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="positive weight"):
        weighted_mean([({"w": np.ones(2)}, weight) for weight in weights])


# -- tensors that are made when they are asked for ------------------------------------------------------


def test_a_mixture_is_the_weighted_mean_bit_for_bit() -> None:
    chance = np.random.default_rng(0)
    parts: list[tuple[Tensors, float]] = [
        (
            {
                "w": chance.normal(size=(3, 5)).astype(np.float32),
                "half": chance.normal(size=4).astype(np.float16),
                "n": np.array(each, np.int64),
            },
            weight,
        )
        for each, weight in ((2, 0.3), (3, 0.2), (9, 0.5))
    ]
    mixture, mean = Mixture(parts), weighted_mean(parts)
    assert list(mixture) == list(mean)
    assert manifest_of(mixture) == mixture.manifest == manifest_of(mean)
    assert (digest(mixture), nbytes(mixture)) == (digest(mean), nbytes(mean))


def test_a_mixture_reads_its_parts_when_it_is_read_and_keeps_nothing() -> None:
    size, read = 1 << 20, list[str]()

    class Counted(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            read.append(name)
            return np.full(size, 2.0, np.float32)

    part = Counted({name: np.zeros(size, np.float32) for name in "abcdefgh"})
    mixture = Mixture([(part, 0.5)] * 40)
    assert manifest_of(mixture) == manifest_of(dict(part))
    assert read == []
    tracemalloc.start()
    try:
        for piece in pack(mixture):
            assert len(piece) == 4 * size
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(read) == 8 * 40
    assert peak < 12 * 4 * size, "a few tensors' worth, whatever the number of parts and of tensors"
