"""Messages as named parts, tensors by reference: the form in which they are stored and sent.

    message  <-- encode / decode -->  Payload  <-- wire -->  protobuf

Only what has a part can leave a device: there is none for raw moments or latents.
"""

import dataclasses
import functools
import hashlib
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any

from shoal.core.errors import BadPayload, near
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import (
    Ballot,
    ClusterAssignment,
    Descriptor,
    Extension,
    LatentBounds,
    Letters,
    MixtureCounts,
    Prototypes,
    Scores,
    is_sha256,
)
from shoal.core.exchange.tensors import Manifest, layout
from shoal.core.types import Bytes, Scalar, Tensors

T = typing.TypeVar("T")

INLINE, INLINE_ALL = 256 << 10, 1 << 20
"""Bytes of the largest blob that travels inside of a task or report, and of all of them in one message: a
small model is there after one round trip, and a large one does not keep others from the line."""

TypedPart = (
    LatentBounds
    | Descriptor
    | ClusterAssignment
    | Scores
    | Prototypes
    | MixtureCounts
    | Ballot
    | Letters
    | Extension
)
TYPED_PARTS: tuple[type[TypedPart], ...] = typing.get_args(TypedPart)


@dataclass(frozen=True)
class BlobRef:
    """Bytes by their content. sha256: 64 lower-case hex digits; size: bytes."""

    sha256: str
    size: int

    def __post_init__(self) -> None:
        if not is_sha256(self.sha256) or self.size < 0:
            raise BadPayload("a blob is named by 64 hex digits and a size of at least 0")


@dataclass(frozen=True)
class Weights:
    """Tensors by reference: what they look like, and which blob holds their packed bytes."""

    manifest: Manifest
    blob: BlobRef

    def __post_init__(self) -> None:
        if (size := layout(self.manifest)[1]) != self.blob.size:
            raise BadPayload(f"a set of tensors of {size} bytes names a blob of {self.blob.size}")


@dataclass(frozen=True)
class Settings:
    """A flat dataclass of settings, field by field."""

    values: Mapping[str, Scalar]


Part = Scalar | Weights | tuple[Weights, ...] | tuple[float, ...] | Settings | TypedPart


@dataclass(frozen=True)
class Payload:
    """One message: its kind and its parts by field name. An absent part is a field that was None."""

    kind: str
    parts: Mapping[str, Part]

    def weights(self) -> tuple[Weights, ...]:
        """Every tensor set it refers to."""
        found: list[Weights] = []
        for part in self.parts.values():
            if isinstance(part, Weights):
                found.append(part)
            elif isinstance(part, tuple):
                found += [item for item in part if isinstance(item, Weights)]
        return tuple(found)

    def small_blobs(self, most: int) -> tuple[BlobRef, ...]:
        """Those of its blobs that a message with this payload may carry itself: each has at most `most`
        bytes, and together they have at most INLINE_ALL."""
        found: list[BlobRef] = []
        left = INLINE_ALL
        for blob in dict.fromkeys(weights.blob for weights in self.weights()):
            if 0 < blob.size <= min(most, INLINE, left):
                found.append(blob)
                left -= blob.size
        return tuple(found)

    def blobs_in(self, pieces: Iterable[Bytes]) -> dict[str, Bytes]:
        """Those of its blobs that a peer has sent as these pieces, by SHA-256. Anything else is dropped, so
        that bytes which were damaged on their way are bytes that are missing."""
        named = {weights.blob.sha256: weights.blob.size for weights in self.weights()}
        found = {hashlib.sha256(piece).hexdigest(): piece for piece in pieces}
        return {name: piece for name, piece in found.items() if named.get(name) == len(piece)}


Keep = Callable[[Tensors], Weights]
"""Stores tensors and returns their reference."""
Load = Callable[[Weights], Tensors]
"""Opens stored tensors, as views where it can."""


def encode(message: Message, keep: Keep) -> Payload:
    """The payload of a message; `keep` is called once for every tensor set in it."""
    parts: dict[str, Part] = {}
    for name in fields_of(type(message)):
        value = getattr(message, name)
        if value is not None:
            parts[name] = _encode_part(value, keep)
    return Payload(message.kind, parts)


