"""What a device has trained, in few bytes: its difference from the model that it was given.

    full    the tensors as they are
    bf16    16 bits a number: the first half of a float32, rounded to the nearest
    fp16    16 bits a number: IEEE half precision, rounded to the nearest, at most 65,504 from 0
    int8    8 bits a number, and a scale for each block of 256 numbers of a tensor; what a round lost by that
            is added to the next round's difference (error feedback; Seide et al., Interspeech 2014)

Only numbers are coded. Other tensors, such as a batch norm's counter, travel as they are. Everything is
elementwise in float64, so the same model gives the same bytes, and the same bytes the same model, everywhere.
"""

from typing import Literal, get_args

import numpy as np

from shoal.core.errors import BadPayload
from shoal.core.exchange.encoding.quantizer import FINE, MAX_CODE, coded
from shoal.core.exchange.parts import FloatArray
from shoal.core.exchange.tensors import (
    DTYPES,
    Lazy,
    Manifest,
    TensorSpec,
    check_manifest,
    floats_of,
    manifest_of,
    part_of,
)
from shoal.core.types import Array, Tensors

Encoding = Literal["full", "bf16", "fp16", "int8"]
ENCODINGS: tuple[str, ...] = get_args(Encoding)
BLOCK = 256
"""Numbers with one scale. Smaller blocks follow the numbers better, and larger ones have fewer scales."""
CODES = {"bf16": "int16", "fp16": "float16", "int8": "int8"}
LARGEST = 65_504.0
"""The largest number of half precision."""


def shape_of(manifest: Manifest, encoding: str) -> Manifest:
    """The manifest of what `encoded` makes of a model of this manifest."""
    if encoding == "full":
        return manifest
    found = [TensorSpec("codes", CODES[encoding], (numbers_of(manifest),))]
    if encoding == "int8":
        found.append(TensorSpec("scales", "float32", (sum(map(_blocks, floats_of(manifest))),)))
    others = (spec for spec in manifest if not spec.is_float)
    return (*found, *(TensorSpec(f"rest.{spec.name}", spec.dtype, spec.shape) for spec in others))


def encoded(
    model: Tensors, reference: Tensors, encoding: str, carried: Array | None = None
) -> tuple[dict[str, Array], Array | None]:
    """A model that was trained from `reference`, and what to carry into the next round's difference.

    carried: what the round before returned, (d,) float32, of all numbers of the model; None: nothing. It is
    None too for all encodings but int8, which loses too little otherwise.

    Example:
        >>> model, reference = {"w": np.ones(2, np.float32)}, {"w": np.zeros(2, np.float32)}
        >>> encoded(model, reference, "int8")[0]["codes"].tolist()
        [127, 127]
    """
    if encoding == "full":
        return dict(model), None
    manifest, codes, scales, left = manifest_of(model), list[Array](), list[Array](), list[Array]()
    before = np.zeros(numbers_of(manifest), np.float32) if carried is None else carried
    at = 0
    for spec in floats_of(manifest):
        moved = _flat(model[spec.name]) - _flat(reference[spec.name])
        if encoding == "int8":
            moved += before[at : at + len(moved)]
            found, scale = coded(_in_blocks(moved), None, MAX_CODE[FINE])
            codes.append(found.reshape(-1)[: len(moved)])
            scales.append(scale)
            with np.errstate(invalid="ignore", over="ignore"):
                left.append((moved - _of_blocks(codes[-1], scale)).astype(np.float32))
        else:
            codes.append(_bf16(moved) if encoding == "bf16" else _fp16(moved))
        at += len(moved)
    parts = {"codes": _joined(codes, CODES[encoding])}
    if encoding == "int8":
        parts["scales"] = _joined(scales, "float32")
    parts |= {f"rest.{spec.name}": np.asarray(model[spec.name]) for spec in manifest if not spec.is_float}
    return parts, _joined(left, "float32") if encoding == "int8" else None


