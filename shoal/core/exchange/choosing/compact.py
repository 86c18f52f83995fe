"""The models of several clusters in the bytes of about two: what a newcomer fetches to choose among them.

A cluster's model is stored as its difference from the common model, in 8 bits a number where there are few
clusters and in 4 where there are more, with a scale for each row of a matrix. What is no matrix, such as
biases and the numbers of a batch norm, is a small part of a model, and is stored as it is. All models are
fetched, whichever fits, so the server learns nothing from what a newcomer fetches.

    compact(Choose) -> ChooseCompact --> the wire --> ChooseCompact.opened(manifest) -> Choose
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.core.data.scale import scale_of
from shoal.core.errors import BadPayload
from shoal.core.exchange.choosing import HINT, Choose, Chosen
from shoal.core.exchange.encoding.quantizer import COARSE, FINE, MAX_CODE, bytes_of, coded, narrow, wide
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import FloatArray
from shoal.core.exchange.tensors import DTYPES, Lazy, Manifest, TensorSpec, manifest_of
from shoal.core.types import Array, ModelKey, Tensors

MAX_CLUSTERS = 4
"""Up to this many clusters, 8 bits each are no more than one model."""
MIN_VARIANCE = 1e-37
"""What is above 0 has to stay so in float32."""


@dataclass(frozen=True, eq=False)
class ChooseCompact(Message):
    """`Choose`, with its models in few bits.

    bits: of a number of a cluster's model; the common model and the encoder have 8. common, models, encoder:
    one, K and one model, as `packed` makes them; the common one is what the others differ from. projector,
    densities: those of `Choose`, as float32. names, shares: those of `Choose`. scale: of the models' inputs
    (`shoal.core.data.scale`), if they have one, so that a device knows what the models consist of. kin: that
    of `Choose`.
    """

    kind: ClassVar[str] = "choose_compact"
    reply: ClassVar[type[Message]] = Chosen
    names: str
    shares: tuple[float, ...]
    bits: int
    common: Tensors
    models: Tensors
    encoder: Tensors | None = None
    projector: Tensors | None = None
    densities: Tensors | None = None
    scale: Tensors | None = None
    kin: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.bits not in MAX_CODE:
            raise BadPayload(f"models of {self.bits} bits", HINT)

    @property
    def keys(self) -> tuple[ModelKey, ...]:
        """The names, one for each model."""
        return tuple(self.names.split(" "))

    def opened(self, manifest: Manifest) -> Choose:
        """The choice among models of this manifest, each of which is computed when it is used.

        Raises BadPayload if the models are others, or are not as many as their names.
        """
        common = Unpacked(manifest, self.common, FINE)
        count = len(self.keys) - 1
        models = [Unpacked(manifest, self.models, self.bits, n, count, common) for n in range(count)]
        encoder = None if self.encoder is None else Unpacked(manifest, self.encoder, FINE)
        projector, densities = (each and widened(each) for each in (self.projector, self.densities))
        return Choose((*models, common), self.names, self.shares, encoder, projector, densities, self.kin)


def compact(question: Choose) -> ChooseCompact:
    """The same choice in few bytes.

    Example:
        >>> first = {"w": np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), "b": np.ones(2, np.float32)}
        >>> choice = Choose((first, first, first), "c0 c1 global", (1.0, 1.0))
        >>> found = compact(choice).opened(manifest_of(first))
        >>> found.models[0]["w"].round(1).tolist()
        [[1.0, 2.0], [3.0, 4.0]]
    """
    *models, common = question.models
    manifest, bits = manifest_of(common), FINE if len(models) <= MAX_CLUSTERS else COARSE
    packed_common = packed([common], FINE)
    reference = Unpacked(manifest, packed_common, FINE)
    projector, densities = (
        None if each is None else narrowed(each) for each in (question.projector, question.densities)
    )
    return ChooseCompact(
        question.names,
        question.shares,
        bits,
        packed_common,
        packed(models, bits, reference),
        None if question.encoder is None else packed([question.encoder], FINE),
        projector,
        densities,
        scale_of(common) or None,
        question.kin,
    )


def packed(models: Sequence[Tensors], bits: int, reference: Tensors | None = None) -> dict[str, Array]:
    """K models as three tensors: "codes" (K, bytes) and "scales" (K, rows) of their matrices, and "rest" (K,
    bytes), which is everything else.

    A row is stored as its difference from the row of `reference` if that is smaller, and by itself otherwise:
    a cluster whose model has diverged, and with it the common one, must not spoil the others. Rows that are
    not finite stay so.
    """
    layout = _Layout(manifest_of(models[0]), bits)
    codes = np.zeros((len(models), layout.codes), np.uint8)
    scales = np.zeros((len(models), layout.rows), np.float32)
    rest = np.zeros((len(models), layout.rest), np.uint8)
    for spec, start, row in layout.matrices.values():
        base = None if reference is None else _rows(np.nan_to_num(reference[spec.name], posinf=0, neginf=0))
        for number, model in enumerate(models):
            found, scale = coded(_rows(model[spec.name]), base, MAX_CODE[bits])
            data = narrow(found.reshape(-1), bits)
            codes[number, start : start + len(data)] = data
            scales[number, row : row + len(scale)] = scale
    for spec, start in layout.others.values():
        for number, model in enumerate(models):
            data = np.ascontiguousarray(model[spec.name], DTYPES[spec.dtype]).reshape(-1).view(np.uint8)
            rest[number, start : start + len(data)] = data
    return {"codes": codes, "scales": scales, "rest": rest}


class Unpacked(Lazy):
    """One of `count` packed models, of which each tensor is computed when it is asked for. reference: as it
    was for `packed`. Raises BadPayload if what is packed is not models of this manifest."""

    def __init__(
        self,
        manifest: Manifest,
        parts: Tensors,
        bits: int,
        number: int = 0,
        count: int = 1,
        reference: Tensors | None = None,
    ) -> None:
        super().__init__(manifest)
        self._layout, self._bits, self._reference = _Layout(manifest, bits), bits, reference
        expected = {
            "codes": TensorSpec("codes", "uint8", (count, self._layout.codes)),
            "scales": TensorSpec("scales", "float32", (count, self._layout.rows)),
            "rest": TensorSpec("rest", "uint8", (count, self._layout.rest)),
        }
        if {spec.name: spec for spec in manifest_of(parts)} != expected:
            raise BadPayload("the compact models are not those of this device's network", "use the run's own")
        self._codes, self._scales, self._rest = (parts[name][number] for name in expected)

    def __getitem__(self, name: str) -> Array:
        if name in self._layout.matrices:
            return self._matrix(*self._layout.matrices[name])
        spec, start = self._layout.others[name]
        data = self._rest[start : start + spec.nbytes].copy()
        found: Array = data.view(DTYPES[spec.dtype]).reshape(spec.shape)
        return found

    def _matrix(self, spec: TensorSpec, start: int, row: int) -> Array:
        size, rows = spec.size, spec.shape[0]
        codes = wide(self._codes[start : start + bytes_of(size, self._bits)], size, self._bits)
        scale = self._scales[row : row + rows, None].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            values = codes.reshape(rows, -1) * np.abs(scale)
            if self._reference is not None:
                base = _rows(np.nan_to_num(self._reference[spec.name], posinf=0, neginf=0))
                values = values + np.where(np.signbit(scale), 0.0, base)
            found: Array = values.astype(DTYPES[spec.dtype]).reshape(spec.shape)
        return found


class _Layout:
    """Where the tensors of a manifest stand, in the order of their names.

    matrices: each with the start of its codes and of its scales. others: each with its start in the rest.
    """

    def __init__(self, manifest: Manifest, bits: int) -> None:
        self.codes = self.rows = self.rest = 0
        self.matrices: dict[str, tuple[TensorSpec, int, int]] = {}
        self.others: dict[str, tuple[TensorSpec, int]] = {}
        for spec in sorted(manifest, key=lambda spec: spec.name):
            if spec.is_float and len(spec.shape) > 1 and spec.nbytes:
                self.matrices[spec.name] = spec, self.codes, self.rows
                self.codes += bytes_of(spec.size, bits)
                self.rows += spec.shape[0]
            else:
                self.others[spec.name] = spec, self.rest
                self.rest += spec.nbytes


def _rows(array: Array) -> FloatArray:
    return np.asarray(array, np.float64).reshape(len(array), -1)


def narrowed(described: Tensors) -> dict[str, Array]:
    """A projector or densities as float32, in which a variance stays above 0."""
    found: dict[str, Array] = {name: array.astype(np.float32) for name, array in described.items()}
    if "variances" in found:
        found["variances"] = np.maximum(found["variances"], np.float32(MIN_VARIANCE))
    return found


def widened(described: Tensors) -> dict[str, Array]:
    """The same as float64, in which it is used."""
    return {name: array.astype(np.float64) for name, array in described.items()}