def decode(payload: Payload, allowed: Mapping[str, type[Message]], load: Load) -> Message:
    """The message of a payload. `allowed`: the classes that may come here, by kind.

    Raises BadPayload on another kind, an unknown or missing field, or a part of the wrong type.
    """
    cls = allowed.get(payload.kind)
    if cls is None:
        raise BadPayload(
            f"unexpected message {payload.kind!r}", f"expected: {', '.join(sorted(allowed)) or 'none'}"
        )
    fields = fields_of(cls)
    if unknown := sorted(set(payload.parts) - set(fields)):
        raise BadPayload(
            f"message {payload.kind!r} has no field {unknown[0]!r}", near(unknown[0], list(fields))
        )
    values = {}
    for name, (types, required) in fields.items():
        if name in payload.parts:
            values[name] = _decode_part(payload.kind, name, payload.parts[name], types, load)
        elif required:
            raise BadPayload(f"message {payload.kind!r} lacks field {name!r}")
    return cls(**values)


def tensors_of(message: Message) -> list[tuple[str, Tensors]]:
    """Every tensor set in a message, with the name of its field."""
    found: list[tuple[str, Tensors]] = []
    for name in fields_of(type(message)):
        value = getattr(message, name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Mapping):
                found.append((name, item))
    return found


def fields_of(cls: type[Message]) -> Mapping[str, tuple[tuple[Any, ...], bool]]:
    """Field name -> (the types it may have, whether it must be there). All callers share one mapping."""
    key: Any = cls  # mypy does not see that a class can be a key
    return _fields_of(key)


@functools.cache
def _fields_of(cls: Any) -> Mapping[str, tuple[tuple[Any, ...], bool]]:
    hints = typing.get_type_hints(cls)
    found = {}
    for item in dataclasses.fields(cls):
        hint = hints[item.name]
        types = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
        required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        found[item.name] = (tuple(t for t in types if t is not type(None)), required)
    return found


def _encode_part(value: Any, keep: Keep) -> Part:
    if isinstance(value, TypedPart | bool | int | str):
        return value
    if isinstance(value, float):
        return float(value)  # a numpy float64 is one too, and would not be taken for one at the other end
    if isinstance(value, Mapping):
        return keep(value)
    if isinstance(value, tuple):
        return tuple(keep(item) if isinstance(item, Mapping) else float(item) for item in value)  # type: ignore[return-value]
    if dataclasses.is_dataclass(value):
        values = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        if all(isinstance(item, (bool, int, float, str)) for item in values.values()):
            return Settings(values)
    raise TypeError(f"{type(value).__name__} cannot leave in a message")


def _decode_part(kind: str, name: str, part: Part, types: tuple[Any, ...], load: Load) -> Any:
    for wanted in types:
        if wanted == Tensors and isinstance(part, Weights):
            return load(part)
        if (
            wanted == tuple[Tensors, ...]
            and isinstance(part, tuple)
            and all(isinstance(p, Weights) for p in part)
        ):
            return tuple(load(item) for item in part if isinstance(item, Weights))
        if (
            wanted == tuple[float, ...]
            and isinstance(part, tuple)
            and not any(isinstance(p, Weights) for p in part)
        ):
            return part
        if isinstance(part, Settings) and dataclasses.is_dataclass(wanted):
            return settings_from(part.values, wanted, f"{kind}.{name}")  # type: ignore[arg-type]
        if wanted is float and type(part) in (int, float):
            return float(part)  # type: ignore[arg-type]
        if isinstance(wanted, type) and type(part) is wanted:
            return part
    raise BadPayload(f"message {kind!r}, field {name!r}: unexpected {type(part).__name__}")


def settings_from(values: Mapping[str, Scalar], cls: type[T], what: str) -> T:
    """A flat settings dataclass from named values; what is wrong or missing is BadPayload."""
    key: Any = cls  # as in `fields_of`
    fields = _fields_of(key)
    for name, value in values.items():
        if name not in fields:
            raise BadPayload(f"{what} has no setting {name!r}", near(name, list(fields)))
        types, _ = fields[name]
        if type(value) not in types and not (float in types and type(value) is int):
            raise BadPayload(f"{what}.{name}: expected {types[0].__name__}, got {type(value).__name__}")
    for name, (_, required) in fields.items():
        if required and name not in values:
            raise BadPayload(f"{what} lacks setting {name!r}")
    return cls(**values)
