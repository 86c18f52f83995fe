"""Jobs of reducers on other machines, in a form that crosses a database: text and bytes, nothing that runs.

A `Job` of the core refers to files of this machine. An `Order` is the same job by the places of these files
and by ranges of their bytes, so that a reducer reads what it needs and nothing else. Both sides check what
they get, and compute with the same function, `shoal.core.server_kit.aggregation.coordinates.done`.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from fedserver.store.content.mapped import MappedTensors
from shoal.core.errors import BadPayload
from shoal.core.exchange.tensors import BLOCK, DTYPES, layout
from shoal.core.server_kit.aggregation.pieces import READ, Job, Part, Piece
from shoal.core.server_kit.clustering.distances import MATRIX
from shoal.core.types import Array, Tensors

WORKS = ("mean", "squares", "middle")
HINT = "use servers and reducers of one version"


@dataclass(frozen=True)
class Cut:
    """A piece, as bytes of each report: `count` values of `dtype`, from this offset on.

    base: the dtype of the model before.
    """

    offset: int
    count: int
    dtype: str
    base: str

    @property
    def stop(self) -> int:
        return self.offset + self.count * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Order:
    """A job. places: of the reports, in the order of the devices, each with its scale and its weight.

    Raises BadPayload if no server makes such a job.
    """

    work: str
    places: tuple[str, ...]
    scales: tuple[float | None, ...]
    weights: tuple[float, ...]
    cuts: tuple[Cut, ...]
    total: float
    cut: int

    def __post_init__(self) -> None:
        parts = len(self.places)
        is_whole = self.work in WORKS and self.cuts and 0 < parts == len(self.scales) == len(self.weights)
        if not is_whole or not 0 <= 2 * self.cut < parts:
            raise BadPayload("this is not a job of a reducer", HINT)
        for cut in self.cuts:
            if cut.dtype not in DTYPES or cut.base not in DTYPES or min(cut.offset, cut.count - 1) < 0:
                raise BadPayload(f"a reducer cannot compute {cut}", HINT)
            most = MATRIX // (8 * parts) if self.work == "middle" else BLOCK
            if cut.count > max(1, most) or not self.start <= cut.offset <= cut.stop <= self.stop:
                raise BadPayload(f"a job of {parts} reports must not have {cut}", HINT)
        if len(self.cuts) > 1 and parts * (self.stop - self.start) > 2 * READ:
            raise BadPayload(f"a job that reads {parts * (self.stop - self.start)} bytes is too large", HINT)

    @property
    def start(self) -> int:
        """The first byte that is read of each report."""
        return self.cuts[0].offset

    @property
    def stop(self) -> int:
        """The byte after the last one that is read of each report."""
        return self.cuts[-1].stop

    @property
    def needs_base(self) -> bool:
        """Whether the values of the model before matter, and not only their types."""
        return self.work == "squares" or any(scale is not None for scale in self.scales)

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> "Order":
        """The order in a text that another program wrote. Raises BadPayload."""
        try:
            found = json.loads(text)
            return cls(
                str(found["work"]),
                tuple(str(each) for each in found["places"]),
                tuple(None if each is None else float(each) for each in found["scales"]),
                tuple(float(each) for each in found["weights"]),
                tuple(
                    Cut(int(each["offset"]), int(each["count"]), str(each["dtype"]), str(each["base"]))
                    for each in found["cuts"]
                ),
                float(found["total"]),
                int(found["cut"]),
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise BadPayload(f"this is not a job of a reducer: {error!r}", HINT) from None


def order_of(job: Job, place: Callable[[str], str]) -> Order | None:
    """The order of a job; None if its reports are not files of one layout that another machine finds.

    place: of a blob, by its SHA-256; "" if it has none.
    """
    models = [part.model for part in job.parts if isinstance(part.model, MappedTensors)]
    manifest = models[0].manifest if models else ()
    places = [place(model.path.name) for model in models if model.manifest == manifest]
    if len(places) < len(job.parts) or not all(places):
        return None
    starts = dict(zip((spec.name for spec in manifest), layout(manifest)[0], strict=True))
    dtypes = {spec.name: spec.dtype for spec in manifest}
    cuts = tuple(
        Cut(
            starts[name] + start * DTYPES[dtypes[name]].itemsize,
            stop - start,
            dtypes[name],
            job.base[name, start, stop].dtype.name,
        )
        for name, start, stop in job.pieces
    )
    scales, weights = (part.scale for part in job.parts), (float(part.weight) for part in job.parts)
    return Order(job.work, tuple(places), tuple(scales), tuple(weights), cuts, float(job.total), job.cut)


def base_of(job: Job, order: Order) -> bytes:
    """The values of the model before that the job needs."""
    if not order.needs_base:
        return b""
    return b"".join(_bytes(job.base[piece]) for piece in job.pieces)


def job_of(order: Order, base: bytes, models: Sequence[Tensors]) -> Job:
    """The job, for a reducer. models: of each report, the tensors "0", "1" ... that it has read.

    Raises BadPayload if the base is of another size.
    """
    sizes = [cut.count * DTYPES[cut.base].itemsize for cut in order.cuts]
    if len(base) != (sum(sizes) if order.needs_base else 0):
        raise BadPayload(f"the model before has {len(base)} bytes, where a job needs {sum(sizes)}", HINT)
    pieces: list[Piece] = [(str(number), 0, cut.count) for number, cut in enumerate(order.cuts)]
    values: dict[Piece, Array] = {}
    at = 0
    for piece, cut, size in zip(pieces, order.cuts, sizes, strict=True):
        dtype = DTYPES[cut.base]
        if order.needs_base:
            values[piece] = np.frombuffer(base, dtype, cut.count, at)
            at += size
        else:
            values[piece] = np.broadcast_to(np.zeros((), dtype), cut.count)
    parts = tuple(Part(*each) for each in zip(models, order.scales, order.weights, strict=True))
    return Job(order.work, parts, tuple(pieces), values, order.total, order.cut)


# -- results ------------------------------------------------------------------------------------------------


def result_of(values: Sequence[Array]) -> tuple[bytes, str]:
    """What a job has computed as bytes, and a SHA-256 of these bytes and of their types."""
    data = b"".join(_bytes(array) for array in values)
    return data, _digest(((array.dtype.name, array.size) for array in values), data)


def values_of(job: Job, data: bytes, sha256: str) -> list[Array]:
    """What a reducer has computed. Raises BadPayload unless it has the sizes and the types that it must have,
    and is whole."""
    specs = [(job.base[piece].dtype.name, piece[2] - piece[1]) for piece in job.pieces]
    if job.work == "squares":
        specs = [("float64", len(job.parts))] * len(job.pieces)
    size = sum(DTYPES[name].itemsize * count for name, count in specs)
    if len(data) != size:
        raise BadPayload(f"a result has {len(data)} bytes where {size} are expected", HINT)
    if _digest(iter(specs), data) != sha256:
        raise BadPayload("a result does not match its SHA-256", "look at the network and the database's disk")
    found, at = [], 0
    for name, count in specs:
        found.append(np.frombuffer(data, DTYPES[name], count, at))
        at += found[-1].nbytes
    return found


def agrees(job: Job, values: Sequence[Array], compute: Callable[[Job], list[Array]], number: int) -> bool:
    """Whether some of the values are those that this process computes, bit for bit.

    number: by chance; it selects them. They are up to `SAMPLE` coordinates of a piece, or, of squares, those
    of one report.
    """
    place = number % len(job.pieces)
    (name, start, stop), own = job.pieces[place], values[place]
    base: Mapping[Piece, Array] = {job.pieces[place]: job.base[name, start, stop]}
    if job.work == "squares":
        part = number // len(job.pieces) % len(job.parts)
        few = Job(job.work, (job.parts[part],), (job.pieces[place],), base)
        return _bytes(compute(few)[0]) == _bytes(own[part : part + 1])
    size = stop - start
    if size > SAMPLE:
        first = number // len(job.pieces) % (size - SAMPLE)
        own = own[first : first + SAMPLE]
        part_of = job.base[name, start, stop][first : first + SAMPLE]
        start, stop = start + first, start + first + SAMPLE
        base = {(name, start, stop): part_of}
    few = Job(job.work, job.parts, ((name, start, stop),), base, job.total, job.cut)
    return _bytes(compute(few)[0]) == _bytes(own)


SAMPLE = 512
"""Coordinates that are computed again to see whether a reducer computes as this process does."""


def _digest(specs: Iterator[tuple[str, int]], data: bytes) -> str:
    sha = hashlib.sha256("".join(f"{name} {count}\n" for name, count in specs).encode())
    sha.update(data)
    return sha.hexdigest()


def _bytes(array: Array) -> bytes:
    return np.ascontiguousarray(array, DTYPES[array.dtype.name]).tobytes()
