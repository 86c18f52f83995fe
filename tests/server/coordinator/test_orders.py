"""Jobs that cross a database compute the same bits, and no text or bytes from there are believed unseen."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedserver.coordinator.aggregation.orders import (
    Order,
    agrees,
    base_of,
    job_of,
    order_of,
    result_of,
    values_of,
)
from fedserver.store.content.mapped import MappedTensors
from shoal.core.errors import BadPayload
from shoal.core.exchange.tensors import BLOCK, manifest_of, pack
from shoal.core.server_kit.aggregation import pieces
from shoal.core.server_kit.aggregation.coordinates import done
from shoal.core.server_kit.aggregation.pieces import Job, Part, spread_over
from shoal.core.server_kit.aggregation.robust import RULES, Update, combine
from shoal.core.types import Array, Tensors

BASE: Tensors = {
    "w": np.linspace(-1.0, 1.0, 2 * BLOCK + 5, dtype=np.float32).reshape(1, -1),
    "half": np.ones(5, np.float16),
    "nothing": np.empty((0, 3), np.float32),
    "count": np.array(7, np.int64),
}
PARTS = 11


def stored(folder: Path, number: int, like: Tensors = BASE) -> MappedTensors:
    chance = np.random.default_rng(number)
    far = 30.0 if number == 4 else 0.1  # one is clipped
    tensors = {
        name: (array + far * chance.normal(size=array.shape)).astype(array.dtype)
        for name, array in like.items()
    }
    path = folder / f"{number:064x}"
    path.write_bytes(b"".join(pack(tensors)))
    return MappedTensors(path, manifest_of(tensors))


class Recorded:
    """Does the jobs, and keeps them."""

    count = 2

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def map(self, jobs: "list[Job]") -> list[list[Array]]:
        self.jobs += jobs
        return [done(job) for job in jobs]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[Job]:
    """The jobs of all rules."""
    folder, workers = tmp_path_factory.mktemp("reports"), Recorded()
    updates = {f"d{number:02}": Update(stored(folder, number), 1.0 + number) for number in range(PARTS)}
    with pytest.MonkeyPatch.context() as patched, spread_over(workers):
        patched.setattr(pieces, "WORTH", 1)
        for rule in RULES:
            combine(rule, BASE, updates)
    return workers.jobs


def of(jobs: list[Job], work: str) -> Job:
    return next(job for job in jobs if job.work == work)


def read(order: Order, job: Job) -> list[Tensors]:
    """What a reducer reads: the bytes of each piece, and nothing else."""
    found: list[Tensors] = []
    for part in job.parts:
        assert isinstance(part.model, MappedTensors)
        data = part.model.path.read_bytes()
        found.append(
            {
                str(number): np.frombuffer(data[cut.offset : cut.stop], cut.dtype)
                for number, cut in enumerate(order.cuts)
            }
        )
    return found


def test_a_job_that_was_text_and_bytes_has_the_same_bits(jobs: list[Job]) -> None:
    assert {job.work for job in jobs} == {"mean", "squares", "middle"}
    assert any(part.scale is not None for job in jobs for part in job.parts)
    for job in jobs:
        order = order_of(job, lambda name: f"there/{name}")
        assert order is not None
        again = Order.parse(order.text)
        assert again == order
        values = done(job_of(again, base_of(job, order), read(again, job)))
        found = values_of(job, *result_of(values))
        for mine, theirs in zip(done(job), found, strict=True):
            assert (mine.dtype, mine.tobytes()) == (theirs.dtype, theirs.tobytes())
        for number in range(20):
            assert agrees(job, found, done, random.Random(number).getrandbits(64))


def test_the_model_before_travels_only_where_its_values_matter(jobs: list[Job]) -> None:
    for job in jobs:
        order = order_of(job, lambda name: f"there/{name}")
        assert order is not None
        matters = job.work == "squares" or any(part.scale is not None for part in job.parts)
        assert bool(base_of(job, order)) == matters


def test_reports_that_no_other_machine_finds_or_of_several_layouts_are_no_order(
    jobs: list[Job], tmp_path: Path
) -> None:
    job = jobs[0]
    assert order_of(job, lambda name: "") is None
    mixed = Part(stored(tmp_path, 99, {**BASE, "half": np.ones(6, np.float16)}))
    other = Job(job.work, (*job.parts[1:], mixed), job.pieces, job.base, job.total, job.cut)
    assert order_of(other, lambda name: "there") is None
    memory = Job(job.work, (*job.parts[1:], Part(BASE)), job.pieces, job.base, job.total, job.cut)
    assert order_of(memory, lambda name: "there") is None


@pytest.mark.parametrize("harm", ["short", "long", "flipped", "another type"])
@pytest.mark.parametrize("work", ["mean", "squares", "middle"])
def test_a_result_that_is_not_whole_is_refused(jobs: list[Job], work: str, harm: str) -> None:
    job = of(jobs, work)
    data, sha256 = result_of(done(job))
    if harm == "another type":
        data, sha256 = result_of([np.frombuffer(data, np.uint8)])
    elif harm == "flipped":
        data = bytes([data[0] ^ 1]) + data[1:]
    else:
        data = data[:-1] if harm == "short" else data + b"\0"
    with pytest.raises(BadPayload):
        values_of(job, data, sha256)


@pytest.mark.parametrize("work", ["mean", "squares", "middle"])
def test_values_of_another_kind_of_computer_are_noticed(jobs: list[Job], work: str) -> None:
    job = of(jobs, work)
    wrong = [np.nextafter(array, np.inf) if array.dtype.kind == "f" else array + 1 for array in done(job)]
    assert not any(agrees(job, wrong, done, random.Random(number).getrandbits(64)) for number in range(20))


HOSTILE: dict[str, Any] = {
    "no text": "",
    "no object": "[]",
    "deep": "[" * 100_000,
    "another work": {"work": "__import__"},
    "no reports": {"places": [], "scales": [], "weights": []},
    "fewer weights": {"weights": [1.0]},
    "all left out": {"cut": PARTS},
    "negative": {"cut": -1},
    "a number": {"cuts": 7},
    "no pieces": {"cuts": []},
    "an object": {"cuts": [{"offset": 0, "count": 8, "dtype": "object", "base": "float32"}]},
    "before the file": {"cuts": [{"offset": -8, "count": 1, "dtype": "float32", "base": "float32"}]},
    "nothing": {"cuts": [{"offset": 0, "count": 0, "dtype": "float32", "base": "float32"}]},
    "too much": {"cuts": [{"offset": 0, "count": 1 << 40, "dtype": "float32", "base": "float32"}]},
    "too far": {
        "cuts": [{"offset": at, "count": 1, "dtype": "float32", "base": "float32"} for at in (0, 1 << 40)]
    },
    "backward": {
        "cuts": [{"offset": at, "count": 1, "dtype": "float32", "base": "float32"} for at in (64, 0)]
    },
    "infinite": {"cut": float("inf")},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_reducer_refuses_what_no_server_posts(jobs: list[Job], name: str) -> None:
    harm, order = HOSTILE[name], order_of(of(jobs, "mean"), lambda each: f"there/{each}")
    assert order is not None
    text = harm if isinstance(harm, str) else json.dumps({**json.loads(order.text), **harm})
    with pytest.raises(BadPayload):
        Order.parse(text)


def test_a_reducer_refuses_a_model_before_of_another_size(jobs: list[Job]) -> None:
    for work in ("squares", "mean"):
        job = of(jobs, work)
        order = order_of(job, lambda name: f"there/{name}")
        assert order is not None
        with pytest.raises(BadPayload, match="bytes"):
            job_of(order, base_of(job, order) + b"\0", [BASE] * PARTS)