class Decoded(Lazy):
    """A model that was `encoded`, of which each tensor is computed when it is asked for.

    manifest: of the model, whose tensors may be fewer than those of `reference`. Raises BadPayload if the
    parts are not of that model and encoding.
    """

    def __init__(self, manifest: Manifest, parts: Tensors, reference: Tensors, encoding: str) -> None:
        super().__init__(manifest)
        check_manifest(manifest_of(parts), shape_of(manifest, encoding), "the encoded update")
        self._parts, self._reference, self._encoding = parts, reference, encoding
        self._starts: dict[str, tuple[TensorSpec, int, int]] = {}
        at = block = 0
        for spec in floats_of(manifest):
            self._starts[spec.name] = spec, at, block
            at, block = at + spec.size, block + _blocks(spec)

    def __getitem__(self, name: str) -> Array:
        if self._encoding == "full":
            return self._parts[name]
        if name not in self._starts:
            return self._parts[f"rest.{name}"]
        spec = self._starts[name][0]
        return self.part(name, slice(0, spec.size)).reshape(spec.shape)

    def part(self, name: str, block: slice) -> Array:
        if self._encoding == "full":
            return part_of(self._parts, name, block)
        if name not in self._starts:
            return part_of(self._parts, f"rest.{name}", block)
        spec, at, first = self._starts[name]
        codes = part_of(self._parts, "codes", slice(at + block.start, at + block.stop))
        with np.errstate(invalid="ignore", over="ignore"):
            if self._encoding == "int8":
                skipped, last = block.start // BLOCK, -(-block.stop // BLOCK)
                scales = part_of(self._parts, "scales", slice(first + skipped, first + last))
                moved = _of_blocks(codes, scales, block.start - skipped * BLOCK)
            elif self._encoding == "bf16":
                moved = (codes.astype(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
            else:
                moved = codes.astype(np.float64)
            moved += part_of(self._reference, name, block)
            return moved.astype(DTYPES[spec.dtype])


class Merged(Lazy):
    """A model whose tensors come from two places. own: those that it takes from there, and not from `rest`.

    Raises BadPayload if the two together are not a model of this manifest.
    """

    def __init__(self, manifest: Manifest, own: Tensors, rest: Tensors) -> None:
        super().__init__(manifest)
        found = {spec.name: spec for spec in (*manifest_of(rest), *manifest_of(own))}
        if set(found.values()) != set(manifest):
            raise BadPayload(
                "the tensors that train and the others are not those of this network",
                "train the run's own model: same build()",
            )
        self._own, self._rest = own, rest

    def __getitem__(self, name: str) -> Array:
        return self._own[name] if name in self._own else self._rest[name]

    def part(self, name: str, block: slice) -> Array:
        return part_of(self._own if name in self._own else self._rest, name, block)


def numbers_of(manifest: Manifest) -> int:
    """How many numbers of a model of this manifest are coded."""
    return sum(spec.size for spec in floats_of(manifest))


def _blocks(spec: TensorSpec) -> int:
    return -(-spec.size // BLOCK)


def _flat(array: Array) -> FloatArray:
    found: FloatArray = np.asarray(array).reshape(-1).astype(np.float64)
    return found


def _in_blocks(values: FloatArray) -> FloatArray:
    """(n,) as (blocks, BLOCK), with zeros at the end."""
    return np.append(values, np.zeros(-len(values) % BLOCK)).reshape(-1, BLOCK)


def _of_blocks(codes: Array, scales: Array, start: int = 0) -> FloatArray:
    """start: how far into the first block the codes begin."""
    each = np.repeat(np.abs(scales.astype(np.float64)), BLOCK)[start : start + len(codes)]
    found: FloatArray = codes * each
    return found


def _bf16(values: FloatArray) -> Array:
    """The upper halves of float32 numbers, rounded to the nearest, ties to even; NaN stays NaN."""
    with np.errstate(over="ignore"):
        bits = values.astype(np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)  # what overflows was NaN
    upper = np.where(np.isfinite(values), rounded, bits | 0x400000) >> 16
    return upper.astype(np.uint16).view(np.int16)


def _fp16(values: FloatArray) -> Array:
    return np.clip(values, -LARGEST, LARGEST).astype(np.float16)


def _joined(parts: list[Array], dtype: str) -> Array:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)
